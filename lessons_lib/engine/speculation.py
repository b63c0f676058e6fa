"""Lesson 18: several tokens a step. A proposer guesses what comes next, one pass computes the guesses behind the last
token of their sequence, and those that the model itself would have drawn are kept.

A token is a race of noise that depends only on the request's seed and on the token's position (see `sampling`). So the
model's own draw at a position is one fixed token, however many guesses stand before it in the pass. A guess is kept
exactly if it is that token: the answer is the same as without guesses, greedy or drawn, whatever is guessed.
"""

import warnings
from collections.abc import Sequence as ListOf
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch

from lessons_lib.engine.core import EngineCore, InFlightStep, requests_of
from lessons_lib.engine.draft_lengths import DraftLengths, Guess
from lessons_lib.engine.input_batch import num_extra_logits
from lessons_lib.engine.llm_engine import Parts
from lessons_lib.engine.model_runner import InFlight
from lessons_lib.engine.request import Request
from lessons_lib.engine.rules import Processor
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerBase, SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

MOST_SEQUENCES = 64  # that decode with guesses: more of them fill a pass, and asking takes the host too long


class Proposer(Protocol):
    """Guesses how texts go on.

    Guesses need the newest tokens, and waiting for them costs time. A proposer that often has none may have a method
    `expects(sequences) -> bool` besides: whether it is worth waiting, by the tokens that are known.
    """

    def propose(self, sequences: list[Sequence], most: int) -> list[list[Guess]]:
        """Up to `most` guesses for each sequence, in order; none is fine. All tokens of the sequences are known."""


def accepted(draft: list[int], own: list[int]) -> list[int]:
    """The tokens that a sequence gets from a step: the model's own, up to the first that isn't the guess in its place.

    Args:
        draft: the guesses.
        own: what the model draws in place of each guess, and behind the last one. What follows a wrong guess was drawn
            from a text that doesn't exist.

    Returns:
        1 to len(draft) + 1 tokens: the guesses that are right, and one more.
    """
    num_right = next((place for place, guess in enumerate(draft) if guess != own[place]), len(draft))
    return own[: num_right + 1]


def add_drafts(scheduler: SchedulerBase, output: SchedulerOutput, drafts: dict[Sequence, list[int]]) -> None:
    """Schedule guesses behind the last tokens of sequences that decode in this step, as far as the budget of tokens,
    the free blocks and `max_new_tokens` allow. No sequence loses anything for them.

    Args:
        output: of this step; changed in place.
        drafts: sequence -> its guesses.
    """
    budget, size = scheduler.max_num_batched_tokens - output.num_tokens, scheduler.pool.block_size
    for sequence, draft in drafts.items():
        last = sequence.num_computed_tokens + 1
        room = size * (len(sequence.blocks) + len(scheduler.pool.free_queue)) - last
        count = min(len(draft), budget, room, sequence.max_new_tokens - len(sequence.output_ids) - 1)
        if count > 0:
            sequence.blocks += scheduler.pool.allocate(blocks_for(last + count, size) - len(sequence.blocks))
            output.drafts[sequence] = draft[:count]
            output.num_scheduled_tokens[sequence] += count
            budget -= count


def drop_guesses(scheduler: SchedulerBase, sequence: Sequence) -> None:
    """Forget what a step computed behind the last right guess of a sequence, and free the blocks that held only that.
    Their slots need no repair: nothing reads behind the end of a context, and the next step overwrites them."""
    sequence.num_computed_tokens = sequence.num_tokens - 1
    needed = blocks_for(sequence.num_computed_tokens, scheduler.pool.block_size)
    if needed < len(sequence.blocks):
        scheduler.pool.free(sequence.blocks[needed:])
        sequence.blocks = sequence.blocks[:needed]  # a new list: block tables are copied again


