"""Judges 03.3, `BlockTable`: a new block only at a boundary, all or nothing, and everything returned to the pool."""

from functools import partial
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import counted, is_whole, queue_of, refused, used_of
from lessons_lib.checks.lesson_03.table_reasons import WHY_REFUSED, why_count
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_table import TableFull


def check_block_table(attempt) -> None:
    _check_boundary(attempt)
    _check_prompts(attempt)
    _check_no_block_left(attempt)
    _check_limit(attempt)
    _check_wrong_count(attempt)
    _check_release(attempt)
    _check_long_run(attempt)


def _append(table, count: int | None, tokens: int, case: str) -> None:
    """Append where there is room; afterwards the table must hold `tokens` tokens. None: without an argument."""
    before = _blocks_of(table, case)
    arguments = () if count is None else (count,)
    try:
        call(table.append, *arguments, case=case)
    except (OutOfBlocks, TableFull, ValueError) as error:
        raise Mistake(
            f"there is room, but `append` raised {type(error).__name__}: {str(error)[:120]}",
            case=case,
            idea=WHY_REFUSED.get(type(error), WHY_REFUSED[ValueError]),
        ) from None
    after = _blocks_of(table, case)
    if after[: len(before)] != before:
        raise Mistake(
            f"`blocks` was {short(before)} and is now {short(after)}: blocks with tokens in them have changed.",
            case=case,
            idea="Keep the existing blocks, in their order, and add the new ones after them.",
        )
    if count == 0 and before and len(after) > len(before) and tokens == len(before) * table.pool.block_size:
        raise Mistake(
            f"`append(0)` should change nothing; yours took {counted(len(after) - len(before), 'block')}.",
            case=case,
            idea="0 tokens need no block, even if the last block is full. The next one is due when a token comes.",
        )
    _check_table(table, tokens, case, len(before))


def _blocks_of(table, case: str) -> list[int]:
    blocks = getattr(table, "blocks", None)
    if blocks is None or not hasattr(blocks, "__iter__"):
        raise Mistake(f"`blocks` should be the list of the table's blocks; yours is {short(blocks)}.", case=case)
    blocks = list(blocks)
    if not all(is_whole(block) for block in blocks):
        raise Mistake(
            f"`blocks` should be a list of block ids, such as [0, 1]; yours is {short(blocks)}.",
            case=case,
            idea="`allocate` returns a list. `self.blocks.append(...)` would nest that list; `+=` or `extend` adds its "
            "elements.",
        )
    return [int(block) for block in blocks]


def _check_table(table, tokens: int, case: str, blocks_before: int = 0) -> None:
    blocks, size = _blocks_of(table, case), table.pool.block_size
    want = blocks_for(tokens, size)
    if len(blocks) != want:
        raise Mistake(
            f"after {counted(tokens, 'token')} the table should hold {counted(want, 'block')}; yours holds "
            f"{len(blocks)}.",
            case=case,
            idea=why_count(len(blocks), want, tokens, size, was_enough=0 < want <= blocks_before),
        )
    if table.num_tokens != tokens:
        raise Mistake(
            f"`num_tokens` should be {tokens}; yours is {short(table.num_tokens)}.",
            case=case,
            idea="It counts all tokens stored so far. Add `count` to it in every successful call.",
        )
    if len(set(blocks)) < len(blocks):
        raise Mistake(f"the table contains a block twice: {short(blocks)}.", case=case)
    _check_pool(table.pool, [table], case)


def _check_same(table, tokens: int, case: str, queue: list[int] | None = None) -> None:
    """After a refused call: the blocks that `tokens` tokens need, and no more. And the free queue, if given."""
    held, want = len(_blocks_of(table, case)), blocks_for(tokens, table.pool.block_size)
    if held != want or table.num_tokens != tokens:
        raise Mistake(
            f"the table had {counted(tokens, 'token')} in {counted(want, 'block')}; now it has "
            f"{short(table.num_tokens)} tokens in {counted(held, 'block')}."
        )
    _check_pool(table.pool, [table], case)
    if queue is not None and queue_of(table.pool) != queue:
        raise Mistake(
            f"the pool's free queue was {short(queue)}; now it is {short(queue_of(table.pool))}. (Blocks that are "
            "taken and freed again come back in another order.)"
        )


