"""An engine that notes what an answer to 12.3 calls, and stops it as soon as its mistake is known.

The engine is real; only the model is scripted.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lessons_lib.checks.engine_trial import Letters
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_12.step_cases import Broken, Case
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.request import NewToken
from lessons_lib.engine.recovery import one_call
from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.invariants import LostBlocks, audit
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling.sequence import Sequence

IN_THE_MIDDLE = 95  # what the model predicts in the middle of a prompt
WITHOUT_UPDATE = (
    "your step computed tokens, but didn't call `update`.",
    "Call it in every step that computes something, even if no sequence gets a token: it counts the computed tokens. "
    "Without it, the next step computes the same part of the prompt again.",
)


class Stop(BaseException):
    """Leaves an attempt whose mistake is known, even if it catches every Exception."""


@dataclass
class Seen:
    """What is seen of an engine after a step."""

    raised: str
    tokens: dict[str, list[list[int]]]
    outputs: list[tuple[str, str | None, str]]
    heard: list[tuple[str, int, int]]
    running: list[str]
    waiting: list[str]
    requests: list[str]
    used_blocks: int
    lost: str
    steps: int
    last_step: tuple[int, int, int] | None
    events: list[str] = field(compare=False)
    error: BaseException | None = field(compare=False)


class Watched(LLMEngine):
    """An engine with the steps of an attempt, which stops the attempt as soon as its mistake is known."""

    def __init__(self, case: Case, attempt: Callable[[Any], Any]):
        sizes = dict(block_size=4, num_blocks=32, max_num_seqs=4, max_num_batched_tokens=32, num_swap_blocks=0)
        config = EngineConfig(
            **(sizes | case.config), watermark=0.0, share_prefixes=False, probe=False, generation_config=False,
            make_runner=lambda model, num_blocks, config: Scripted(model, num_blocks, config.block_size),
        )  # fmt: skip
        super().__init__(tiny_model("qwen2"), Letters(), config, clock=iter(range(10**9)).__next__)
        self.case, self.attempt = case, attempt
        self.runner.engine = self
        self.events: list[str] = []
        self.gets_token: list[bool] = []
        self.num_tokens: dict[Any, int] = {}
        self.copies_left = 0
        self.problem: Mistake | None = None
        self.heard: list[tuple[str, int, int]] = []
        self.times: Counter[str] = Counter()
        self._schedule, self.scheduler.schedule = self.scheduler.schedule, self._noting_schedule
        self._told, self.scheduler.update = self.scheduler.update, self._noting_update

    @one_call
    def advance(self) -> None:
        with self.changes:
            self.attempt(self)

    def watched_step(self) -> Seen:
        self.events, self.heard, self.copies_left, error, outputs = [], [], 0, None, []
        known = dict(self.requests)
        try:
            outputs = self.step()
        except BaseException as raised:
            error = raised
        if self.problem:
            raise self.problem
        if error is not None and not isinstance(error, (Exception, KeyboardInterrupt)):
            raise error
        if isinstance(error, KeyboardInterrupt):
            self.recover()
        if not error and "schedule" not in self.events:
            raise Mistake(
                "your step never scheduled anything.", case=self.case.told, idea="Begin with `engine.schedule()`."
            )
        if not error and {"forward"} == set(self.events) & {"forward", "failed", "update"}:
            self._missing_update()
        if self.copies_left and not error and "failed" not in self.events:
            idea = "Carry them out even if nothing is scheduled: the next step may overwrite what they save."
            raise Mistake("your step returned without its block copies.", case=self.case.told, idea=idea)
        try:
            audit(self.scheduler)
            lost = ""
        except LostBlocks as found:
            lost = str(found)
        last = self.metrics.recent[-1] if self.metrics.recent else None
        return Seen(
            raised=type(error).__name__ if error else "",
            tokens={name: [list(each.token_ids) for each in request.completions] for name, request in known.items()},
            outputs=sorted((each.request_id, each.finish_reason, type(each.error).__name__) for each in outputs),
            heard=self.heard, running=[each.id for each in self.scheduler.running],
            waiting=[each.id for each in self.scheduler.waiting], requests=list(self.requests),
            used_blocks=len(self.scheduler.pool.used), lost=lost, steps=self.metrics.steps,
            last_step=last and (last.tokens, last.prefill_tokens, last.new_tokens), events=self.events, error=error,
        )  # fmt: skip

    def listen(self, name: str, token: NewToken) -> None:
        self.heard.append((name, token.index, token.token))
        self.times[name] += 1
        if self.case.fails_for == name and self.times[name] == 2:
            raise Broken("the reader is gone")

    def _missing_update(self) -> None:
        if not any(self.gets_token):
            raise Mistake(WITHOUT_UPDATE[0], case=self.case.told, idea=WITHOUT_UPDATE[1])

    def _stop_after_failure(self, name: str) -> None:
        if "failed" in self.events:
            self.stop(
                f"your step called `{name}` although the step had failed.",
                "A failed step has no tokens. End the requests in doubt, and return.",
            )

    def stop(self, what: str, idea: str) -> None:
        """Leave the attempt: this is wrong."""
        self.problem = self.problem or Mistake(what, case=self.case.told, idea=idea)
        raise Stop

    # What the attempt calls

    def schedule(self) -> Any:
        self.events.append("engine.schedule")
        return super().schedule()

    def _noting_schedule(self) -> Any:
        if "schedule" in self.events:
            self.stop(
                "your step scheduled twice.",
                "One call is one step. If there is nothing to compute, return: a step that tries again until there is "
                "something would loop forever.",
            )
        if "engine.schedule" not in self.events:
            self.stop(
                "your step called `engine.scheduler.schedule()`.",
                "Call `engine.schedule()`: it does that, and starts the watch that times the parts of the step.",
            )
        self.events.append("schedule")
        if self.case.where == "schedule":
            raise self.case.error("a bug")
        scheduler_output = self._schedule()
        scheduler_output.block_copies += [BlockCopy(COPY, 1, 0)] * self.case.extra_copies  # into the first request
        if self.case.left_out and self._is_about_to_fail(scheduler_output):
            counts = scheduler_output.num_scheduled_tokens
            scheduler_output.num_scheduled_tokens = {x: counts[x] for x in counts if x.id not in self.case.left_out}
        self.copies_left = len(scheduler_output.block_copies)
        self.num_tokens = {each: each.num_tokens for each in scheduler_output.num_scheduled_tokens}
        self.gets_token = [
            each.num_computed_tokens + count == each.num_tokens
            for each, count in scheduler_output.num_scheduled_tokens.items()
        ]
        return scheduler_output

    def _is_about_to_fail(self, scheduler_output: Any) -> bool:
        is_next = self.times[self.case.where] + 1 == self.case.broken
        return is_next and bool(self.case.where != "copies" or scheduler_output.block_copies)

    def copy_blocks(self, block_copies: Any) -> None:
        is_first = "copy" not in self.events  # of this step: an attempt may copy one block after the other
        self.events.append("copy")
        if not isinstance(block_copies, list):
            self.stop(
                f"`copy_blocks` takes a list of block copies; yours passed {type(block_copies).__name__}.",
                "They are in `scheduler_output.block_copies`.",
            )
        self.copies_left -= len(block_copies)
        if self.case.where == "copies" and block_copies and is_first:
            self.times["copies"] += 1
            if self.times["copies"] == self.case.broken:
                self.events.append("failed")
                raise self.case.error("copying failed")

    def compute(self, scheduler_output: Any) -> Any:
        if "forward" not in self.events:  # else the model failed, and is asked once more
            self._stop_after_failure("compute")
        return super().compute(scheduler_output)

    def forwarded(self, scheduler_output: Any) -> None:
        """The model computes a step."""
        if not scheduler_output.num_scheduled_tokens:
            self.stop(
                "your step called the model although nothing was scheduled.",
                "If `num_scheduled_tokens` is empty, return before the model is called.",
            )
        total = len(scheduler_output.block_copies)
        if self.copies_left and "copy" in self.events:
            self.stop(
                f"your step called the model after {total - self.copies_left} of its {total} block copies.",
                "`engine.copy_blocks` takes them all, of each kind: `scheduler_output.block_copies` as it is.",
            )
        if self.copies_left:
            self.stop(
                "your step called the model before the block copies of this step were carried out.",
                "The forward pass writes into blocks whose old contents must be saved first: call "
                "`engine.copy_blocks(scheduler_output.block_copies)` before it.",
            )
        if "forward" in self.events:
            self.stop("your step called the model twice.", "One step is one forward pass, for all scheduled sequences.")
        self.events.append("forward")
        self.times["forward"] += 1
        if self.case.where == "forward" and self.times["forward"] == self.case.broken:
            self.events.append("failed")
            raise self.case.error("out of memory")

    def completions_with_token(self, scheduler_output: Any, gets_token: Any, tokens: Any, logits: Any = None) -> Any:
        self._stop_after_failure("completions_with_token")
        given, names = list(gets_token), [each.id for each in scheduler_output.num_scheduled_tokens]
        if "update" in self.events:
            self.stop(
                "your step called `update` before `completions_with_token`.",
                "`update` counts the tokens as computed, and frees the blocks of what has finished. Forks begin on "
                "the blocks of their prompt, so `completions_with_token` comes first.",
            )
        if len(given) != len(names):
            self.stop(
                f"`gets_token` has {len(given)} entries for {len(names)} scheduled sequences.",
                "One entry for each scheduled sequence, in order.",
            )
        if not all(isinstance(each, (bool, int)) for each in given):
            self.stop(
                f"the entries of `gets_token` should be bools; the first one of yours is a {type(given[0]).__name__}.",
                "One bool for each scheduled sequence, in order: whether it gets a token.",
            )
        if list(map(bool, given)) != self.gets_token and not all(isinstance(each, bool) for each in given):
            self.stop(
                f"`gets_token` should be {self.gets_token}; yours is {given}.",
                "One bool for each scheduled sequence, in order. Are yours indices or counts?",
            )
        for name, is_given, is_due in zip(names, given, self.gets_token):
            if bool(is_given) and not is_due:
                self.stop(
                    f"`gets_token` is true for {name}, but after this step some of its known tokens are still not "
                    "computed.",
                    "The logits predict a token that is known already: of the prompt, or of the answer, if a preempted "
                    "sequence is computed again. Compare `num_computed_tokens` plus what this step computes with "
                    "`num_tokens`.",
                )
            if is_due and not is_given:
                self.stop(
                    f"`gets_token` is false for {name}, but this step computes the last of its known tokens.",
                    "Compare `num_computed_tokens` plus what this step computes with `num_tokens`: prompt and answer "
                    "so far.",
                )
        for what, rows in (("tokens", tokens), ("rows of logits", logits)):
            if rows is not None and len(rows) < len(names):
                self.stop(
                    f"`completions_with_token` got {len(rows)} {what} for {len(names)} scheduled sequences.",
                    "It takes all that `compute` returned. `gets_token` says which of them count.",
                )
        if self.case.where == "completions_with_token":
            raise self.case.error("a bug")
        self.events.append("completions")
        return super().completions_with_token(scheduler_output, given, tokens, logits)

    def update(self, scheduler_output: Any, tokens: Any) -> None:
        self._stop_after_failure("update")
        tokens, count = list(tokens), len(scheduler_output.num_scheduled_tokens)
        if len(tokens) != count:
            self.stop(
                f"`update` got {len(tokens)} tokens for {count} scheduled sequences.",
                "It takes all tokens that `compute` returned, and ignores those in the middle of a prompt itself.",
            )
        super().update(scheduler_output, tokens)

    def _noting_update(self, scheduler_output: Any, tokens: Any) -> Any:
        if "update" in self.events:
            self.stop("your step updated the scheduler twice.", "Each call counts the computed tokens once more.")
        for sequence in scheduler_output.num_scheduled_tokens:
            if sequence.num_tokens != self.num_tokens.get(sequence, sequence.num_tokens):
                self.stop(
                    f"{sequence.id} has got a token before your step called `update`.",
                    "`update` appends the tokens, and frees the blocks of the sequences that finish.",
                )
        self.events.append("update")
        if self.case.where == "update":
            raise self.case.error("a bug")
        return self._told(scheduler_output, tokens)

    def pass_on(self, completions: Any) -> None:
        if "update" not in self.events and not completions and not any(self.gets_token):
            self.stop(*WITHOUT_UPDATE)
        if "update" not in self.events:
            self.stop(
                "your step called `pass_on` before `update`.",
                "`pass_on` passes on the newest token of each completion; `update` appends it. Call `update` first.",
            )
        if "pass_on" in self.events:
            self.stop("your step called `pass_on` twice.", "Readers would hear of each token twice.")
        self.events.append("pass_on")
        if self.case.where == "pass_on":
            raise self.case.error("a bug")
        super().pass_on(completions)

    def record_step(self, scheduler_output: Any, num_sampled: int, new_tokens: int) -> None:
        is_early = "pass_on" not in self.events and any(self.gets_token)
        if is_early and "forward" in self.events and self.times["forward"] != self.case.broken:
            self.stop(
                "your step was recorded before its tokens were passed on.",
                "A listener that looks at the engine must see a complete step: `record_step` comes last.",
            )
        self.events.append("record")
        if self.case.where == "record_step":
            raise self.case.error("a bug")
        super().record_step(scheduler_output, num_sampled, new_tokens)

    def fail(self, sequences: Any, error: Any) -> None:
        try:
            given = list(sequences)
        except TypeError:
            given = [sequences]
        for each in given:
            if not isinstance(each, Sequence):
                self.stop(
                    f"`engine.fail` takes sequences; yours passed {type(each).__name__}.",
                    "The keys of `num_scheduled_tokens` are sequences, and so are the entries of `preempted`.",
                )
        super().fail(given, error)

    def end(self, request: Any, reason: str, error: BaseException | None = None) -> Any:
        if self.requests.get(request.id) is not request:
            self.stop(
                f"your step ended request {request.id} twice.",
                "A request with several answers has several sequences in a step, and ends once. "
                "`engine.fail(sequences, error)` takes care of that.",
            )
        if error is not None and not isinstance(error, BaseException):
            self.stop(
                f"request {request.id} ended with {short(error)} as its error.",
                "Pass the exception itself, not its text: `engine.fail(sequences, error)`.",
            )
        return super().end(request, reason, error)


class Scripted(ModelRunner):
    """Predicts tokens without a model: the next one follows from the number of tokens."""

    engine: Watched

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        self.engine.forwarded(scheduler_output)
        logits = torch.zeros(len(scheduler_output.num_scheduled_tokens), VOCAB_SIZE)
        for row, (sequence, count) in enumerate(scheduler_output.num_scheduled_tokens.items()):
            position = sequence.num_computed_tokens + count
            is_last = position == sequence.num_tokens
            logits[row, (11 * position + sequence.prompt_ids[0]) % 90 if is_last else IN_THE_MIDDLE] = 50.0
        return logits
