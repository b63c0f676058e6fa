"""Lesson 03: requests served from one pool of blocks, counted in steps, without a model."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_table import BlockTable


@dataclass(eq=False)
class CachedRequest:
    """A request, as the cache sees it: the lengths of its prompt and its answer, and its block table. The server
    doesn't know the length of the answer in advance."""

    id: str
    prompt_tokens: int
    answer_tokens: int
    table: BlockTable

    @property
    def tokens_in_the_end(self) -> int:
        """Final number of tokens in the table. An answer's last token is never stored."""
        return self.prompt_tokens + self.answer_tokens - 1

    @property
    def finished(self) -> bool:
        """True once the whole answer is generated."""
        return self.table.num_tokens == self.tokens_in_the_end


def step_in_blocks(waiting: "deque[CachedRequest]", running: "list[CachedRequest]", pool: "BlockPool") -> None:
    """One step: finished requests leave, running ones grow by one token each, waiting ones are admitted.

    Args:
        waiting: queue of requests with empty tables.
        running: list of the admitted requests, in order of admission. Both are changed in place.
        pool: the pool of their tables.
    """
    for request in [request for request in running if request.finished]:
        request.table.release()
        running.remove(request)
    grown = 0
    while grown < len(running):
        try:
            running[grown].table.append()
            grown += 1
        except OutOfBlocks:
            last = running.pop()
            last.table.release()
            waiting.appendleft(last)
    while waiting and blocks_for(waiting[0].prompt_tokens, pool.block_size) <= len(pool.free_queue):
        request = waiting.popleft()
        request.table.append(request.prompt_tokens)
        running.append(request)


def step_with_oracle(waiting: "deque[CachedRequest]", running: "list[CachedRequest]", pool: "BlockPool") -> None:
    """The same step, but admit a request only if its whole answer and all running ones' fit.

    Args:
        waiting, running: see `step_in_blocks`.
        pool: with blocks of 1 token, so that only reserved slots are empty.
    """
    reserved = sum(request.tokens_in_the_end for request in running if not request.finished)
    admitted: deque[CachedRequest] = deque()
    while waiting and reserved + waiting[0].tokens_in_the_end <= pool.num_blocks:
        reserved += waiting[0].tokens_in_the_end
        admitted.append(waiting.popleft())
    step_in_blocks(admitted, running, pool)


@dataclass(frozen=True)
class AdmissionView:
    """A request, as an admission rule sees it.

    Attributes:
        max_new_tokens: token limit of the answer. Most answers are shorter.
        num_tokens, num_blocks: tokens in the cache now, and their blocks; 0 if waiting.
    """

    prompt_tokens: int
    max_new_tokens: int
    num_tokens: int
    num_blocks: int


def may_admit(request: "AdmissionView", running: "list[AdmissionView]", num_free: int, block_size: int) -> bool:
    """Decide whether to admit the first waiting request now.

    Args:
        request: has `prompt_tokens` and `max_new_tokens`, the token limit of its answer.
        running: list of the running requests. Each also has `num_tokens` and `num_blocks`, its current cache use.
        num_free: number of free blocks.
        block_size: slots per block.
    """
    soon = 2 * len(running)  # rough estimate of the blocks that running requests will need
    return blocks_for(request.prompt_tokens, block_size) + soon <= num_free


@dataclass(frozen=True)
class CacheStep:
    """The cache after one step: running and waiting requests, tokens in all tables, and requests that lost their
    blocks."""

    running: int
    waiting: int
    tokens: int
    restarted: int


def serve_in_blocks(
    lengths: list[tuple[int, int]],
    pool: BlockPool,
    new_table: Callable[[BlockPool], BlockTable] = BlockTable,
    step: Callable[["deque[CachedRequest]", "list[CachedRequest]", BlockPool], None] = step_in_blocks,
) -> list[CacheStep]:
    """Serve requests, of (prompt tokens, answer tokens) each, that all arrive at the start, until all have finished.

    Raises:
        RuntimeError: a step changed nothing.
    """
    waiting = deque(
        CachedRequest(str(index), prompt, answer, new_table(pool)) for index, (prompt, answer) in enumerate(lengths)
    )
    running: list[CachedRequest] = []
    steps = []
    while waiting or not all(request.finished for request in running):
        before = {request: request.table.num_tokens for request in running}
        unfinished = [request for request in running if not request.finished]
        step(waiting, running, pool)
        after = {request: request.table.num_tokens for request in running}
        if after == before:
            raise RuntimeError(f"a step changed nothing, with {len(waiting)} waiting and {len(running)} running.")
        restarted = sum(request.table.num_tokens <= before[request] for request in unfinished)
        steps.append(CacheStep(len(running), len(waiting), sum(after.values()), restarted))
    return steps