def _check_pool(pool: BlockPool, tables: list, case: str) -> None:
    """The pool has allocated exactly what the tables hold."""
    held = {block for table in tables for block in _blocks_of(table, case)}
    if used_of(pool) != held or set(queue_of(pool)) & held:
        raise Mistake(
            f"the tables hold blocks {short(sorted(held))}, but in the pool {short(sorted(used_of(pool)))} are "
            "allocated.",
            case=case,
            idea="Change the pool only through `self.pool.allocate(...)` and `self.pool.free(...)`, which keep "
            "`free_queue` and `used` consistent.",
        )


def _check_boundary(attempt) -> None:
    table = attempt(BlockPool(20, 16))
    _append(table, 1, 1, "block size 16, an empty table; `append(1)`.")
    _append(table, 1, 2, "block size 16, 1 token stored; `append(1)`.")
    _append(table, 0, 2, "block size 16, 2 tokens stored; `append(0)`, which changes nothing.")
    table = attempt(BlockPool(20, 16))
    _append(table, 16, 16, "block size 16, an empty table; `append(16)`.")
    _append(table, None, 17, "block size 16, 16 tokens stored; `append()`, one token.")
    table = attempt(BlockPool(20, 16))
    _append(table, 128, 128, "block size 16, an empty table; `append(128)`.")
    _append(table, None, 129, "block size 16, 128 tokens stored; `append()`, one token.")
    _append(table, 15, 144, "block size 16, 129 tokens stored; `append(15)`.")
    _append(table, 1, 145, "block size 16, 144 tokens stored; `append(1)`.")
    _append(table, 0, 145, "block size 16, 145 tokens stored; `append(0)`, which changes nothing.")
    _append(attempt(BlockPool(20, 16)), 0, 0, "block size 16, an empty table; `append(0)`, which needs no block.")


def _check_prompts(attempt) -> None:
    table = attempt(BlockPool(20, 4))
    for tokens in range(1, 14):
        _append(table, 1, tokens, f"block size 4, {tokens - 1} tokens stored; `append(1)`.")
    table = attempt(BlockPool(20, 16))
    _append(table, 62, 62, "block size 16, an empty table; `append(62)`, B's prompt.")
    _append(table, 2, 64, "block size 16, 62 tokens stored; `append(2)`.")
    _append(table, 40, 104, "block size 16, 64 tokens stored; `append(40)`.")


class _RefusingPool(BlockPool):
    """Remembers whether a call of `allocate` was refused."""

    has_refused = False

    def allocate(self, count):
        try:
            return super().allocate(count)
        except OutOfBlocks:
            self.has_refused = True
            raise


_CAUGHT = (
    "`pool.allocate` did raise OutOfBlocks, but your code caught it. Don't catch it: the caller of `append` decides "
    "what to do without a free block."
)


def _check_no_block_left(attempt) -> None:
    idea = (
        "All or nothing: allocate all missing blocks in one call, and change `num_tokens` only after it. "
        "If the pool refuses, nothing has changed."
    )
    for blocks, stored, count in ((1, 0, 17), (8, 0, 129), (2, 20, 20), (4, 20, 45), (2, 32, 1)):
        pool = _RefusingPool(blocks, 16)
        table = attempt(pool)
        case = f"a pool of {counted(blocks, 'block')} of 16, {stored} tokens stored; `append({count})`."
        if stored:
            _append(table, stored, stored, case)
        missing, queue = blocks_for(stored + count, 16) - blocks_for(stored, 16), queue_of(pool)
        refused(
            OutOfBlocks, table.append, count,
            doing=f"appending {counted(count, 'token')}, which needs {counted(missing, 'more block')} with "
            f"{len(pool.free_queue)} free,",
            case=case,
            idea=idea,
            unchanged=partial(_check_same, table, stored, case, queue),
            because=lambda pool=pool: _CAUGHT if pool.has_refused else "",
        )  # fmt: skip


