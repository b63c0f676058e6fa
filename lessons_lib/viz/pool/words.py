"""A block pool in words: which request owns which block, and the alternative text of its picture."""

from dataclasses import dataclass

from lessons_lib.recording.pool_states import PoolState, TableState, named_blocks
from lessons_lib.viz.drawing.svg import count, share_text


@dataclass(frozen=True)
class Holding:
    """A block in a request's table.

    request   the request that the table belongs to
    start     position of the block's first cell in the request
    tokens    cells of the block that contain a token, from the first on
    """

    request: str
    start: int
    tokens: int


def holdings(state: PoolState) -> dict[int, list[Holding]]:
    """Block -> the tables that list it: one of them, unless the tables are wrong."""
    held: dict[int, list[Holding]] = {}
    for table in state.tables:
        for index, block in enumerate(table.blocks):
            held.setdefault(block, []).append(holding(table, index, state.block_size))
    return held


def holding(table: TableState, index: int, block_size: int) -> Holding:
    start = index * block_size
    return Holding(table.request, start, min(max(table.num_tokens - start, 0), block_size))


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def block_title(block: int, held: Holding | None, queue_index: int | None, block_size: int) -> str:
    """The hover text of a block.

    held         its owner, if it has one
    queue_index  its index in the free queue, if it is there
    """
    if held is None:
        return f"block {block}: " + (
            "allocated, in no table" if queue_index is None else f"free, {ordinal(queue_index + 1)} in the queue"
        )
    empty = block_size - held.tokens
    stored = _positions(held.start, held.tokens) if held.tokens else "no token yet"
    return f"block {block}: {held.request}, {stored}" + (f", {count(empty, 'slot')} unused" if empty else "")


def cell_title(block: int, offset: int, held: Holding, block_size: int) -> str:
    """The hover text of one cell of a block in use."""
    position = (
        f"position {held.start + offset}"
        if offset < held.tokens
        else f"unused, kept for position {held.start + offset}"
    )
    return f"block {block}, offset {offset}: {held.request}, {position}, slot {block * block_size + offset}"


def _positions(start: int, tokens: int) -> str:
    return f"position {start}" if tokens == 1 else f"positions {start} to {start + tokens - 1}"


def unused_cells(table: TableState, block_size: int) -> int:
    """Cells of its blocks without a token."""
    return max(len(table.blocks) * block_size - table.num_tokens, 0)


def loose_blocks(state: PoolState) -> list[int]:
    """Blocks that are allocated and in no table."""
    known = {*holdings(state), *state.free_queue}
    return [block for block in range(state.num_blocks) if block not in known]


def sums(state: PoolState) -> str:
    """How much of the pool is allocated, and how much of the tables' blocks is empty."""
    used = state.num_blocks - len(set(state.free_queue))
    told = [f"{used:,} of {count(state.num_blocks, 'block')} allocated ({share_text(used, state.num_blocks)})"]
    cells = sum(len(table.blocks) for table in state.tables) * state.block_size
    empty = sum(unused_cells(table, state.block_size) for table in state.tables)
    if cells:
        told.append(f"{empty:,} of {count(cells, 'slot')} in the tables empty ({share_text(empty, cells)})")
    loose = len(loose_blocks(state))
    if loose:
        told.append(f"{count(loose, 'block')} in no table")
    return "; ".join(told)


def table_text(table: TableState, block_size: int) -> str:
    return f"{count(table.num_tokens, 'token')}, {unused_cells(table, block_size):,} unused"


def describe(state: PoolState) -> str:
    """The whole pool in words."""
    told = [state.event] if state.event else []
    told.append(f"Pool of {count(state.num_blocks, 'block')} with {count(state.block_size, 'slot')} each.")
    for table in state.tables:
        empty = count(unused_cells(table, state.block_size), "slot")
        told.append(
            f"{table.request}: {count(table.num_tokens, 'token')} in {named_blocks(table.blocks)}, {empty} unused."
        )
    if not state.tables:
        told.append("No request has a table.")
    loose = loose_blocks(state)
    if loose:
        told.append(f"Allocated, in no table: {named_blocks(loose)}.")
    queue = f"{named_blocks(state.free_queue)}, the first of them next" if state.free_queue else "empty"
    told.append(f"Free queue: {queue}.")
    if state.changed:
        told.append(f"Just allocated or freed: {named_blocks(state.changed)}.")
    told.append(f"{sums(state)}.")
    return " ".join(told)
