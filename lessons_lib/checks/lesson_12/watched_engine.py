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
from lessons_lib.checks.lesson_12.step_cases import Case
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.core import EngineCore, StepFailed
from lessons_lib.engine.input_batch import num_extra_logits
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.model_runner import InFlight, ModelRunner
from lessons_lib.engine.request import Request
from lessons_lib.kv_cache.block_copies import COPY, BlockCopy
from lessons_lib.kv_cache.invariants import LostBlocks, audit
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

IN_THE_MIDDLE = 95  # what the model predicts in the middle of a prompt
SETTINGS = ("params", "seeds", "positions", "processors")
IDEAS = {
    "params": "`[request.params for request in requests]`.",
    "seeds": "Each request has its own: `request.seed`.",
    "positions": "A request's random numbers follow from its seed and from how many tokens it has got: "
    "`request.num_output_tokens`, which counts those in flight, too.",
    "processors": "`request.processor` changes the logits by the request's rules. None stands for no rules.",
}


class Stop(BaseException):
    """Leaves an attempt whose mistake is known, even if it catches every Exception."""


@dataclass
class Seen:
    """What is seen of an engine after a step."""

    raised: str
    tokens: dict[str, list[list[int]]]
    outputs: list[tuple[str, str | None, str]]
    running: list[str]
    waiting: list[str]
    requests: list[str]
    lost: str
    steps: int
    events: list[str] = field(compare=False)
    error: BaseException | None = field(compare=False)


class WatchedCore(EngineCore):
    """Runs the steps of an attempt, and stops the attempt as soon as its mistake is known."""

    case: Case
    attempt: Callable[[Any, Any], Any]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.events: list[str] = []
        self.copies_left, self.has_copied = 0, False
        self.problem: Mistake | None = None
        self.times: Counter[str] = Counter()
        self.choose, self.sampler = self.sampler, self.watched_sampler
        self.output: Any = None
        self.returned: Any = None

    def stop(self, what: str, idea: str) -> None:
        """Leave the attempt: this is wrong."""
        self.problem = self.problem or Mistake(what, case=self.case.told, idea=idea)
        raise Stop

    def schedule(self) -> Any:
        output = self.output = super().schedule()
        output.block_copies += [BlockCopy(COPY, 1, 0)] * self.case.extra_copies
        is_next = self.times[self.case.where] + 1 == self.case.broken
        if self.case.left_out and is_next and (self.case.where != "copy_blocks" or output.block_copies):
            counts = output.num_scheduled_tokens
            output.num_scheduled_tokens = {each: counts[each] for each in counts if each.id not in self.case.left_out}
        self.copies_left, self.has_copied, self.events, self.returned = len(output.block_copies), False, [], None
        return output

    def launch(self, scheduler_output: Any) -> Any:
        try:
            step = self.attempt(self, scheduler_output)
        except StepFailed as failed:
            for each in failed.requests:
                if not isinstance(each, Request):
                    self.stop(
                        f"`StepFailed` takes requests; yours got {type(each).__name__}.",
                        "The keys of `num_scheduled_tokens` are requests, and so are the entries of `preempted`.",
                    )
            raise
        if "failed" in self.events:
            return step
        if self.copies_left:
            self.stop(
                "your step returned without its block copies.",
                "Carry them out even if nothing is scheduled: the next step may overwrite what they save.",
            )
        if step is not self.returned:
            self.stop(
                f"your step returned {short(step, 60)}.",
                "Return what `count_launched` returns: the core waits for its tokens. If nothing is scheduled, return "
                "None.",
            )
        if scheduler_output.num_scheduled_tokens and "forward" not in self.events:
            self.stop("your step never called `core.forward`.", "The scheduled tokens must be computed.")
        if scheduler_output.num_scheduled_tokens and step is None:
            self.stop(
                "your step never called `core.count_launched`.",
                "It counts the computed tokens. Without it, the next step computes the same again.",
            )
        return step

    def note(self, name: str, output: Any) -> None:
        """The attempt calls this, with this scheduler output."""
        if "failed" in self.events:
            self.stop(
                f"your step called `{name}` although the step had failed.",
                "A failed step has no tokens: `raise StepFailed(requests) from error`.",
            )
        if name in self.events and not (name == "copy_blocks" and self.copies_left):
            self.stop(f"your step called `{name}` twice.", "One step is one forward pass, for all scheduled requests.")
        if output is not None and output is not self.output:
            self.stop(f"`{name}` got {short(output, 60)}.", f"`core.{name}` takes the scheduler output of the step.")
        is_first = name not in self.events
        self.events.append(name)
        self.times[name] += is_first
        if self.case.where == name and is_first and self.times[name] == self.case.broken:
            self.events.append("failed")
            raise self.case.error("out of memory")

    def copy_blocks(self, copies: Any) -> None:
        if not isinstance(copies, list):
            self.stop(
                f"`copy_blocks` takes a list of block copies; yours passed {type(copies).__name__}.",
                "They are in `scheduler_output.block_copies`.",
            )
        self.has_copied = True
        if copies:
            self.note("copy_blocks", None)
        self.copies_left -= len(copies)

    def forward(self, output: Any) -> torch.Tensor:
        total = len(self.output.block_copies)
        if not self.output.num_scheduled_tokens:
            self.stop(
                "your step called the model although nothing was scheduled.",
                "If `num_scheduled_tokens` is empty, return before the model is called.",
            )
        if self.copies_left and self.has_copied and "failed" not in self.events:
            self.stop(
                f"your step called the model after {total - self.copies_left} of its {total} block copies.",
                "`core.copy_blocks` takes them all, of each kind: `scheduler_output.block_copies` as it is.",
            )
        if self.copies_left and "failed" not in self.events:
            self.stop(
                "your step called the model before the block copies of this step were carried out.",
                "The forward pass writes into blocks whose old contents must be saved first: call "
                "`core.copy_blocks(scheduler_output.block_copies)` before it.",
            )
        self.note("forward", output)
        return super().forward(output)

    def watched_sampler(self, logits: Any, *settings: Any) -> torch.Tensor:
        requests = list(self.output.num_scheduled_tokens)
        self.note("sampler", None)
        if len(logits) != len(requests):
            self.stop(
                f"`sampler` got {len(logits)} rows of logits for {len(requests)} scheduled requests.",
                "The first rows belong to the requests, in order; those below them are of prompts. Every request has a "
                "row, even in the middle of its prompt.",
            )
        wanted = (
            [each.params for each in requests], [each.seed for each in requests],
            [each.num_output_tokens for each in requests], [each.processor for each in requests],
        )  # fmt: skip
        given = list(settings) + [[]] * (4 - len(settings))
        for name, got, want in zip(SETTINGS, given, wanted):
            if list(got) != want and not (name == "processors" and not len(got) and not any(want)):
                shown = f": expected {want}; yours are {short(list(got), 60)}" if name in ("seeds", "positions") else ""
                self.stop(f"`sampler` got other {name}{shown}.", IDEAS[name])
        return self.choose(logits, *settings)

    def keep_tokens(self, output: Any, tokens: Any) -> InFlight:
        self.note("keep_tokens", output)
        if not isinstance(tokens, torch.Tensor):
            self.stop(
                f"`keep_tokens` got {short(tokens, 60)}.",
                "It takes the tensor that `sampler` returned. Reading it on the CPU would wait for the GPU.",
            )
        return super().keep_tokens(output, tokens)

    def count_launched(self, output: Any, tokens: Any, logits: Any) -> Any:
        if not isinstance(tokens, InFlight):
            self.stop(f"`count_launched` got {short(tokens, 60)}.", "It takes what `keep_tokens` returned.")
        if not isinstance(logits, torch.Tensor) or len(logits) < len(self.output.num_scheduled_tokens):
            self.stop("`count_launched` got other logits.", "It takes what `forward` returned, all rows of it.")
        if "failed" not in self.events and len(logits) != self.runner.num_rows:  # type: ignore[attr-defined]
            self.stop(
                f"`count_launched` got {len(logits)} of the {self.runner.num_rows} rows of logits.",  # type: ignore[attr-defined]
                "It takes what `forward` returned, all rows of it: those of prompts are read there.",
            )
        self.note("count_launched", output)
        self.returned = super().count_launched(output, tokens, logits)
        return self.returned


