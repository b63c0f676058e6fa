"""How many tokens and blocks an attempt and the reference gave each sequence in one step."""

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_09.made_up import listed, names_of
from lessons_lib.checks.lesson_09.pair import Pair
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.sequence import Sequence


def compare_counts(twins: Pair, got, want) -> None:
    mine = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
    theirs = {sequence.id: count for sequence, count in want.num_scheduled_tokens.items()}
    if mine == theirs:
        return
    budget = twins.mine.max_num_batched_tokens
    what = f"the step should compute {theirs}; yours computes {mine}."
    admitted = names_of(want.admitted)
    empty = [name for name in theirs if name not in mine]
    if any(count == 0 for count in mine.values()):
        idea = "Leave out sequences that get no tokens from `scheduler_output.num_scheduled_tokens`."
    elif sum(mine.values()) > budget and twins.before:
        idea = (
            f"That makes {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. The running "
            "sequences have used some of it: start with `max_num_batched_tokens - "
            "scheduler_output.num_tokens`."
        )
    elif sum(mine.values()) > budget:
        idea = (
            f"That makes {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. A new sequence "
            "gets at most what is left of the budget; subtract what it gets."
        )
    elif any(name in names_of(got.stalled) for name in empty):
        name = next(name for name in empty if name in names_of(got.stalled))
        idea = (
            f"{name} is in your `scheduler_output.stalled`, but there are enough free blocks for it. It "
            "stalls only if more are missing than are free: `>`, not `>=`."
        )
    elif empty and all(name in admitted for name in empty):
        idea = (
            f"Admitted, but without tokens: {listed(empty)}. An admitted sequence gets its first tokens in "
            "the same step: `self.allocate_slots(scheduler_output, sequence, count)`."
        )
    elif empty and any(name in admitted and mine.get(name, 0) >= theirs.get(name, 0) for name in mine):
        idea = (
            "The budget went to new sequences before the running ones. First `schedule_running`, then "
            "`schedule_waiting` with what is left."
        )
    elif empty:
        idea = (
            f"{listed(empty)} got nothing, although enough blocks are free. A sequence that stalls doesn't stop "
            "the others."
        )
    elif any(name not in theirs for name in mine):
        stalled = listed(name for name in mine if name not in theirs)
        idea = (
            f"There aren't enough free blocks for all the tokens of {stalled}. A sequence that can't get all the "
            "blocks it needs stalls: it gets no tokens in this step."
        )
    elif name := next((name for name in mine if name in twins.before and mine[name] != theirs[name]), None):
        idea = (
            f"{name} runs already, and `allocate_slots` was asked to schedule {theirs[name]} of its tokens: set "
            "`num_scheduled_tokens[sequence]` to `count`."
        )
    elif again := next((s.id for s in want.admitted if s.output_ids and mine[s.id] != theirs[s.id]), None):
        idea = (
            f"{again} has run before. Like all others, it wants `known − computed`: its prompt and its answer "
            "so far are known, and some of them may be in the cache."
        )
    elif all(mine[name] <= theirs[name] for name in theirs):
        idea = (
            "Some of the budget is left unused: a new sequence gets what it wants or what is left, whichever "
            "is smaller. Subtract what each one gets, no more."
        )
    else:
        idea = "A new sequence gets `min(known − computed, what is left of the budget)`."
    raise Mistake(what, case=twins.now(), idea=idea)


def _compare_order(twins: Pair, sequence: Sequence) -> None:
    before = twins.held[sequence]
    if sequence.blocks[: len(before)] != before:
        raise Mistake(
            f"before `schedule`, {sequence.id} had the blocks {before}; after it, yours has {sequence.blocks}.",
            case=twins.now(),
            idea="Entry *i* is the block of the sequence's tokens from *i* × block size on. What is computed stays "
            "where it is, so new blocks go behind those that it has: `sequence.blocks += ...`.",
        )


def compare_blocks(twins: Pair, got) -> None:
    size = twins.mine.pool.block_size
    theirs = {sequence.id: sequence for sequence in twins.want.running}
    for sequence in twins.mine.running:
        if strange := [block for block in sequence.blocks if not isinstance(block, int)]:
            raise Mistake(
                f"`{sequence.id}.blocks` should be a list of block numbers; yours contains {strange[0]!r}.",
                case=twins.now(),
                idea="`self.pool.allocate(missing)` returns a list. `+=` or `.extend` adds each of its blocks.",
            )
        held, due = len(sequence.blocks), len(theirs[sequence.id].blocks)
        if held == due:
            _compare_order(twins, sequence)
            continue
        count = got.num_scheduled_tokens.get(sequence, 0)
        room = sequence.num_computed_tokens + count
        blocks = f"{due} block{'s' * (due != 1)} of {size}"
        what = f"after `schedule`, {sequence.id} should have {blocks}; yours has {held}."
        if held < due and len(twins.mine.pool.free_queue) == len(twins.want.pool.free_queue):
            idea = "Blocks were allocated, but no sequence has them: `sequence.blocks += self.pool.allocate(missing)`."
        elif not count and held < due:
            idea = "It stalls, and has lost blocks. A sequence that stalls keeps what it has and gets nothing new."
        elif not count:
            idea = (
                "It stalls, but took blocks anyway. Allocate all the missing blocks or none: it can't use "
                "them, and others need them."
            )
        elif held < blocks_for(room, size):
            idea = (
                f"{room} tokens will be in the cache after this step, and its blocks must hold them all: "
                "allocate the missing blocks before the forward pass."
            )
        elif held == due + twins.before.get(sequence.id, 0):
            idea = (
                "It already has blocks. The missing blocks are those for all its computed tokens and this step's, "
                "minus those it has."
            )
        elif held == blocks_for(sequence.num_tokens, size):
            idea = (
                "Blocks were allocated for all known tokens. A block is needed once a step computes the first of its "
                "tokens; until then, another sequence can use it."
            )
        elif held == blocks_for(sequence.most_tokens, size):
            idea = (
                "Blocks were allocated up to `max_tokens`. A promise is only a number; blocks are allocated "
                "as tokens are scheduled."
            )
        else:
            had = len(twins.held[sequence])
            idea = (
                "For the tokens computed so far and those of this step, it needs "
                f"`blocks_for(num_computed_tokens + count, block_size)` = {due} in all. It had {had}: subtract them, "
                "and allocate the rest."
            )
            if had and held == had + blocks_for(count, size):
                idea += " Did you count blocks for this step's tokens alone? The last block may have room for them."
        raise Mistake(what, case=twins.now(), idea=idea)
    lost = len(twins.want.pool.free_queue) - len(twins.mine.pool.free_queue)
    if lost:
        free = len(twins.want.pool.free_queue)
        what = (
            f"the pool should have {free} free block{'s' * (free != 1)}; yours has {len(twins.mine.pool.free_queue)}."
        )
        raise Mistake(
            what,
            case=twins.now(),
            idea=(
                "Every allocated block must be in the `blocks` of a sequence: `sequence.blocks += "
                "self.pool.allocate(missing)`."
            ),
        )
