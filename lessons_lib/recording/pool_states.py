"""Lessons 03, 06 and 11: a pool at one moment, what a pass writes to it, and its free queue, as plain data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lessons_lib.batching.paged_batching import PagedBatch
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.prefix_cache import SharedBlockPool
from lessons_lib.recording.trace import Trace, tokens_held
from lessons_lib.recording.words import count, numbered


@dataclass(frozen=True)
class TableState:
    """One request's block table at one moment: its blocks in the order of its tokens, and the tokens stored in them."""

    request: str
    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class PoolState:
    """A pool at one moment: its free queue begins with the next block; `changed` were just allocated or freed."""

    num_blocks: int
    block_size: int
    free_queue: tuple[int, ...]
    tables: tuple[TableState, ...]
    event: str = ""
    changed: tuple[int, ...] = ()


def pool_state(
    pool: BlockPool, tables: dict[str, BlockTable], event: str = "", changed: tuple[int, ...] = ()
) -> PoolState:
    """Copy the current state of a pool and its tables: request -> its block table."""
    states = tuple(TableState(name, tuple(table.blocks), table.num_tokens) for name, table in tables.items())
    return PoolState(pool.num_blocks, pool.block_size, tuple(pool.free_queue), states, event, changed)


def replay(trace: Trace, pool: BlockPool, new_table: Callable[[BlockPool], BlockTable] = BlockTable) -> list[PoolState]:
    """Replay a recorded run on an empty pool: one state for each request that leaves, arrives or is allocated blocks.

    A step in which every new token fits into its request's last block yields a single state. `new_table` makes the
    block tables; you can pass your own. OutOfBlocks: the pool is too small for the run.
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
            event = f"Step {index}: {name} has finished and frees {numbered('block', blocks)}."
            states.append(pool_state(pool, tables, event, blocks))
        for name, tokens in held.items():
            doing = "grows and takes" if name in tables else "arrives and takes"
            if tokens and (name not in tables or tokens > tables[name].num_tokens):
                table = tables.setdefault(name, new_table(pool))
                had = len(table.blocks)
                table.append(tokens - table.num_tokens)
                taken = tuple(table.blocks[had:])
                event = f"Step {index}: {name}, now {count(tokens, 'token')}, {doing} {numbered('block', taken)}."
                states.append(pool_state(pool, tables, event, taken))
        if len(states) == before:
            event = f"Step {index}: every new token fits into a block that its request has."
            states.append(pool_state(pool, tables, event))
    return states


@dataclass(frozen=True)
class PagedStep:
    """The cache slots of one packed batch. A cache slot is block x block_size + offset.

    Attributes:
        tables: request -> its blocks in token order; requests in the order of the packed batch.
        written: request -> the cache slots of its new tokens, in order.
        context_lens: request -> its tokens after the pass; its last new token attends to them all.
    """

    num_blocks: int
    block_size: int
    tables: dict[str, tuple[int, ...]]
    written: dict[str, tuple[int, ...]]
    context_lens: dict[str, int]

    @property
    def pool(self) -> PoolState:
        """The pool after the pass, as far as these tables show it."""
        tables = tuple(TableState(name, blocks, self.context_lens[name]) for name, blocks in self.tables.items())
        return PoolState(self.num_blocks, self.block_size, (), tables)


@contextmanager
def watch_paged_passes(batch: PagedBatch) -> Iterator[list[PagedStep]]:
    """Context manager that records the cache slots written and read by each forward pass of a batch.

    >>> with watch_paged_passes(batch) as passes:
    ...     paged_step(batch)
    >>> passes[0].written
    """
    passes: list[PagedStep] = []

    def note(*_: object) -> None:
        tables, size = [(request, batch.caches[request.id]) for request in batch.running], batch.pool.block_size
        written = {
            request.id: tuple(
                table.blocks[position // size] * size + position % size
                for position in range(request.num_computed_tokens, table.num_tokens)
            )
            for request, table in tables
        }
        blocks = {request.id: tuple(table.blocks) for request, table in tables}
        context_lens = {request.id: table.num_tokens for request, table in tables}
        passes.append(PagedStep(batch.pool.num_blocks, size, blocks, written, context_lens))

    hook = batch.model.register_forward_pre_hook(note)
    try:
        yield passes
    finally:
        hook.remove()


@dataclass(frozen=True)
class QueueState:
    """A shared pool at one moment. `ref_count`: block -> the sequences that use it, counted; `hash_names`: block -> a
    short name for its hash, for blocks that have one."""

    event: str
    free_queue: tuple[int, ...]
    ref_count: dict[int, int]
    hash_names: dict[int, str]


def queue_state(pool: SharedBlockPool, event: str, names: dict[bytes, str] | None = None) -> QueueState:
    """Copy the current state of a pool; `names`: hash -> a short name for it, or None if the pool knows no hashes."""
    hashes = getattr(pool, "block_to_hash", {}) if names else {}
    hash_names = {block: (names or {})[block_hash] for block, block_hash in hashes.items()}
    return QueueState(event, tuple(pool.free_queue), dict(sorted(pool.ref_count.items())), hash_names)
