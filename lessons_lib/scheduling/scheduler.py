"""Lesson 09: choose the tokens to compute in the next step. The scheduler runs before every forward pass."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from lessons_lib.kv_cache.block_copies import BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.models.validate import must
from lessons_lib.scheduling.sequence import FirstComeFirstServed, Policy, Sequence, WaitingQueue


@dataclass
class SchedulerOutput:
    """The work of one step, and the block copies before it.

    Attributes:
        num_scheduled_tokens: sequence -> number of tokens to compute, 1 or more; in the order of the packed batch.
        admitted: sequences that run from this step on.
        stalled: running sequences that get no token because no block is free.
        preempted: sequences that lost their batch slot and their blocks in this step (lesson 10).
        block_copies: in this order (lesson 10): the source of one copy may be the target of a later one.
        cached: admitted sequence -> number of tokens found in the cache (lesson 11).
        drafts: sequence -> guesses, computed behind its last token and counted as scheduled (lesson 18).
        ends: of each scheduled sequence, its computed tokens after the step; set at the launch.
        gets_token: of each scheduled sequence, True if it then gets a new token; set at the launch.
    """

    num_scheduled_tokens: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)
    stalled: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    cached: dict[Sequence, int] = field(default_factory=dict)
    drafts: dict[Sequence, list[int]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    gets_token: list[bool] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole step."""
        return sum(self.num_scheduled_tokens.values())

    @property
    def swapped_out(self) -> list[Sequence]:
        """The preempted sequences whose cache is swapped out in this step."""
        return [sequence for sequence in self.preempted if sequence.swapped]

    def drop_finished(self) -> None:
        """Drop sequences that have finished since they were scheduled: their blocks are freed."""
        for sequence in [each for each in self.num_scheduled_tokens if each.finish_reason]:
            del self.num_scheduled_tokens[sequence]


Admission = Callable[[Any, Sequence], bool]


