"""Lesson 03: the state of a pool at one moment, as plain data for pictures, and the replay of a run in blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.fragmentation import tokens_held
from lessons_lib.recording.trace import Trace
from lessons_lib.recording.words import runs_of_numbers


@dataclass(frozen=True)
class TableState:
    """One request's block table at one moment: its blocks in the order of its tokens, and the tokens stored in them."""

    request: str
    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class PoolState:
    """A pool at one moment.

    Attributes:
        num_blocks, block_size: sizes of the pool.
        free_queue: the free blocks, next to be allocated first.
        tables: the block tables, in order of arrival.
        event: the last event, in words.
        changed: blocks just allocated or freed.
    """

    num_blocks: int
    block_size: int
    free_queue: tuple[int, ...]
    tables: tuple[TableState, ...]
    event: str = ""
    changed: tuple[int, ...] = ()


def pool_state(
    pool: BlockPool, tables: dict[str, BlockTable], event: str = "", changed: tuple[int, ...] = ()
) -> PoolState:
    """Copy the current state of a pool and its tables.

    Args:
        tables: request -> its block table.
    """
    states = tuple(TableState(name, tuple(table.blocks), table.num_tokens) for name, table in tables.items())
    return PoolState(pool.num_blocks, pool.block_size, tuple(pool.free_queue), states, event, changed)


def replay(trace: Trace, pool: BlockPool, new_table: Callable[[BlockPool], BlockTable] = BlockTable) -> list[PoolState]:
    """Replay a recorded run on a pool: one state for each request that leaves, arrives or is allocated blocks.

    A step in which every new token fits into its request's last block yields a single state.

    Args:
        pool: an empty pool.
        new_table: class of the block tables; you can pass your own.

    Raises:
        OutOfBlocks: the pool is too small for the run.
    """
    tables: dict[str, BlockTable] = {}
    states = [pool_state(pool, tables, "The pool is empty; all blocks are free.")]
    for index, held in enumerate(tokens_held(trace), start=1):
        before = len(states)
        # First the tokens that fit, so that every state of a step shows them.
        for name, table in tables.items():
            if name in held and held[name] <= len(table.blocks) * pool.block_size:
                table.append(held[name] - table.num_tokens)
        for name in [name for name in tables if name not in held]:
            blocks = tuple(tables[name].blocks)
            tables.pop(name).release()
            event = f"Step {index}: {name} has finished and frees {named_blocks(blocks)}."
            states.append(pool_state(pool, tables, event, blocks))
        for name, tokens in held.items():
            doing = "grows and takes" if name in tables else "arrives and takes"
            if tokens and (name not in tables or tokens > tables[name].num_tokens):
                table = tables.setdefault(name, new_table(pool))
                had = len(table.blocks)
                table.append(tokens - table.num_tokens)
                taken = tuple(table.blocks[had:])
                count = f"{tokens} token{'s' if tokens != 1 else ''}"
                event = f"Step {index}: {name}, now {count}, {doing} {named_blocks(taken)}."
                states.append(pool_state(pool, tables, event, taken))
        if len(states) == before:
            event = f"Step {index}: every new token fits into a block that its request has."
            states.append(pool_state(pool, tables, event))
    return states


def named_blocks(blocks: Sequence[int]) -> str:
    """Blocks in words, in order: "block 7", "blocks 3, 0 to 8", "no block". Runs of four or more are shortened."""
    words: list[str] = []
    for first, last in runs_of_numbers(blocks):
        words += [f"{first} to {last}"] if last > first + 2 else map(str, range(first, last + 1))
    return f"block{'s' if len(blocks) != 1 else ''} {', '.join(words)}" if words else "no block"
