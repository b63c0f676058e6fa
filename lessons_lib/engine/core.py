"""Lesson 12: the core of the engine. Requests go in, a step computes one more token for each, and readers read what the
requests have.

The only lasting state is the tokens of the requests; scheduler, pool and cache follow from them. So an interrupt
(Ctrl-C comes between any two lines) needs no repair: a step that didn't finish is forgotten, and the next one begins
again with the tokens that the requests have.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.engine.model_runner import InFlight, ModelRunner
from lessons_lib.engine.output_processor import OutputProcessor, TokenReader
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.reentrancy import refuse_inside
from lessons_lib.engine.request import Request, RequestGroup
from lessons_lib.engine.rules import why_no_token
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.kv_cache.block_copies import BlockCopy, copy_blocks
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput


@dataclass
class InFlightStep:
    """A step that was launched, and whose tokens haven't been processed.

    Attributes:
        tokens: `tokens.wait()` returns one for each scheduled request.
        logprobs: a StepLogprobs; None if no request asks for them.
        start: when it was scheduled, in seconds on the engine's clock.
    """

    output: SchedulerOutput
    tokens: InFlight
    logprobs: Any
    start: float


class StepFailed(Exception):
    """Copying blocks, the model or the sampler has failed. The cause says how; `requests` were in that step."""

    def __init__(self, requests: Iterable[Any]):
        super().__init__("a step has failed; the cause says how.")
        self.requests: list[Request] = list(requests)


def requests_of(output: SchedulerOutput) -> list[Any]:
    """The scheduled requests. The scheduler knows them as sequences."""
    return list(output.num_scheduled_tokens)


def run_step(core: "EngineCore", scheduler_output: SchedulerOutput) -> InFlightStep | None:
    """Run the part of a step that may fail: copy blocks, compute, and choose tokens.

    Returns:
        the step, None if there is nothing to compute.

    Raises:
        StepFailed: a call has failed; with the requests that end.
    """
    requests: list[Any] = list(scheduler_output.num_scheduled_tokens)
    try:
        core.copy_blocks(scheduler_output.block_copies)
        if not requests:
            return None
        logits = core.forward(scheduler_output)
        in_flight = core.keep_tokens(scheduler_output, core.sample(scheduler_output, logits))
    except Exception as error:
        raise StepFailed(requests or scheduler_output.swapped_out) from error
    # Outside the `try`: an error in here would be the engine's mistake, not the requests'.
    return core.count_launched(scheduler_output, in_flight, logits)


def overlapped_step(loop: "EngineCore") -> None:
    """Run one turn of a loop: launch the next step, then process all but the last `depth` of those in flight, or all if
    nothing was launched. With a depth of 1, the device has its next step before the host turns to the tokens of the
    last one.

    Args:
        loop: an EngineCore, or a GreedyLoop, which has the same methods.
    """
    scheduler_output = loop.schedule()
    if any(victim.num_placeholders for victim in scheduler_output.preempted):
        loop.process(0)  # a victim is computed again from its tokens, so all of them must be known
        scheduler_output.drop_finished()
    if launched := loop.launch(scheduler_output):
        loop.in_flight.append(launched)
    loop.process(loop.depth if launched else 0)


class EngineCore:
    """Serves requests, a step at a time. Any thread may add, cancel and call `step`.

    Attributes:
        scheduler, runner: decide what a step computes, and compute it.
        outputs: an OutputProcessor, which makes text and outputs of tokens.
        swap_cache: where block copies of the swap space go; None if there is none.
        sampler: function (logits, params, seeds, positions, processors) -> tokens, see `choose_tokens`.
        depth: how many steps may be in flight when `step` returns: 0, or 1 for a device that computes one step while
            the host processes the tokens of the one before.
        inbox: id -> group (a caller's request) that the next step begins to serve.
        groups: id -> group that has begun and has not ended.
        cancelled: groups that the next step ends.
        ended: groups that have ended and that no call waits for, until their output is taken.
        in_flight: the steps that were launched and not processed, oldest first.
        observers: functions (step, requests), called for each step once its tokens are processed; the requests have got
            one for each time that they are listed. They run inside `step`, so they must not call the engine.
        watches: functions (part), called when the core has finished a part of a step: "schedule", "move", "forward",
            "sample" or "update". "begin" starts the clock: the time before it was the caller's.
        num_ended: finish reason -> how many requests have ended with it.
        lock: one thread at a time changes anything.
        is_whole: whether the last change was finished.
    """

    def __init__(
        self, scheduler: PreemptiveScheduler, runner: ModelRunner, outputs: OutputProcessor,
        clock: Callable[[], float], *, swap_cache: PagedKVCache | None = None,
        sampler: Callable[..., torch.Tensor] = choose_tokens, depth: int = 0,
    ):  # fmt: skip
        self.scheduler, self.runner, self.swap_cache = scheduler, runner, swap_cache
        self.outputs, self.clock, self.sampler, self.depth = outputs, clock, sampler, depth
        self.inbox: dict[str, RequestGroup] = {}
        self.groups: dict[str, RequestGroup] = {}
        self.cancelled: deque[RequestGroup] = deque()
        self.ended: dict[RequestGroup, None] = {}
        self.in_flight: deque[InFlightStep] = deque()
        self.observers: list[Callable[[InFlightStep, list[Request]], None]] = []
        self.watches: list[Callable[[str], None]] = []
        self.num_ended: Counter[str] = Counter()
        self.lock = threading.RLock()
        self.is_whole = True

    def begin_change(self) -> None:
        """Rebuild if the last change was interrupted, and begin another. Called with the lock, before anything changes;
        the caller's last line sets `is_whole` again."""
        if not self.is_whole:
            self.rebuild()
        self.is_whole = False

    def add(self, group: RequestGroup) -> None:
        """Serve a request from the next step on.

        Raises:
            BadRequest: its id is taken; nothing changes.
        """
        with self.lock:  # another thread may be moving a request from the inbox to the groups
            is_taken = group.id in self.groups or self.inbox.setdefault(group.id, group) is not group
        if is_taken:
            raise BadRequest(f"request id {group.id!r} is being served; give every request its own id, or none at all.")

    def find(self, request_id: str) -> RequestGroup | None:
        """The request of that id, if it has not ended."""
        return self.groups.get(request_id) or self.inbox.get(request_id)

    def cancel(self, group: RequestGroup, error: BaseException | None = None) -> None:
        """End a request with the next step, with an error if there is one, unless it has ended. May be called at any
        time, also by the garbage collector in the middle of a step."""
        if group.output is None:
            group.error = error
            self.cancelled.append(group)

    def settle(self) -> None:
        """Begin what was added and end what was cancelled, without a step. Raises what `step` raises."""
        refuse_inside(self)
        with self.lock:
            self.begin_change()
            self.take_commands()
            if not self.groups:
                self.in_flight.clear()  # its tokens have no reader
            self.is_whole = True

    def read(self, reader: TokenReader) -> list[NewToken]:
        """The tokens of a request that haven't been read. Raises what `step` raises."""
        if not reader.has_news:
            return []
        refuse_inside(self)
        with self.lock:  # another thread may be in the middle of a step, or an interrupt was
            self.begin_change()
            tokens = reader.peek()
            self.is_whole = True
            return tokens

    def step(self) -> None:
        """Launch the next step, and process all but the last `depth` of those in flight.

        If copying blocks, the model or the sampler fails, the requests of that step end with the error, and all others
        begin again from their tokens.

        Raises:
            RuntimeError: it was called inside a step, by a logits processor or a model, or inside another change, by
                the garbage collector.
        """
        refuse_inside(self)
        with self.lock:
            self.begin_change()
            self.take_commands()
            self.lap("begin")
            try:
                overlapped_step(self)
                if not self.groups:
                    self.process(0)  # the requests of the steps in flight have ended, so no later step waits for them
            except StepFailed as failed:
                for group in dict.fromkeys(each.group for each in failed.requests if not each.group.output):
                    self.end(group, "error", failed.__cause__)
                self.rebuild()
            self.is_whole = True

    def lap(self, part: str) -> None:
        """Tell the watches that a part of a step is finished."""
        for watch in self.watches:
            watch(part)

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes."""
        self.start = self.clock()
        output = self.scheduler.schedule()
        self.lap("schedule")
        return output

    def launch(self, scheduler_output: SchedulerOutput) -> InFlightStep | None:
        """Start a step; see `run_step`."""
        return run_step(self, scheduler_output)

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        """Carry out the block copies of a step."""
        copy_blocks(copies, self.runner.cache, self.swap_cache)
        self.lap("move")

    def forward(self, output: SchedulerOutput) -> torch.Tensor:
        """Start the forward pass; see `ModelRunner.forward`. If rules look at tokens on the host, wait for those in
        flight: the device computes meanwhile."""
        logits = self.runner.forward(output)
        self.lap("forward")
        if any(each.processor and each.processor.needs_host for each in requests_of(output)):
            self.process(0)
        return logits

    def sample(self, output: SchedulerOutput, logits: torch.Tensor) -> torch.Tensor:
        """Choose a token for each scheduled request, by its settings. Further rows of logits are of prompts."""
        requests = requests_of(output)
        params, seeds = [each.params for each in requests], [each.seed for each in requests]
        positions, processors = [each.num_output_tokens for each in requests], [each.processor for each in requests]
        return self.sampler(logits[: len(requests)], params, seeds, positions, processors)

    def keep_tokens(self, output: SchedulerOutput, tokens: torch.Tensor) -> InFlight:
        """Keep the tokens for the next step, if it may be launched before the host has them; see
        `GPUModelRunner.keep_tokens`."""
        in_flight = self.runner.keep_tokens(output, tokens)
        self.lap("sample")
        return in_flight

    def count_launched(self, output: SchedulerOutput, tokens: InFlight, logits: torch.Tensor) -> InFlightStep:
        """Count a launched step's tokens as computed, and give each request that gets a token a placeholder."""
        self.outputs.note_admitted(output, self.start)
        self.scheduler.update_after_launch(output)
        try:
            logprobs = self.outputs.launch_logprobs(output, logits, tokens)
        except Exception as error:
            raise StepFailed(each for each in requests_of(output) if each.params.needs_logits) from error
        self.lap("update")
        return InFlightStep(output, tokens, logprobs, self.start)

    def process(self, depth: int) -> None:
        """Wait for the tokens of all steps in flight but the last `depth`, and append them to their requests."""
        while len(self.in_flight) > depth:
            step = self.in_flight.popleft()
            try:
                tokens = step.tokens.wait()
            except Exception as error:
                raise StepFailed(requests_of(step.output)) from error
            self.lap("forward")
            new = self.append(step.output, tokens, step.logprobs)
            self.lap("update")
            for observer in self.observers:
                observer(step, new)

    def append(self, output: SchedulerOutput, tokens: list[int], logprobs: Any = None) -> list[Request]:
        """Append the tokens of a launched step to its requests.

        Args:
            tokens: one for each request; negative if there is none, which ends the request.
            logprobs: see InFlightStep.

        Returns:
            the requests that got one.
        """
        for request, token, gets in zip(requests_of(output), tokens, output.gets_token):
            if token < 0 and gets and not request.finish_reason:
                self.end(request.group, "error", why_no_token(token, request.processor))
        if logprobs:
            logprobs.note()
        new = [each for each, gets in zip(requests_of(output), output.gets_token) if gets and not each.finish_reason]
        self.scheduler.update_from_output(output, tokens)
        self.take_in(new)
        return new

    def take_in(self, requests: list[Request]) -> None:
        """Add the new token of each request to its text, and end requests that have finished."""
        now = self.clock()
        for request in requests:
            request.token_times.append(now)
            if request.detokenizer and not request.group.output:
                self.add_text(request)
        for request in requests:
            group = request.group
            # With an output, another of its completions has ended it.
            if request.finish_reason and not group.output and all(each.finish_reason for each in group.completions):
                self.end(group, group.completions[-1].finish_reason or "error")
            elif request.index == 0 and len(request.output_ids) == 1:
                for other in group.completions[1:]:
                    self.serve(other)  # the prompt is computed, so they find it in the cache

    def add_text(self, request: Request) -> None:
        """Add the last token to the text of a request, which a stop string may end."""
        try:
            is_stopped = self.outputs.add_text(request, request.output_ids[-1])
        except Exception as error:  # of the tokenizer
            return self.end(request.group, "error", error)
        if is_stopped:
            self.scheduler.remove(request)
            request.finish_reason = "stop"

    def take_commands(self) -> None:
        """Begin to serve what was added, and end what was cancelled."""
        # Read before the inbox: a request that is cancelled by now was added earlier, so it has begun by its turn.
        self.carry_out(cancelled=list(self.cancelled), added=list(self.inbox.values()))

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
        for request in group.completions:
            request.has_begun = False
        try:
            for request in group.completions:
                self.outputs.restart(request)
        except Exception as error:  # of the tokenizer
            return self.end(group, "error", error)
        # Once the first has a token, `take_in` has let the others begin, so they begin again.
        for request in group.completions if group.completions[0].output_ids else group.completions[:1]:
            self.serve(request)
        if all(each.finish_reason for each in group.completions) and not group.output:
            self.end(group, group.completions[-1].finish_reason or "error")

    def serve(self, request: Request) -> None:
        """Let a completion wait for a step. If the scheduler or its policy refuses it, the request ends."""
        if not request.finish_reason:
            try:
                self.scheduler.add(request)
            except Exception as error:
                return self.end(request.group, "error", error)
            request.has_begun = True

    def end(self, group: RequestGroup, reason: str, error: BaseException | None = None) -> None:
        """Take a request out, with all its completions, running or waiting, and set its output."""
        for request in group.completions:
            if not request.finish_reason:
                request.finish_reason = reason
                if request.has_begun:
                    # After an error, its blocks may hold wrong keys and values: no other request may find them.
                    (self.scheduler.discard if reason == "error" else self.scheduler.remove)(request)
        output = self.outputs.end(group, error)
        self.num_ended["error" if output.error else reason] += 1
        self.forget(group)

    def forget(self, group: RequestGroup) -> None:
        """Drop a request that has ended; its output is kept until it is taken."""
        if not group.is_awaited:
            self.ended[group] = None
        self.groups.pop(group.id, None)

    def rebuild(self) -> None:
        """Begin again with what the requests have."""
        self.runner.reset()
        self.scheduler.reset()
        self.in_flight.clear()
        for group in list(self.groups.values()):
            # With an output, an interrupt came while it ended.
            (self.forget if group.output else self.begin)(group)
