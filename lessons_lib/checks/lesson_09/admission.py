"""09.2, `conservative`: whether all promises together fit in the pool."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_09.made_up import a_sequence, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler

Lengths = tuple[int, int, int]  # (prompt, max_tokens, answer so far) of a sequence
Case = tuple[int, int, list[Lengths], Lengths]  # block size, blocks of the pool, running, new; or with limits behind it
CASES: tuple[Case, ...] = (
    (4, 3, [], (4, 5, 0)),
    (4, 7, [(4, 9, 1)], (4, 5, 0)),
    (4, 9, [], (4, 5, 0)),
    (4, 11, [], (4, 5, 0)),
    (4, 2, [], (4, 5, 0)),
    (4, 1, [], (4, 5, 0)),
    (4, 1, [], (4, 1, 0)),
    (4, 2, [], (6, 3, 0)),
    (4, 4, [(4, 5, 1)], (4, 5, 0)),
    (4, 5, [(4, 5, 1)], (4, 5, 0)),
    (4, 3, [(4, 5, 1)], (4, 5, 0)),
    (4, 2, [(4, 5, 1)], (1, 1, 0)),
    (4, 4, [(5, 1, 0), (5, 1, 0)], (1, 1, 0)),
    (4, 5, [(5, 1, 0), (5, 1, 0)], (1, 1, 0)),
    (16, 9, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 18, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 17, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 21, [(13, 30, 4), (62, 60, 1), (3, 100, 9)], (21, 20, 0)),
    (16, 20, [(13, 30, 4), (62, 60, 1), (3, 100, 9)], (21, 20, 0)),
    (1, 10, [(3, 4, 2)], (2, 3, 0)),
    (1, 9, [(3, 4, 2)], (2, 3, 0)),
    (4, 4, [(6, 6, 1)], (1, 1, 0)),
)
# The rule is about promised blocks: neither the watermark nor the batch slots matter.
LIMITED = [(4, 4, [(4, 5, 1)], (4, 5, 0), limits) for limits in ({"watermark": 1}, {"max_num_seqs": 1})]
WAITING = (9, 20, 0)  # waits behind the new sequence


def cases() -> Iterator[Any]:
    yield from CASES
    yield from LIMITED


def run(rule: Any, case: Any, watch: Watch) -> None:
    scheduler, new = made(*case)

    def look() -> dict[str, Any]:
        names = {"scheduler.running": scheduler.running, "scheduler.waiting": scheduler.waiting}
        return {key: names_of(each) for key, each in names.items()} | {
            "the number of free blocks": len(scheduler.pool.free_queue)
        }

    watch("`conservative`", partial(rule, scheduler, new), look=look, returns=as_bool)


def as_bool(got: Any) -> Any:
    return bool(got) if type(got).__name__ == "bool_" else got


def made(
    block_size: int, num_blocks: int, running: list[Lengths], new: Lengths, limits: dict[str, int] | None = None
) -> tuple[Scheduler, Sequence]:
    """A running sequence has blocks for its computed tokens."""
    scheduler = Scheduler(BlockPool(num_blocks, block_size), **(limits or {}))
    for name, (prompt, max_tokens, answered) in zip("ABCD", running):
        computed = prompt + answered - 1 if answered else 0
        sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
        sequence.blocks = scheduler.pool.allocate(min(blocks_for(computed, block_size), len(scheduler.pool.free_queue)))
        scheduler.running.append(sequence)
    wanted, behind = (a_sequence(name, *each[:1], max_tokens=each[1]) for name, each in (("N", new), ("Z", WAITING)))
    scheduler.waiting.add(wanted)
    scheduler.waiting.add(behind)
    return scheduler, wanted


def tell(case: Any) -> str:
    block_size, num_blocks, running, new, *limits = case
    runs = ", ".join(
        f"{name} (prompt {prompt}, max_tokens {most}, answer tokens so far {answered})"
        for name, (prompt, most, answered) in zip("ABCD", running)
    )
    pool = f"{num_blocks} block{'s' * (num_blocks > 1)} of {block_size}"
    more = "".join(f"; {name} {value}" for each in limits for name, value in each.items())
    return f"{pool}; running: {runs or 'none'}{more}; may N (prompt {new[0]}, max_tokens {new[1]}) be admitted?"


def facts(case: Any) -> dict[str, Any]:
    block_size, num_blocks, running, new, *_ = case
    promises = [blocks_for(prompt + most - 1, block_size) for prompt, most, _ in [*running, new]]
    total = f"{' + '.join(map(str, promises))} = {sum(promises)}" if running else f"{sum(promises)}"
    return {"promises": f"The promises are {total}, and the pool has {num_blocks}."}


MISTAKES = """
{promises} It always returns True: compare what is promised with what the pool has.
= return True
It always returns False, so nothing would ever run.
= return False
True and False are swapped: True means that the sequence may be admitted. {promises}
= return promised > scheduler.pool.num_blocks
Return the comparison of the promised blocks with the blocks of the pool: True or False.
= return promised
or
- return
or
= return scheduler.pool.num_blocks - promised
{promises} You count the tokens known now. A promise covers the most tokens a sequence may ever have: `most_tokens`.
~ other.most_tokens => other.num_tokens
{promises} If `most_tokens` fills its blocks exactly, you count a block too many. Do you count the last token of the
answer, which is returned but never computed? Or does `// block_size + 1` stand for rounding up?
~ other.most_tokens => other.most_tokens + 1
{promises} The prompt is in the cache, too: `most_tokens` counts prompt and answer.
~ other.most_tokens => other.max_new_tokens
{promises} You count only the prompts. The answers need blocks, too, up to `max_tokens`: use `most_tokens`.
~ other.most_tokens => len(other.prompt_ids)
{promises} You left out the new sequence: it isn't in `scheduler.running` yet, and needs blocks like the others.
~ [*scheduler.running, sequence] => scheduler.running
{promises} The promises of the running sequences don't count here. They hold until these sequences finish: add them.
~ [*scheduler.running, sequence] => [sequence]
{promises} You count the sequences that wait behind the new one. Nothing has been promised to them.
~ [*scheduler.running, sequence] => [*scheduler.running, *scheduler.waiting]
{promises} You count the waiting sequences. Nothing has been promised to them, and the new one is still among them.
~ [*scheduler.running, sequence] => [*scheduler.running, *scheduler.waiting, sequence]
{promises} You promise the new sequence only its known tokens. It grows like the others: use `most_tokens` for it, too.
~ other.most_tokens => (other.num_tokens if other is sequence else other.most_tokens)
{promises} You count the running sequences with the tokens known now. Each is promised blocks for its `most_tokens`.
~ other.most_tokens => (other.most_tokens if other is sequence else other.num_tokens)
{promises} A block too many is added to each promise: `most_tokens` is already the most that a sequence can have.
~ scheduler.pool.block_size) => scheduler.pool.block_size) + 1
{promises} You add the answer so far to `most_tokens`, which already contains it: prompt + max_tokens − 1.
~ other.most_tokens => other.most_tokens + len(other.output_ids)
{promises} You leave out the tokens that are already computed. Their blocks are in the pool, too: a promise covers all.
~ other.most_tokens => other.most_tokens - other.num_computed_tokens
{promises} You seem to take 16 as the block size. It is `scheduler.pool.block_size`.
~ scheduler.pool.block_size) => 16)
{promises} You add up tokens, then round to blocks. A block belongs to one sequence: round up for each, then add.
- promised
+ tokens = sum(other.most_tokens for other in [*scheduler.running, sequence])
+ promised = blocks_for(tokens, scheduler.pool.block_size)
{promises} A partly filled block counts as a whole one: round up, with `blocks_for(tokens, block_size)`.
= promised = sum(other.most_tokens // scheduler.pool.block_size for other in [*scheduler.running, sequence])
{promises} You add up tokens, but the pool counts blocks: `blocks_for(tokens, block_size)`.
= promised = sum(other.most_tokens for other in [*scheduler.running, sequence])
{promises} You compare all promises with the free blocks only. The blocks that running sequences hold are part of their
promises: compare with `pool.num_blocks`.
= return promised <= len(scheduler.pool.free_queue)
{promises} You compare the new sequence with the blocks that are free now. Some of those are promised to running
sequences, which will need them later.
= return blocks_for(sequence.most_tokens, scheduler.pool.block_size) <= len(scheduler.pool.free_queue)
{promises} You round up the blocks a sequence has and the blocks it still needs separately. Its last block may have room
left: round up `most_tokens` once.
- promised
+ size, everyone = scheduler.pool.block_size, [*scheduler.running, sequence]
+ promised = sum(len(s.blocks) + blocks_for(s.most_tokens - s.num_computed_tokens, size) for s in everyone)
{promises} Promises that fill the pool exactly can all be kept: `<=`, not `<`.
~ promised <= => promised <
or
- return
+ needs = promised - sum(len(other.blocks) for other in scheduler.running)
+ return needs < len(scheduler.pool.free_queue)
The watermark belongs to `optimistic`. Here the promises cover all that the sequences may need, so no further blocks are
kept free.
= return promised + scheduler.watermark <= scheduler.pool.num_blocks
This rule is about blocks only. Whether a batch slot is free is checked by its caller.
= return len(scheduler.running) < scheduler.max_num_seqs and promised <= scheduler.pool.num_blocks
This function only answers a question; its caller does the admitting. `[*scheduler.running, sequence]` is a new list.
- promised
+ scheduler.running.append(sequence)
+ promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in scheduler.running)
"""

TASK = Task(
    reference="lessons_lib.scheduling.scheduler:conservative",
    cases=cases,
    run=run,
    tell=tell,
    clear=0.8,
    facts=facts,
    known=mistakes(MISTAKES),
    about={
        "returned": "Add up `blocks_for(most_tokens, block_size)` over the running sequences and the new one. The sum "
        "must not exceed `pool.num_blocks`."
    },
)

EXERCISE = Exercise(
    id="09.2",
    title="conservative admission (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Imagine that all running sequences and the new one use all their `max_tokens`. Would the pool have enough "
        "blocks for all of them at once?",
        "For each sequence in `[*scheduler.running, sequence]`, compute the blocks for its `most_tokens`. Add them "
        "up and compare the sum with the number of blocks in the pool.",
        "`promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in "
        "[*scheduler.running, sequence])`; `return promised <= scheduler.pool.num_blocks`.",
    ),
    points=1,
)
