"""A block pool in words: hover texts, sums, and the alternative text of its picture."""

from dataclasses import dataclass

from lessons_lib.recording.pool_states import PoolState, TableState
from lessons_lib.recording.words import count, numbered, span
from lessons_lib.viz.drawing.svg import share_text


@dataclass(frozen=True)
class Holding:
    """A block in a request's table: the position of its first cell, and how many cells contain a token."""

    request: str
    start: int
    tokens: int


def holding(table: TableState, index: int, block_size: int) -> Holding:
    start = index * block_size
    return Holding(table.request, start, min(max(table.num_tokens - start, 0), block_size))


def holdings(state: PoolState) -> dict[int, list[Holding]]:
    """Block -> the tables that list it: one of them, unless the tables are wrong."""
    held: dict[int, list[Holding]] = {}
    for table in state.tables:
        for index, block in enumerate(table.blocks):
            held.setdefault(block, []).append(holding(table, index, state.block_size))
    return held


def block_title(block: int, held: Holding | None, block_size: int, free: str = "free") -> str:
    """The hover text of a block; `free` says what it is without an owner."""
    if held is None:
        return f"block {block}: {free}"
    empty = block_size - held.tokens
    stored = span("position", held.start, held.tokens) if held.tokens else "no token yet"
    return f"block {block}: {held.request}, {stored}" + (f", {count(empty, 'slot')} unused" if empty else "")


def cell_title(block: int, offset: int, held: Holding, block_size: int, use: str = "") -> str:
    """The hover text of one cell of a block in use; `use` says what is done with its token."""
    where = f"slot {block * block_size + offset}: block {block}, offset {offset}; {held.request}, "
    if offset >= held.tokens:
        return f"{where}unused, kept for position {held.start + offset}"
    return f"{where}position {held.start + offset}{use}"


def unused_cells(table: TableState, block_size: int) -> int:
    """Cells of its blocks without a token."""
    return max(len(table.blocks) * block_size - table.num_tokens, 0)


def sums(state: PoolState) -> str:
    """How much of the pool is allocated, and how much of the tables' blocks is empty."""
    used = state.num_blocks - len(set(state.free_queue))
    told = [f"{used:,} of {count(state.num_blocks, 'block')} allocated ({share_text(used, state.num_blocks)})"]
    cells = sum(len(table.blocks) for table in state.tables) * state.block_size
    empty = sum(unused_cells(table, state.block_size) for table in state.tables)
    if cells:
        told.append(f"{empty:,} of {count(cells, 'slot')} in the tables empty ({share_text(empty, cells)})")
    if loose := state.num_blocks - len({*holdings(state), *state.free_queue}):
        told.append(f"{count(loose, 'block')} in no table")
    return "; ".join(told)


def table_text(table: TableState, block_size: int) -> str:
    return f"{count(table.num_tokens, 'token')}, {unused_cells(table, block_size):,} unused"


def describe(state: PoolState) -> str:
    """The whole pool in words."""
    told = [state.event] if state.event else []
    told.append(f"Pool of {count(state.num_blocks, 'block')} with {count(state.block_size, 'slot')} each.")
    for table in state.tables:
        told.append(f"{table.request}: {numbered('block', table.blocks)}; {table_text(table, state.block_size)}.")
    queue = f"{numbered('block', state.free_queue)}, the first of them next" if state.free_queue else "empty"
    return " ".join([*told, f"Free queue: {queue}. {sums(state)}."])