def _check_limit(attempt) -> None:
    table = attempt(BlockPool(9, 16), 2)
    _append(table, 32, 32, "block size 16, max_blocks 2, an empty table; `append(32)`: exactly what fits.")
    _append(table, 0, 32, "block size 16, max_blocks 2, 32 tokens stored; `append(0)`, which needs no further block.")
    table = attempt(BlockPool(9, 16), 2)
    _append(table, 20, 20, "block size 16, max_blocks 2, an empty table; `append(20)`.")
    _append(table, 12, 32, "block size 16, max_blocks 2, 20 tokens stored; `append(12)`: the last block has room.")
    need = "Compare the blocks needed with `self.max_blocks` before you allocate. None means no limit."
    held = "Do you compare only this call's new blocks? Those that the table holds already count as well."
    zero = "0 is a limit too, although it counts as False in Python: use `is not None`."
    for limit, stored, count, idea in ((2, 0, 33, need), (2, 32, 1, held), (0, 0, 1, zero)):
        table = attempt(BlockPool(9, 16), max_blocks=limit)
        case = (
            f"a pool of 9 free blocks of 16; a table with max_blocks {limit}, {stored} tokens stored; "
            f"`append({count})`."
        )
        if stored:
            _append(table, stored, stored, case)
        queue = queue_of(table.pool)
        refused(
            TableFull, table.append, count,
            doing=f"growing to {counted(blocks_for(stored + count, 16), 'block')} with max_blocks {limit}",
            case=case,
            idea=idea,
            unchanged=partial(_check_same, table, stored, case, queue),
        )  # fmt: skip


def _check_wrong_count(attempt) -> None:
    for count, idea in (
        (-5, "A table only grows, until it is released. With 15 tokens it would hold one block too many."),
        (-1, "A table only grows, until it is released, even if the last block stays in use."),
    ):
        table = attempt(BlockPool(4, 16))
        case = f"block size 16, 20 tokens stored; `append({count})`."
        _append(table, 20, 20, case)
        refused(
            ValueError, table.append, count,
            doing=f"appending {count} token{'' if count == -1 else 's'}",
            case=case,
            idea=idea,
            unchanged=lambda table=table, case=case: _check_same(table, 20, case),
        )  # fmt: skip


class _CountingPool(BlockPool):
    """Counts the calls of `free`."""

    calls = 0

    def free(self, blocks):
        self.calls += 1
        super().free(blocks)


def _check_release(attempt) -> None:
    pool = _CountingPool(5, 16)
    table = attempt(pool)
    case = "a pool of 5 blocks of 16; `append(40)` takes blocks 0, 1, 2; `release()`."
    _append(table, 40, 40, case)
    call(table.release, case=case)
    if used_of(pool):
        raise Mistake(
            f"after the release no block should be allocated; in the pool, {short(sorted(used_of(pool)))} still are.",
            case=case,
            idea="Return all of them with `self.pool.free(...)`, before you empty the list.",
        )
    if queue_of(pool) == [3, 4, 0, 1, 2]:
        raise Mistake(
            "the free queue should be [3, 4, 2, 1, 0] afterwards; yours is [3, 4, 0, 1, 2].",
            case=case,
            idea="`pool.free` takes the blocks in the order of the tokens and reverses them itself. "
            + (
                "You freed them one at a time, so there was nothing to reverse: pass the whole list."
                if pool.calls > 1
                else "You reversed them a second time."
            ),
        )
    if pool.calls != 1:
        raise Mistake(
            f"`release` should call `pool.free` once; yours called it {pool.calls} times.",
            case=case,
            idea="`self.pool.free(self.blocks)` takes the whole list, checks it, and keeps `free_queue` and `used` "
            "consistent. Only the pool should change them.",
        )
    if _blocks_of(table, case):
        raise Mistake(
            f"a released table should be empty; yours still lists {short(_blocks_of(table, case))}.",
            case=case,
            idea="Another request will get these blocks. A table that still lists them would read and overwrite that "
            "request's keys.",
        )
    if table.num_tokens != 0:
        raise Mistake(
            f"a released table should hold 0 tokens; yours says {short(table.num_tokens)}.",
            case=case,
            idea="Without its blocks the table has no tokens. The next `append` would start from the old count.",
        )
    _check_release_order(attempt)
    _append(table, 17, 17, case + " Then `append(17)`.")
    call(table.release, case=case)
    try:
        call(table.release, case=case + " Then `append(17)`, and `release()` twice.")
    except ValueError as error:
        raise Mistake(
            f"releasing an empty table should do nothing; yours raised ValueError: {error}",
            case=case + " Then `append(17)`, and `release()` twice.",
        ) from None
    _check_table(table, 0, case + " Then `append(17)`, and `release()` twice.")
    table = attempt(BlockPool(9, 16), max_blocks=2)
    case = "a pool of 9 free blocks of 16; a table with max_blocks 2; `append(32)`, `release()`, then `append(33)`."
    _append(table, 32, 32, case)
    call(table.release, case=case)
    refused(
        TableFull, table.append, 33,
        doing="growing to 3 blocks with max_blocks 2, after a release,",
        case=case,
        idea="`release` empties the table, but its limit stays what it was.",
        unchanged=lambda: _check_same(table, 0, case),
    )  # fmt: skip
    _check_refill(attempt)