class Watched(LLMEngine):
    """An engine with the steps of an attempt."""

    core: WatchedCore

    def __init__(self, case: Case, attempt: Callable[[Any, Any], Any]):
        sizes: dict[str, Any] = dict(
            block_size=4, num_blocks=32, max_num_seqs=4, max_num_batched_tokens=32, num_swap_blocks=0
        )
        config = EngineConfig(
            **(sizes | case.config), watermark=0.0, share_prefixes=False, probe=False, generation_config=False,
            make_runner=lambda model, num_blocks, config: Scripted(model, num_blocks, config.block_size),
        )  # fmt: skip
        core = type("Core", (WatchedCore,), {"case": case, "attempt": staticmethod(attempt)})
        ticks = iter(range(10**9))
        super().__init__(tiny_model("qwen2"), Letters(), config, lambda: float(next(ticks)), Parts(core=core))  # type: ignore[arg-type]
        self.num_steps = 0
        self.core.observers.append(self._count)

    def _count(self, *_: Any) -> None:
        self.num_steps += 1

    def watched_step(self) -> Seen:
        core, error, outputs, known = self.core, None, [], dict(self.requests)
        try:
            outputs = self.step()
        except BaseException as raised:
            error = raised
        if core.problem:
            raise core.problem
        if error is not None and not isinstance(error, (Exception, KeyboardInterrupt)):
            raise error
        events = core.events
        if error:
            self.core.settle()  # begins again
        try:
            audit(self.scheduler)
            lost = ""
        except LostBlocks as found:
            lost = str(found)
        return Seen(
            raised=type(error).__name__ if error else "",
            tokens={name: [list(each.output_ids) for each in group.completions] for name, group in known.items()},
            outputs=sorted((each.request_id, each.finish_reason, type(each.error).__name__) for each in outputs),
            running=[each.id for each in self.scheduler.running], waiting=[each.id for each in self.scheduler.waiting],
            requests=list(self.requests), lost=lost, steps=self.num_steps, events=events, error=error,
        )  # fmt: skip


class Scripted(ModelRunner):
    """Predicts tokens without a model: the next one follows from the number of tokens."""

    can_overlap = True
    num_rows = 0

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        output, scheduled = scheduler_output, scheduler_output.num_scheduled_tokens.items()
        extra = sum(num_extra_logits(output, each, each.num_computed_tokens, count) for each, count in scheduled)
        self.num_rows = len(scheduled) + extra
        logits = torch.zeros(self.num_rows, VOCAB_SIZE)
        for row, (request, count) in enumerate(scheduled):
            position = request.num_computed_tokens + count
            is_last = position == request.num_tokens
            logits[row, (11 * position + request.prompt_ids[0]) % 90 if is_last else IN_THE_MIDDLE] = 5.0
        return logits