def share_budget(running: list[Sequence], budget: int) -> dict[Sequence, int]:
    """Divide the token budget of the next step among the running sequences.

    A sequence wants all its uncomputed tokens: one if it decodes, more if it has a prompt to compute.

    Args:
        running: sequences, in order of admission.
        budget: maximum tokens of the step, 0 or more.

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
    """Admit by the worst case: the pool must suffice even if this and all running sequences reach `max_new_tokens`.

    No running sequence ever lacks a block. But most completions end earlier, so much of the pool stays unused.
    """
    promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in [*scheduler.running, sequence])
    return promised <= scheduler.pool.num_blocks


def optimistic(scheduler: "SchedulerBase", sequence: Sequence) -> bool:
    """Admit by present need: enough blocks must be free for the tokens that the sequence has now, and for a reserve.

    The reserve, `scheduler.watermark` blocks, is for the running sequences, which will need blocks soon.
    """
    # If nothing is running, no reserve is needed.
    reserve = scheduler.watermark if scheduler.running else 0
    return scheduler.missing_blocks(sequence) + reserve <= len(scheduler.pool.free_queue)


@dataclass(eq=False, repr=False)
class SchedulerBase:
    """The waiting and running sequences, their block pool, and the limits of a step.

    Subclasses schedule: `stalling.Scheduler` (lesson 09) and `PreemptiveScheduler` (lesson 10).

    Attributes:
        pool: the block pool.
        max_num_seqs: number of batch slots: maximum running sequences.
        max_num_batched_tokens: maximum tokens of a step.
        policy: ranks the waiting sequences; by default, in order of arrival.
        admission: function (scheduler, sequence) -> True if memory has room for the sequence.
        watermark: blocks that `optimistic` admission leaves free.
        share_budget: function (running, budget) -> sequence -> tokens; see `share_budget`.
        waiting: WaitingQueue, in the order of the policy.
        running: in order of admission.
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
        """Add a sequence to the waiting queue.

        Raises:
            BadRequest, OutOfBlocks: see `check`; nothing changes.
        """
        self.check(sequence)
        self.waiting.add(sequence)

    def check(self, sequence: Sequence) -> None:
        """Reject a sequence that can't be served.

        Raises:
            BadRequest: the prompt is empty, or `max_new_tokens` is below 1.
            OutOfBlocks: the sequence couldn't reach `max_new_tokens` even in an empty pool.
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
        """Schedule the next step."""
        raise NotImplementedError

    def has_unfinished(self) -> bool:
        """True if any sequence is waiting, running or leaving."""
        return bool(self.running or self.leaving or len(self.waiting))

    def missing_blocks(self, sequence: Sequence) -> int:
        """Number of blocks to allocate for a waiting sequence's present tokens."""
        return blocks_for(sequence.num_tokens, self.pool.block_size)

    def admit(self, scheduler_output: SchedulerOutput, sequence: Sequence) -> None:
        """Assign a batch slot to a waiting sequence."""
        self.waiting.remove(sequence)
        self.running.append(sequence)
        scheduler_output.admitted.append(sequence)

    def update(self, scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        """After the pass: count the computed tokens, and append the new ones."""
        self.update_after_launch(scheduler_output)
        return self.update_from_output(scheduler_output, next_tokens)

    def update_after_launch(self, scheduler_output: SchedulerOutput) -> None:
        """Count the tokens of a launched step as computed. A sequence whose tokens are all computed gets a placeholder
        for its next token, so that the next step can be scheduled before that token is known.

        A sequence whose last token is in flight stops running, but keeps its blocks until the token arrives.
        """
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            end = sequence.num_computed_tokens = sequence.num_computed_tokens + count
            gets_token = end >= sequence.num_tokens and not sequence.finish_reason
            scheduler_output.ends.append(end)
            scheduler_output.gets_token.append(gets_token)
            if gets_token:
                sequence.num_placeholders += 1
                if len(sequence.output_ids) + sequence.num_placeholders == sequence.max_new_tokens:
                    self.running.remove(sequence)
                    self.leaving.append(sequence)

    def update_from_output(self, scheduler_output: SchedulerOutput, next_tokens: Iterable[int]) -> list[Sequence]:
        """Replace the placeholders of a launched step by its tokens.

        The next step may already be launched with sequences that finish here, and write to their freed blocks. A device
        computes in order, so the next owner's writes come later.

        Args:
            next_tokens: a token for each scheduled sequence, in order. Ignored in the middle of a prompt, where the
                next token is known.

        Returns:
            the finished sequences. Their blocks are freed.
        """
        finished: list[Sequence] = []
        ends, gets = scheduler_output.ends, scheduler_output.gets_token
        for sequence, end, gets_token, token in zip(scheduler_output.num_scheduled_tokens, ends, gets, next_tokens):
            if sequence.finish_reason:
                continue  # finished in the previous step, or aborted
            if gets_token:
                sequence.num_placeholders -= 1
                sequence.append_token(token)
                if end % self.pool.block_size == 0:
                    self.cache_full_blocks(sequence, end - 1, end)  # the last token may have been a placeholder
            if sequence.finish_reason:
                finished.append(sequence)
        for sequence in finished:
            self.remove(sequence)
        return finished

    def cache_full_blocks(self, sequence: Sequence, start: int, end: int) -> None:
        """Hook: the tokens from `start` to `end` fill a block, and their keys and values are in the cache."""

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or aborted sequence and free its blocks. To abort it, also set its `finish_reason`, so that
        no token in flight is appended.

        Raises:
            ValueError: the scheduler doesn't have the sequence.
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
        """Free all blocks of a sequence."""
        self.pool.free(sequence.blocks)
        sequence.blocks = []

    def reset(self) -> None:
        """Drop all sequences, and free all blocks."""
        self.running, self.leaving = [], []
        self.waiting.clear()
        self.pool.reset()
