"""Lesson 12: the core of the engine. Requests go in, a step computes one more token for each, and readers look at what
the requests have.

What lasts is in the requests: their tokens. The scheduler, the pool and the cache follow from them. So nothing needs to
be repaired after an interrupt (Ctrl-C comes between any two lines): a step that didn't finish is forgotten as a whole,
and the next one begins again with the tokens that the requests have.
"""

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.in_flight import InFlightTokens, overlapped_step
from lessons_lib.engine.input_batch import num_prompt_logits
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.request import NewToken, Request, RequestGroup, TokenReader
from lessons_lib.engine.sampling import choose_tokens, token_logprobs, why_no_token
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.kv_cache.block_copies import BlockCopy, copy_blocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput


def refuse_inside(method: Any, mistake: str) -> None:
    """Refuse a call that a bound method makes, directly or not. The call stack tells: a flag could be left behind by an
    interrupt.

    Raises:
        RuntimeError: with the mistake, and what to do.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame:
        if frame.f_code is method.__code__ and frame.f_locals["self"] is method.__self__:
            raise RuntimeError(f"{mistake}; note what you want to do, and do it after the step.")
        frame = frame.f_back


@dataclass
class InFlightStep:
    """A step that was launched, and whose tokens haven't been processed.

    Attributes:
        tokens: `tokens.wait()` returns one for each scheduled request.
        logits: after each scheduled request, and those of prompts behind them; None if no request looks at them. Valid
            until the next step is launched.
        watch: how long its parts took so far.
    """

    output: SchedulerOutput
    tokens: InFlightTokens
    logits: torch.Tensor | None
    watch: StopWatch


class StepFailed(Exception):
    """Copying blocks, the model or the sampler has failed. The cause says how; `requests` were in that step."""

    def __init__(self, requests: Iterable[Any]):
        super().__init__()
        self.requests: list[Request] = list(requests)


def run_step(core: "EngineCore", scheduler_output: SchedulerOutput) -> InFlightStep | None:
    """Run the part of a step that may fail: copy blocks, compute, and choose tokens.

    Returns:
        the step, None if there is nothing to compute.

    Raises:
        StepFailed: with the requests to blame: those that are scheduled, or, if there are none, those swapped out.
    """
    requests: list[Any] = list(scheduler_output.num_scheduled_tokens)
    try:
        core.copy_blocks(scheduler_output.block_copies)
        if not requests:
            return None
        logits = core.forward(scheduler_output)
        of_each = zip(*((each.params, each.seed, each.num_output_tokens, each.processor) for each in requests))
        tokens = core.sampler(logits[: len(requests)], *map(list, of_each))
        in_flight = core.keep_tokens(scheduler_output, tokens)
    except Exception as error:
        raise StepFailed(requests or scheduler_output.swapped_out) from error
    return core.count_launched(scheduler_output, in_flight, logits)


class EngineCore:
    """Serves requests, a step at a time. Any thread may add, cancel and call `step`.

    Attributes:
        scheduler, runner: decide what a step computes, and compute it.
        swap_cache: where block copies of the swap space go; None if there is none.
        sampler: function (logits, params, seeds, positions, processors) -> tokens, see `choose_tokens`.
        depth: how many steps may be in flight when `step` returns: 0, or 1 for a device that computes one step while
            the host processes the tokens of the one before.
        inbox: id -> requests that the next step begins to serve.
        groups: id -> requests that have begun and have not ended.
        cancelled: requests that the next step ends.
        need_host: those of `groups` whose tokens or logits the host must see before the next step is launched.
        ended: requests that have ended and that no call waits for, until their output is taken.
        in_flight: the steps that were launched and not processed, oldest first.
        changed: requests that have got tokens in the current call of `step`.
        observers: functions (step, requests), called for each step once its tokens are processed; the requests have got
            one each. They run inside `step`, so they must not call the engine.
        num_ended: finish reason -> how many requests have ended with it.
        lock: one thread at a time changes anything.
        is_whole: whether the last change was finished.
    """

    def __init__(
        self, scheduler: PreemptiveScheduler, runner: ModelRunner, tokenizer: PreTrainedTokenizerBase,
        clock: Callable[[], float], *, swap_cache: PagedKVCache | None = None,
        sampler: Callable[..., torch.Tensor] = choose_tokens, depth: int = 0,
    ):  # fmt: skip
        self.scheduler, self.runner, self.tokenizer, self.swap_cache = scheduler, runner, tokenizer, swap_cache
        self.clock, self.sampler, self.depth = clock, sampler, depth
        self.inbox: dict[str, RequestGroup] = {}
        self.groups: dict[str, RequestGroup] = {}
        self.cancelled: deque[RequestGroup] = deque()
        self.need_host: dict[RequestGroup, None] = {}
        self.ended: dict[RequestGroup, None] = {}
        self.in_flight: deque[InFlightStep] = deque()
        self.changed: list[Request] = []
        self.observers: list[Callable[[InFlightStep, list[Request]], None]] = []
        self.num_ended: Counter[str] = Counter()
        self.lock = threading.RLock()
        self.is_whole = True

    def begin_change(self) -> None:
        """Before anything changes, with the lock: forget a change that was interrupted."""
        if not self.is_whole:
            self.rebuild()
        self.is_whole = False

    def add(self, group: RequestGroup) -> None:
        """Serve a request from the next step on.

        Raises:
            BadRequest: its id is taken; nothing changes.
        """
        if group.id in self.groups or self.inbox.setdefault(group.id, group) is not group:
            raise BadRequest(f"request id {group.id!r} is being served; give every request its own id, or none at all.")

    def find(self, request_id: str) -> RequestGroup | None:
        """The request of that id, if it has not ended."""
        return self.groups.get(request_id) or self.inbox.get(request_id)

    def cancel(self, group: RequestGroup, error: BaseException | None = None) -> None:
        """End a request with the next step, with an error if there is one. May be called at any time, also by the
        garbage collector in the middle of a step."""
        if group.output is None:
            group.error = error
            self.cancelled.append(group)
        elif error:
            group.output = replace(group.output, error=error)

    def settle(self) -> None:
        """Begin what was added and end what was cancelled, without a step.

        Raises:
            RuntimeError: see `step`.
        """
        refuse_inside(self.step, "the engine was called inside a step")
        with self.lock:
            self.begin_change()
            self.take_commands()
            if not self.groups:
                self.in_flight.clear()  # its tokens have no reader
            self.is_whole = True

    def read(self, reader: TokenReader) -> list[NewToken]:
        """The tokens of a request that haven't been read."""
        if not reader.has_news:
            return []
        with self.lock:  # another thread may be in the middle of a step, or an interrupt was
            self.begin_change()
            tokens = reader.peek()
            self.is_whole = True
            return tokens

    def step(self) -> list[Request]:
        """Launch the next step, and process all but the last `depth` of those in flight.

        If copying blocks, the model or the sampler fails, the requests of that step end with the error, and all others
        begin again from their tokens.

        Returns:
            the requests that may have new tokens.

        Raises:
            RuntimeError: it was called inside a step, by a logits processor or a model.
        """
        refuse_inside(self.step, "the engine was called inside a step")
        with self.lock:
            self.begin_change()
            self.take_commands()
            self.changed = []
            try:
                overlapped_step(self)
                if not self.groups:
                    self.process(0)  # what is in flight has no reader, and ends with its requests
            except StepFailed as failed:
                for group in dict.fromkeys(request.group for request in failed.requests):
                    self.end(group, "error", failed.__cause__)
                self.rebuild()
            self.is_whole = True
            return self.changed

    def launch(self, scheduler_output: SchedulerOutput) -> InFlightStep | None:
        """See `run_step`."""
        return run_step(self, scheduler_output)

    def schedule(self) -> SchedulerOutput:
        self.watch = StopWatch(self.clock)
        output = self.scheduler.schedule()
        self.watch.lap("schedule")
        return output

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        copy_blocks(copies, self.runner.cache, self.swap_cache)

    def forward(self, output: SchedulerOutput) -> torch.Tensor:
        """Start the forward pass; see `ModelRunner.forward`."""
        self.watch.lap("move")
        logits = self.runner.forward(output)
        self.watch.lap("forward")
        return logits

    def keep_tokens(self, output: SchedulerOutput, tokens: torch.Tensor) -> InFlightTokens:
        """See `ModelRunner.keep_tokens`."""
        in_flight = self.runner.keep_tokens(output, tokens)
        self.watch.lap("sample")
        return in_flight

    def count_launched(self, output: SchedulerOutput, tokens: InFlightTokens, logits: torch.Tensor) -> InFlightStep:
        """A step was launched: its tokens count as computed, and each request that gets a token has a placeholder."""
        self.note_admitted(output)
        self.scheduler.update_after_launch(output)
        requests: list[Request] = list(output.num_scheduled_tokens)  # type: ignore[arg-type]
        has_reader = any(each.group.needs_logits for each in requests)
        return InFlightStep(output, tokens, logits if has_reader else None, self.watch)

    def process(self, depth: int) -> None:
        """Wait for the tokens of all steps in flight but the last `depth`, and append them to their requests."""
        while len(self.in_flight) > depth:
            step = self.in_flight.popleft()
            scheduled: dict[Request, int] = step.output.num_scheduled_tokens  # type: ignore[assignment]
            step.watch.go_on()
            try:
                tokens = step.tokens.wait()
            except Exception as error:
                raise StepFailed(scheduled) from error
            step.watch.lap("forward")
            if step.logits is not None:
                self.add_logprobs(step, step.logits, tokens)
            gets_token = [
                (request, token) for request, token, gets in zip(scheduled, tokens, step.output.gets_token)
                if gets and not request.finish_reason
            ]  # fmt: skip
            for request, token in gets_token:
                if token < 0 and not request.finish_reason:
                    self.end(request.group, "error", why_no_token(token, request.processor))
            self.scheduler.update_from_output(step.output, tokens)
            new = [request for request, token in gets_token if token >= 0]
            self.take_in(new)
            self.changed += new
            step.watch.lap("update")
            for observer in self.observers:
                observer(step, new)

    def take_in(self, requests: list[Request]) -> None:
        """The requests have a new token: add it to their texts, and end those that have finished."""
        now = self.clock()
        for request in requests:
            request.token_times.append(now)
            self.add_text(request)
        for request in requests:
            group = request.group
            if group.output:
                continue  # by another of its completions
            if group.is_finished:
                self.end(group, group.completions[-1].finish_reason or "error")
            elif request.index == 0 and len(request.output_ids) == 1:
                for other in group.completions[1:]:
                    self.serve(other)  # the prompt is computed, so they find it in the cache

    def add_text(self, request: Request) -> None:
        """Add the last token to the text of a request, which a stop string may end."""
        if request.detokenizer is None or request.group.output:
            return
        is_running = not request.finish_reason
        try:
            request.read(request.output_ids[-1])
        except Exception as error:  # of the tokenizer
            self.end(request.group, "error", error)
            return
        if is_running and request.finish_reason:
            self.scheduler.remove(request)

    def add_logprobs(self, step: InFlightStep, logits: torch.Tensor, tokens: list[int]) -> None:
        """Note log-probabilities for the requests that asked for them.

        Args:
            logits: [requests + extra, vocabulary]: after the last token of each request, then after others of prompts.
        """
        scheduled: dict[Request, int] = step.output.num_scheduled_tokens  # type: ignore[assignment]
        own, others = logits[: len(scheduled)], logits[len(scheduled) :]
        for row, ((request, count), end) in enumerate(zip(scheduled.items(), step.output.ends)):
            extra = num_prompt_logits(request, end - count, count)
            if request.prompt_logits and not request.finish_reason:
                request.group.add_prompt_logprobs(end - count, torch.cat([others[:extra], own[row : row + 1]]))
            wanted = request.params.logprobs
            gets_token = step.output.gets_token[row] and tokens[row] >= 0 and not request.finish_reason
            if gets_token and wanted is not None and request.logprobs is not None:
                request.logprobs.append(token_logprobs(own[row], tokens[row], wanted))
            others = others[extra:]

    def host_must_see_tokens(self) -> bool:
        """Whether the steps in flight must be processed before the next one is launched: it may compute a request whose
        log-probabilities are wanted, or whose rules look at its last token."""
        if not self.need_host or not self.in_flight:
            return False
        has_batch_slot = len(self.scheduler.running) < self.scheduler.max_num_seqs
        active: list[Any] = [*self.scheduler.running, *self.scheduler.leaving]
        return has_batch_slot or any(each.group in self.need_host for each in active)

    def take_commands(self) -> None:
        """Begin to serve what was added, and end what was cancelled."""
        cancelled = list(self.cancelled)  # first, so that none of them is added after its turn
        self.carry_out(list(self.inbox.values()), cancelled)

    def carry_out(self, added: list[RequestGroup], cancelled: list[RequestGroup]) -> None:
        """Carry out commands of other threads; more of them may come meanwhile."""
        for group in added:
            if group.output is None and self.groups.get(group.id) is not group:
                self.groups[group.id] = group
                self.begin(group)
            del self.inbox[group.id]
        for group in cancelled:
            if self.groups.get(group.id) is group and group.output is None:
                self.end(group, "error" if group.error else "abort", group.error)
            self.cancelled.popleft()

    def begin(self, group: RequestGroup) -> None:
        """Let the completions of a request wait for a step, with the tokens that they have."""
        if group.needs_host:
            self.need_host[group] = None
        try:
            for request in group.completions:
                request.restart(self.tokenizer)
        except Exception as error:  # of the tokenizer
            self.end(group, "error", error)
            return
        for request in group.begun:
            self.serve(request)
        if group.is_finished:
            self.end(group, group.completions[-1].finish_reason or "error")

    def serve(self, request: Request) -> None:
        """Let a completion wait for a step."""
        if not request.finish_reason:
            self.scheduler.add(request)
            request.has_begun = True

    def end(self, group: RequestGroup, reason: str, error: BaseException | None = None) -> None:
        """Take a request out, with all its completions, running or waiting, and set its output."""
        for request in group.completions:
            if not request.finish_reason:
                request.finish_reason = reason
                if request.has_begun:
                    # What led to an error may be in its blocks, so no other request may find them.
                    (self.scheduler.discard if reason == "error" else self.scheduler.remove)(request)
        group.end(error, self.tokenizer)
        assert group.output
        self.num_ended["error" if group.output.error else reason] += 1
        self.forget(group)

    def forget(self, group: RequestGroup) -> None:
        """A request has ended: keep its output until it is taken."""
        if not group.is_awaited:
            self.ended[group] = None
        self.need_host.pop(group, None)
        self.groups.pop(group.id, None)

    def rebuild(self) -> None:
        """Begin again with what the requests have."""
        self.runner.reset()
        self.scheduler.reset()
        self.in_flight.clear()
        for group in list(self.groups.values()):
            if group.output:  # an interrupt came while it ended
                self.forget(group)
            else:
                self.begin(group)

    def note_admitted(self, output: SchedulerOutput) -> None:
        """Note how many tokens of a prompt were in the cache."""
        for sequence in output.admitted:
            group: RequestGroup = sequence.group  # type: ignore[attr-defined]
            if group.num_cached_tokens is None:  # a preempted sequence is admitted once more
                group.num_cached_tokens = output.cached.get(sequence, 0)
                group.admitted_at = self.watch.start
