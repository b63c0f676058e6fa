"""The stretch task of lesson 08: how few bytes can a decode move? Every launch is recorded, and its bytes counted."""

import functools
from collections.abc import Callable

import torch

from lessons_lib.checks.kernels import close
from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.kernels.group_decode import decode_groups, decode_groups_kernel
from lessons_lib.kernels.simple_paged import decode_heads, decode_heads_kernel
from lessons_lib.recording.kernel_accesses import record_kernel
from lessons_lib.viz.tables.table import Table

BLOCK_SIZE, HEAD_DIM, Q_HEADS, KV_HEADS = 16, 32, 4, 2
KINDS = ("load", "store")
# (blocks that all sequences share, tokens of each sequence after them)
BATCHES = ((5, (5, 16, 33)), (0, (20, 48)), (2, (9, 1)))


class CountedBatch:
    """Decodes whose keys and values only a counted kernel can read: between launches the caches hold NaN.

    Args:
        shared: blocks that all sequences share.
        rest: tokens of each sequence after them.
    """

    def __init__(self, shared: int, rest: tuple[int, ...], seed: int):
        generator = torch.Generator().manual_seed(seed)
        own = [-(-tokens // BLOCK_SIZE) for tokens in rest]
        num_blocks = shared + sum(own)
        shuffled = torch.randperm(num_blocks, generator=generator)
        self.tables = torch.zeros(len(rest), shared + max(own), dtype=torch.int32)
        for seq, count in enumerate(own):
            first = shared + sum(own[:seq])
            self.tables[seq, : shared + count] = torch.cat([shuffled[:shared], shuffled[first : first + count]])
        self.lens = torch.tensor([shared * BLOCK_SIZE + tokens for tokens in rest], dtype=torch.int32)
        shape = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        self.caches = [torch.randn(shape, generator=generator) for _ in "kv"]
        self.q = torch.randn(len(rest), Q_HEADS, HEAD_DIM, generator=generator)
        self.want = torch.empty_like(self.q)
        for seq, count in enumerate(self.lens.tolist()):
            keys, values = (cache[self.tables[seq].long()].flatten(0, 1)[:count] for cache in self.caches)
            keys, values = (x.repeat_interleave(Q_HEADS // KV_HEADS, dim=1) for x in (keys, values))
            weights = (torch.einsum("hd,nhd->hn", self.q[seq], keys) * HEAD_DIM**-0.5).softmax(dim=1)
            self.want[seq] = torch.einsum("hn,nhd->hd", weights, values)

    def bytes_of(self, decode: Callable) -> int:
        """Bytes that all launches of `decode` load and store.

        Raises:
            ValueError: the attention is wrong, or depends on an order that a GPU leaves open.
            Whatever `decode` raises.
        """
        recordings = []
        caches = [torch.full_like(content, float("nan")) for content in self.caches]

        class Counted:
            """Stands in for a kernel: `counted(kernel)[grid](...)` runs it and counts its bytes."""

            def __init__(counted, kernel):
                counted.kernel = kernel

            def __getitem__(counted, grid):
                def launch(*args, **constants):
                    for cache, content in zip(caches, self.caches):
                        cache.copy_(content)
                    try:
                        recordings.append(record_kernel(counted.kernel, grid, *args, **constants))
                    finally:
                        for cache in caches:
                            cache.fill_(float("nan"))

                return launch

        got = decode(Counted, self.q.clone(), *caches, self.tables.clone(), self.lens.clone(), HEAD_DIM**-0.5)
        if not isinstance(got, torch.Tensor) or got.shape != self.want.shape or not close(got, self.want, 1e-3):
            raise ValueError("the attention is wrong")
        if race := next((recording.race for recording in recordings if recording.race), None):
            raise ValueError(f"{race}. {race.lines}")
        return sum(r.bytes_of(program, kind) for r in recordings for program in r.programs for kind in KINDS)


def by_lesson_07(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
    return decode_heads(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=counted(decode_heads_kernel))


def by_groups(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
    return decode_groups(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=counted(decode_groups_kernel))


def counted_bytes(decode: Callable) -> list[int]:
    """Bytes of each batch, and of all."""
    counts = [CountedBatch(shared, rest, seed).bytes_of(decode) for seed, (shared, rest) in enumerate(BATCHES)]
    return [*counts, sum(counts)]


@functools.cache
def course_scores() -> dict[str, list[int]]:
    ways = {"lesson 07's kernel": by_lesson_07, "one program per group": by_groups}
    return {name: counted_bytes(way) for name, way in ways.items()}


def bytes_scoreboard(decode: Callable) -> Table:
    """Score a way to decode, in bytes over all batches.

    Args:
        decode: (counted, q, k_cache, v_cache, block_tables, context_lens, scale) -> tensor [N, Hq, D]. A kernel wrapped
            in `counted` is recorded; keys and values can be read by such a kernel only.
    """

    def yours() -> Scored:
        try:
            counts = counted_bytes(decode)
        except NotImplementedError:
            return [None] * (len(BATCHES) + 1), "Your kernel isn't written yet."
        share = counts[-1] / course_scores()["one program per group"][-1]
        return counts, f"Yours moves {share:.0%} of the bytes of one program per group."

    batches = [f"{len(rest)} sequences, {shared} shared blocks" for shared, rest in BATCHES]
    return scoreboard(["bytes loaded and stored", *batches, "all"], {**course_scores(), "yours": yours})
