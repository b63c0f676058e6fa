"""Lesson 09: which tokens of which sequences the next step computes. It runs before every forward pass."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from lessons_lib.kv_cache.block_copies import BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.models.validate import must
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Policy, Sequence, WaitingQueue


@dataclass
class SchedulerOutput:
    """The work of one step, and the changes to blocks before it.

    Attributes:
        num_scheduled_tokens: sequence -> how many of its tokens are computed, 1 or more; in the order of the packed
            batch.
        admitted: sequences that run from this step on.
        stalled: running sequences that get no token because no block is free for it.
        preempted: sequences that lost their batch slot and their blocks in this step (lesson 10).
        block_copies: to be carried out in this order (lesson 10): a block that one copy empties may be the target of a
            later one.
        cached: admitted sequence -> how many of its tokens were in the cache already (lesson 11).
        ends: of each scheduled sequence once the step is launched, how many of its tokens are computed then.
        gets_token: of each scheduled sequence once the step is launched, whether those are all, so that it gets a new
            token.
    """

    num_scheduled_tokens: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)
    stalled: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    cached: dict[Sequence, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    gets_token: list[bool] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(self.num_scheduled_tokens.values())

    @property
    def swapped_out(self) -> list[Sequence]:
        """The preempted sequences whose cache goes to the swap space in this step."""
        return [sequence for sequence in self.preempted if sequence.swapped]

    def drop_finished(self) -> None:
        """Leave out sequences that have finished since they were scheduled: they have no blocks any more."""
        for sequence in [each for each in self.num_scheduled_tokens if each.finish_reason]:
            del self.num_scheduled_tokens[sequence]


Admission = Callable[[Any, Sequence], bool]


def share_budget(running: list[Sequence], budget: int) -> dict[Sequence, int]:
    """Divide the token budget of the next step among the running sequences.

    A sequence wants all its tokens that aren't computed yet: one if it decodes, more if it has a prompt to compute.

    Args:
        running: sequences, in the order of admission.
        budget: the most tokens of the step, 0 or more.

    Returns:
        dict: sequence -> tokens, 1 or more. Leave out sequences that get none.
    """
    counts = {}
    # Decodes come first: they cost little, and skipping one would delay its completion by a step.
    prefills = []
    for sequence in running:
        wanted = sequence.num_tokens - sequence.num_computed_tokens
        if wanted > 1:
            prefills.append((sequence, wanted))
        elif wanted and budget:
            counts[sequence] = 1
            budget -= 1
    for sequence, wanted in prefills:
        if budget:
            counts[sequence] = min(wanted, budget)
            budget -= counts[sequence]
    return counts


def conservative(scheduler: "SchedulerBase", sequence: Sequence) -> bool:
    """Admission by worst case: whether the pool is large enough even if all running sequences and this one reach
    `max_new_tokens`.

    No running sequence ever lacks a block. But most completions end earlier, so much of the pool stays unused.
    """
    promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in [*scheduler.running, sequence])
    return promised <= scheduler.pool.num_blocks


def optimistic(scheduler: "SchedulerBase", sequence: Sequence) -> bool:
    """Admission by present need: whether enough blocks are free for the tokens that the sequence has now, and a
    reserve.

    The reserve, `scheduler.watermark` blocks, is for the running sequences: they will need blocks soon.
    """
    # If nothing is running, no reserve is needed.
    reserve = scheduler.watermark if scheduler.running else 0
    return scheduler.missing_blocks(sequence) + reserve <= len(scheduler.pool.free_queue)


@dataclass(eq=False, repr=False)
class SchedulerBase:
    """The sequences that wait and run, the pool they take blocks from, and the limits of a step.

    The decision isn't here: see `stalling.Scheduler` (lesson 09) and `PreemptiveScheduler` (lesson 10).

    Attributes:
        pool: where blocks come from.
        max_num_seqs: the most sequences that run at a time: the number of batch slots.
        max_num_batched_tokens: the most tokens of a step.
        policy: ranks the waiting sequences; if None, in the order of arrival.
        admission: function (scheduler, sequence) -> bool: whether memory has room for one more.
        watermark: blocks that `optimistic` admission leaves free.
        share_budget: function (running, budget) -> sequence -> tokens; see `share_budget`.
        waiting: WaitingQueue, in the order of the policy.
        running: in the order of admission.
        leaving: sequences whose last token is in flight.

    Raises:
        ValueError: there is no batch slot, the token budget is below `max_num_seqs`, or the watermark is negative.
    """

    pool: BlockPool
    _: KW_ONLY
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    policy: Policy | None = None
    admission: Admission = conservative
    watermark: int = 0
    share_budget: Callable[[list[Sequence], int], dict[Sequence, int]] = share_budget

    def __post_init__(self) -> None:
        must(self.max_num_seqs >= 1, "max_num_seqs", self.max_num_seqs, "at least 1")
        budget, wanted = self.max_num_batched_tokens, "at least max_num_seqs, a token for each sequence"
        must(budget >= self.max_num_seqs, "max_num_batched_tokens", budget, wanted)
        must(self.watermark >= 0, "watermark", self.watermark, "0 blocks or more")
        self.waiting = WaitingQueue(self.policy or FirstComeFirstServed())
        self.running: list[Sequence] = []
        self.leaving: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in the waiting queue.

        Raises:
            BadRequest, OutOfBlocks: see `check`; nothing changes.
        """
        self.check(sequence)
        self.waiting.add(sequence)

    def check(self, sequence: Sequence) -> None:
        """Refuse a sequence that can't be served.

        Raises:
            BadRequest: its prompt is empty, or its `max_new_tokens` is below 1.
            OutOfBlocks: it could not reach `max_new_tokens` even in an empty pool.
        """
        for what, length in (("prompt", len(sequence.prompt_ids)), ("max_new_tokens", sequence.max_new_tokens)):
            must(length >= 1, f"{what} of sequence {sequence.id!r}", length, "at least 1 token")
        needed = blocks_for(sequence.most_tokens, self.pool.block_size)
        if needed > self.pool.num_blocks:
            raise OutOfBlocks(
                f"sequence {sequence.id!r} may need {needed} blocks of {self.pool.block_size} tokens; the pool has "
                f"{self.pool.num_blocks}. Ask for fewer new tokens, or make the pool larger. Nothing was added."
            )

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes."""
        raise NotImplementedError

    def has_unfinished(self) -> bool:
        """True if a sequence is running, waiting, or getting its last token."""
        return bool(self.running or self.leaving or len(self.waiting))

    def missing_blocks(self, sequence: Sequence) -> int:
        """Blocks that a waiting sequence lacks for the tokens that it has now."""
        return blocks_for(sequence.num_tokens, self.pool.block_size)

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Give a waiting sequence a batch slot."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        scheduler_output.admitted.append(sequence)

    def update(self, scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        """After the pass: count what was computed, and append the new tokens. See the two halves."""
        self.update_after_launch(scheduler_output)
        return self.update_from_output(scheduler_output, next_tokens)

    def update_after_launch(self, scheduler_output: SchedulerOutput) -> None:
        """A step was launched: count its tokens as computed. A sequence whose tokens are all computed gets a
        placeholder for its next token, so that the next step can be scheduled before that token is known.

        A sequence whose last token is in flight doesn't run any more, and keeps its blocks until the token is there.
        """
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            end = sequence.num_computed_tokens = sequence.num_computed_tokens + count
            gets_token = end == len(sequence.prompt_ids) + len(sequence.output_ids) + sequence.num_placeholders
            scheduler_output.ends.append(end)
            scheduler_output.gets_token.append(gets_token)
            if gets_token:
                sequence.num_placeholders += 1
                if len(sequence.output_ids) + sequence.num_placeholders == sequence.max_new_tokens:
                    self.running.remove(sequence)
                    self.leaving.append(sequence)

    def update_from_output(self, scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        """The tokens of a launched step are there: replace the placeholders.

        Args:
            next_tokens: a token for each scheduled sequence, in order. It counts only where all tokens are computed:
                logits in the middle of a prompt predict a token that is known already.

        Returns:
            the sequences that have finished. Their blocks are free again. The next step may have been launched with
            them, and write to those blocks; a device computes in order, so what their next owner writes comes later.
        """
        finished: list[Sequence] = []
        scheduled = scheduler_output.num_scheduled_tokens.items()
        rows = zip(scheduled, scheduler_output.ends, scheduler_output.gets_token, next_tokens)
        for (sequence, count), end, gets_token, token in rows:
            if sequence.finish_reason:
                continue  # by the step before, or it was aborted
            if gets_token:
                sequence.num_placeholders -= 1
                sequence.append_token(token)
            self.computed(sequence, end - count, end)
            if sequence.finish_reason:
                finished.append(sequence)
        for sequence in finished:
            self.remove(sequence)
        return finished

    def computed(self, sequence: Sequence, start: int, end: int) -> None:
        """The keys and values of the tokens from `start` to `end` are in the cache, and all these tokens are known."""

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks: it has finished, or was aborted. To abort it, also
        set its `finish_reason`, so that no token in flight is appended.

        Raises:
            ValueError: the scheduler doesn't have it.
        """
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.leaving:
            self.leaving.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.num_placeholders = 0
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free all its blocks."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []

    def reset(self) -> None:
        """Forget all sequences and what the pool holds."""
        self.running, self.leaving = [], []
        self.waiting.clear()
        self.pool.reset()