def _check_refill(attempt) -> None:
    """A released table takes as many tokens as before."""
    table = attempt(BlockPool(9, 16), max_blocks=2)
    case = "a pool of 9 free blocks of 16; a table with max_blocks 2; `append(32)`, `release()`, then `append(32)`."
    _append(table, 32, 32, case)
    call(table.release, case=case)
    try:
        call(table.append, 32, case=case)
    except TableFull as error:
        raise Mistake(
            "a released table with max_blocks 2 should take 32 tokens again; yours raised TableFull: "
            f"{str(error)[:120]}",
            case=case,
            idea="The table can be filled again up to its limit. Does `release` lower `max_blocks`? Or does `append` "
            "count blocks that have been returned?",
        ) from None
    _check_table(table, 32, case)


def _check_release_order(attempt) -> None:
    """The blocks' ids don't rise, so that sorting them shows."""
    pool = BlockPool(5, 16)
    pool.free(pool.allocate(5))
    table = attempt(pool)
    case = (
        "a pool of 5 blocks of 16 with the free queue [4, 3, 2, 1, 0]; `append(40)` takes blocks 4, 3, 2; `release()`."
    )
    _append(table, 40, 40, case)
    call(table.release, case=case)
    queue = queue_of(pool)
    if queue != [1, 0, 2, 3, 4]:
        raise Mistake(
            f"the free queue should be [1, 0, 2, 3, 4] afterwards; yours is {short(queue)}.",
            case=case,
            idea="Are the blocks sorted, or put into a set, on their way to `pool.free`? It takes them in the order of "
            "the tokens: `self.blocks` as it is.",
        )


def _check_long_run(attempt) -> None:
    rng, pool = Random(7), BlockPool(10, 4)
    tables = {name: attempt(pool) for name in "ABC"}
    tokens = dict.fromkeys(tables, 0)
    for index in range(200):
        name = rng.choice("ABC")
        table, count = tables[name], rng.choice((1, 1, 1, 3, 9))
        held = {other: tokens[other] for other in tables}
        if rng.random() < 0.15:
            case = f"call {index} of a long run, three tables on 10 blocks of 4, holding {held} tokens; release {name}."
            call(table.release, case=case)
            tokens[name] = 0
        else:
            case = (
                f"call {index} of a long run, three tables on 10 blocks of 4, holding {held} tokens; {name} appends "
                f"{count}."
            )
            try:
                call(table.append, count, case=case)
                tokens[name] += count
            except OutOfBlocks:
                if blocks_for(tokens[name] + count, 4) - blocks_for(tokens[name], 4) <= len(pool.free_queue):
                    raise Mistake("there is room, but `append` raised OutOfBlocks.", case=case) from None
        for other, each in tables.items():
            if len(_blocks_of(each, case)) != blocks_for(tokens[other], 4) or each.num_tokens != tokens[other]:
                raise Mistake(
                    f"{other} should have {counted(tokens[other], 'token')} in "
                    f"{counted(blocks_for(tokens[other], 4), 'block')}; it has {short(each.num_tokens)} in "
                    f"{short(_blocks_of(each, case))}.",
                    case=case,
                    idea="Do the tables share an object, such as the list of blocks? Each table needs its own.",
                )
        _check_pool(pool, list(tables.values()), case)
