"""Lesson 03: requests served from one pool of blocks, counted in steps. No model computes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lessons_lib.kv_cache.block_pool import BlockPool, BlockTable, OutOfBlocks, blocks_for


@dataclass(eq=False)
class CachedRequest:
    """A request, as the cache sees it.

    Attributes:
        id: its name.
        prompt_tokens: length of the prompt.
        answer_tokens: length of the answer. The server doesn't know it in advance.
        table: its block table.
    """

    id: str
    prompt_tokens: int
    answer_tokens: int
    table: BlockTable

    @property
    def tokens_in_the_end(self) -> int:
        """What its table will hold. The last token of an answer is never stored."""
        return self.prompt_tokens + self.answer_tokens - 1

    @property
    def finished(self) -> bool:
        """Whether it has its whole answer."""
        return self.table.num_tokens == self.tokens_in_the_end


def step_in_blocks(waiting: "deque[CachedRequest]", running: "list[CachedRequest]", pool: "BlockPool") -> None:
    """One step: finished requests leave, running ones grow by one token each, waiting ones are admitted.

    Args:
        waiting: queue of the requests whose tables are empty.
        running: list of the admitted requests, in order of admission. Every change is made in place.
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
    """The step, but a request is admitted only if all running ones and itself have room for their whole answers.

    Args:
        waiting, running: see `step_in_blocks`.
        pool: has blocks of 1, so that nothing is left empty but what was set aside.
    """
    reserved = sum(request.tokens_in_the_end for request in running if not request.finished)
    admitted: deque[CachedRequest] = deque()
    while waiting and reserved + waiting[0].tokens_in_the_end <= pool.num_blocks:
        reserved += waiting[0].tokens_in_the_end
        admitted.append(waiting.popleft())
    step_in_blocks(admitted, running, pool)


@dataclass(frozen=True)
class AdmissionView:
    """What an admission rule knows about a request.

    Attributes:
        prompt_tokens: length of the prompt.
        max_new_tokens: the most tokens that its answer may have. Most answers are shorter.
        num_tokens: how many tokens it holds now; 0 if it is waiting.
        num_blocks: in how many blocks.
    """

    prompt_tokens: int
    max_new_tokens: int
    num_tokens: int
    num_blocks: int


def may_admit(request: "AdmissionView", running: "list[AdmissionView]", num_free: int, block_size: int) -> bool:
    """Whether the first waiting request is admitted now.

    Args:
        request: has `prompt_tokens` and `max_new_tokens`, the most tokens that its answer may have.
        running: list of the running requests. Each also has `num_tokens` and `num_blocks`, what it holds now.
        num_free: number of free blocks.
        block_size: slots per block.
    """
    soon = 2 * len(running)  # blocks that the running requests will need, more or less
    return blocks_for(request.prompt_tokens, block_size) + soon <= num_free


@dataclass(frozen=True)
class CacheStep:
    """The cache after one step.

    Attributes:
        running: how many requests are running.
        waiting: how many are in the queue.
        tokens: how many tokens their tables hold.
        restarted: how many requests had to give up their blocks.
        tokens_lost: how many tokens these held: they have to be computed again.
    """

    running: int
    waiting: int
    tokens: int
    restarted: int
    tokens_lost: int


class NeverDone(RuntimeError):
    """A step changed nothing although requests are unfinished."""


def serve_in_blocks(
    lengths: list[tuple[int, int]],
    pool: BlockPool,
    new_table: Callable[[BlockPool], BlockTable] = BlockTable,
    step: Callable[["deque[CachedRequest]", "list[CachedRequest]", BlockPool], None] = step_in_blocks,
) -> list[CacheStep]:
    """Serve requests that all arrive at the start, until each has its answer.

    Args:
        lengths: (prompt tokens, answer tokens) of each request.
        new_table, step: yours if you like.

    Raises:
        NeverDone: a step changed nothing, so the next one wouldn't either.
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
            raise NeverDone(f"a step changed nothing, with {len(waiting)} requests waiting and {len(running)} running.")
        lost = [before[request] for request in unfinished if request.table.num_tokens <= before[request]]
        steps.append(CacheStep(len(running), len(waiting), sum(after.values()), len(lost), sum(lost)))
    return steps