class SpeculativeCore(EngineCore):
    """An EngineCore whose steps compute guesses, too, where that is likely to pay.

    Requests with rules get none: rules look at the tokens one by one.

    Attributes:
        proposer, most: what guesses, and up to how many tokens at a time; 0 if the runner can't verify them.
        lengths: decides how many guesses a step computes.
        num_drafts, num_draft_tokens, num_accepted_tokens: how often there were guesses for a sequence, how many, and
            how many of them were right.
    """

    def __init__(
        self, *args: Any, proposer: Proposer, most: int = 4, lengths: DraftLengths | None = None, **options: Any
    ):  # fmt: skip
        super().__init__(*args, **options)
        self.proposer, self.lengths = proposer, lengths or DraftLengths()
        self.most = most if self.runner.can_verify else 0
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.sample_rows, self.sampler = self.sampler, self.draw
        self.launching: tuple[SchedulerOutput, torch.Tensor] | None = None
        self.last_asked: SchedulerOutput | None = None  # the last step for which the proposer was asked
        self.last_end = self.clock()
        self.observers.append(self.measure)

    def schedule(self) -> SchedulerOutput:
        """See EngineCore. Guesses need the last tokens, so before a step with guesses nothing may be in flight."""
        running = self.scheduler.running
        is_worth_asking = self.most > 0 and len(running) <= MOST_SEQUENCES and self.lengths.may_pay()
        if is_worth_asking and self.in_flight and hasattr(self.proposer, "expects"):
            is_worth_asking = bool(self.ask("expects", running))
        if self.in_flight and (self.in_flight[-1].output.drafts or is_worth_asking):
            self.process(0)
        output = super().schedule()
        decoding: list[Any] = [each for each, count in output.num_scheduled_tokens.items() if may_guess(each, count)]
        if decoding and is_worth_asking:
            self.last_asked, guesses = output, self.ask("propose", decoding, self.most)
            add_drafts(self.scheduler, output, self.lengths.choose(dict(zip(decoding, guesses)), output.num_tokens))
            self.lap("schedule")
        return output

    def ask(self, question: str, *details: Any) -> list[Any]:
        """Ask the proposer. If it fails, it isn't asked again: no answer depends on it."""
        try:
            answer: list[Any] = getattr(self.proposer, question)(*details)
            return answer
        except Exception as error:
            warnings.warn(f"the proposer has failed, so the engine stops guessing: {error!r}", stacklevel=2)
            self.most = 0
            return []

    def forward(self, output: SchedulerOutput) -> torch.Tensor:
        """See EngineCore."""
        logits = super().forward(output)
        self.launching = output, logits
        return logits

    def draw(
        self, logits: torch.Tensor, params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int],
        processors: ListOf[Processor | None],
    ) -> torch.Tensor:  # fmt: skip
        """See `choose_tokens`. In a step with guesses, tokens are drawn from all of its logits."""
        assert self.launching
        output, all_logits = self.launching
        self.launching = None
        if not output.drafts:
            return self.sample_rows(logits, params, seeds, positions, processors)
        of_row, places = list(range(len(params))), list(positions)  # of each row: its request, its place in the text
        for index, (request, count) in enumerate(output.num_scheduled_tokens.items()):
            num_others = num_extra_logits(output, request, request.num_computed_tokens, count)
            of_row += [index] * num_others
            places += range(positions[index], positions[index] + num_others)
            places[index] += len(output.drafts.get(request, ()))  # the row of the request is behind its last guess
        settings = ([values[index] for index in of_row] for values in (params, seeds))
        others: list[None] = [None] * (len(of_row) - len(processors))  # requests with rules have no guesses
        return self.sample_rows(all_logits[: len(of_row)], *settings, places, [*processors, *others])

    def keep_tokens(self, output: SchedulerOutput, tokens: torch.Tensor) -> InFlight:
        """See EngineCore. A step with guesses has a token for each row of its logits; the next one waits for them."""
        return InFlight.of(tokens) if output.drafts else super().keep_tokens(output, tokens)

    def measure(self, step: InFlightStep, requests: list[Request]) -> None:
        """Tell `lengths` how long a step took that had no prompts."""
        start, self.last_end = max(step.start, self.last_end), self.clock()
        output, num_guesses = step.output, sum(map(len, step.output.drafts.values()))
        if output.num_tokens == len(output.gets_token) + num_guesses:
            self.lengths.note_step(output.num_tokens, num_guesses, self.last_end - start, output is self.last_asked)

    def append(self, output: SchedulerOutput, tokens: list[int], logprobs: Any = None) -> list[Request]:
        """See EngineCore. A step that brings several tokens is processed as several that bring one each."""
        if not output.drafts:
            return super().append(output, tokens, logprobs)
        requests = requests_of(output)
        num_others = (
            num_extra_logits(output, each, end - count, count)
            for (each, count), end in zip(output.num_scheduled_tokens.items(), output.ends)
        )
        rest = iter(tokens[len(requests) :])
        own = [[*islice(rest, count), token] for count, token in zip(num_others, tokens)]
        drafts = [output.drafts.get(each, []) for each in requests]
        ends = [end - len(draft) for end, draft in zip(output.ends, drafts)]
        new = [accepted(draft, found) if draft else found[-1:] for draft, found in zip(drafts, own)]
        got = super().append(replace(output, ends=ends), [found[0] for found in new], logprobs)
        for place in range(1, max(map(len, new), default=0)):
            further = {r: found[place] for r, found in zip(requests, new) if len(found) > place and not r.finish_reason}
            for request in further:
                request.num_placeholders += 1
            ends = [request.num_tokens - 1 for request in further]
            step = SchedulerOutput(dict.fromkeys(further, 1), ends=ends, gets_token=[True] * len(further))
            got += super().append(step, list(further.values()))
        for request, draft, found in zip(requests, drafts, new):
            if draft:
                self.note(request, len(draft), len(found) - 1)
        return got

    def note(self, request: Request, num_guesses: int, num_right: int) -> None:
        """Count the guesses for a request, and forget what was computed behind the wrong ones."""
        self.num_drafts += 1
        for counts in (self, request):
            counts.num_draft_tokens += num_guesses
            counts.num_accepted_tokens += num_right
        self.lengths.note_draft(request, num_right)
        if not request.finish_reason:
            drop_guesses(self.scheduler, request)
        if request.logprobs:
            del request.logprobs.rows[len(request.output_ids) :]


def may_guess(request: Any, count: int) -> bool:
    """True if a request decodes in this step, all its tokens are known, and no rule changes its logits."""
    is_decoding = count == 1 and request.output_ids and request.num_computed_tokens == request.num_tokens - 1
    return bool(is_decoding and not request.num_placeholders and not request.processor)


def speculating(proposer: Proposer, most: int = 4) -> Parts:
    """For LLMEngine: an engine that speculates."""
    return Parts(core=partial(SpeculativeCore, proposer=proposer, most=most))
