"""The stretch task of lesson 08: how few bytes can a decode move? Every launch is recorded, and its bytes counted."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lessons_lib.checks.kernels import close
from lessons_lib.kernels.group_decode import decode_groups, decode_groups_kernel
from lessons_lib.kernels.simple_paged import decode_heads, decode_heads_kernel
from lessons_lib.recording.kernel_accesses import KernelRecording, record_kernel
from lessons_lib.viz.tables.table import Table

BLOCK_SIZE, HEAD_DIM, Q_HEADS, KV_HEADS = 16, 32, 4, 2
KINDS = ("load", "store")
# (blocks that all sequences share, tokens of each sequence after them)
BATCHES = ((5, (5, 16, 33)), (0, (20, 48)), (2, (9, 1)))


@dataclass
class CountedBatch:
    """Decodes whose keys and values only a counted kernel can read: between launches the caches hold NaN.

    Attributes:
        q: [N, Hq, D]; block_tables: int32 [N, M]; context_lens: int32 [N].
        k_cache, v_cache: [num_blocks, block_size, Hkv, D].
        want: [N, Hq, D], dense attention.
        recordings: of all launches.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    want: torch.Tensor
    recordings: list[KernelRecording] = field(default_factory=list)

    @classmethod
    def of(cls, shared: int, rest: tuple[int, ...], seed: int) -> "CountedBatch":
        generator = torch.Generator().manual_seed(seed)
        own = [-(-tokens // BLOCK_SIZE) for tokens in rest]
        num_blocks = shared + sum(own)
        shuffled = torch.randperm(num_blocks, generator=generator)
        tables = torch.zeros(len(rest), shared + max(own), dtype=torch.int32)
        for seq, count in enumerate(own):
            first = shared + sum(own[:seq])
            tables[seq, : shared + count] = torch.cat([shuffled[:shared], shuffled[first : first + count]])
        lens = torch.tensor([shared * BLOCK_SIZE + tokens for tokens in rest], dtype=torch.int32)
        shape = (num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        k_cache, v_cache = (torch.randn(shape, generator=generator) for _ in "kv")
        q = torch.randn(len(rest), Q_HEADS, HEAD_DIM, generator=generator)
        want = torch.empty_like(q)
        for seq, count in enumerate(lens.tolist()):
            keys, values = (cache[tables[seq].long()].flatten(0, 1)[:count] for cache in (k_cache, v_cache))
            keys, values = (x.repeat_interleave(Q_HEADS // KV_HEADS, dim=1) for x in (keys, values))
            weights = (torch.einsum("hd,nhd->hn", q[seq], keys) * HEAD_DIM**-0.5).softmax(dim=1)
            want[seq] = torch.einsum("hn,nhd->hd", weights, values)
        return cls(q, k_cache, v_cache, tables, lens, want)

    def bytes_of(self, decode: Callable) -> int:
        """Bytes that all launches of `decode` load and store.

        Raises:
            ValueError: the attention is wrong, or depends on an order that a GPU leaves open.
            Whatever `decode` raises.
        """
        self.recordings.clear()
        caches = (self.k_cache, self.v_cache)
        kept = [cache.clone() for cache in caches]

        class Counted:
            """Stands in for a kernel: `counted(kernel)[grid](...)` runs it and counts its bytes."""

            def __init__(counted, kernel):
                counted.kernel = kernel

            def __getitem__(counted, grid):
                def launch(*args, **constants):
                    for cache, content in zip(caches, kept):
                        cache.copy_(content)
                    try:
                        self.recordings.append(record_kernel(counted.kernel, grid, *args, **constants))
                    finally:
                        for cache in caches:
                            cache.fill_(float("nan"))

                return launch

        for cache in caches:
            cache.fill_(float("nan"))
        try:
            tables, lens = self.block_tables.clone(), self.context_lens.clone()
            got = decode(Counted, self.q.clone(), *caches, tables, lens, HEAD_DIM**-0.5)
        finally:
            for cache, content in zip(caches, kept):
                cache.copy_(content)
        if not isinstance(got, torch.Tensor) or got.shape != self.want.shape or not close(got, self.want, 1e-3):
            raise ValueError("the attention is wrong")
        if race := next((recording.race for recording in self.recordings if recording.race), None):
            raise ValueError(f"{race}. {race.lines}")
        return sum(r.bytes_of(program, kind) for r in self.recordings for program in r.programs for kind in KINDS)


def by_lesson_07(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
    return decode_heads(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=counted(decode_heads_kernel))


def by_groups(counted, q, k_cache, v_cache, block_tables, context_lens, scale):
    return decode_groups(q, k_cache, v_cache, block_tables, context_lens, scale, kernel=counted(decode_groups_kernel))


@functools.cache
def course_scores() -> dict[str, list[int]]:
    """Bytes of each batch, for the course's kernels."""
    batches = [CountedBatch.of(shared, rest, seed) for seed, (shared, rest) in enumerate(BATCHES)]
    ways = {"lesson 07's kernel": by_lesson_07, "one program per group": by_groups}
    return {name: [batch.bytes_of(way) for batch in batches] for name, way in ways.items()}


def bytes_scoreboard(decode: Callable) -> Table:
    """The learner's way beside the course's kernels, in bytes over all batches.

    Args:
        decode: (counted, q, k_cache, v_cache, block_tables, context_lens, scale) -> tensor [N, Hq, D]. A kernel wrapped
            in `counted` is recorded; keys and values can be read by such a kernel only.
    """
    batches = [CountedBatch.of(shared, rest, seed) for seed, (shared, rest) in enumerate(BATCHES)]
    scores = {name: list(counts) for name, counts in course_scores().items()}
    try:
        scores["yours"] = [batch.bytes_of(decode) for batch in batches]
        share = sum(scores["yours"]) / sum(scores["one program per group"])
        verdict = f"Yours moves {share:.0%} of the bytes of one program per group."
    except NotImplementedError:
        verdict = "Your kernel isn't written yet."
    except Exception as error:
        verdict = f"Yours raised {type(error).__name__}: {error}"
    columns = [f"{len(rest)} sequences, {shared} shared blocks" for shared, rest in BATCHES]
    rows = [[name, *counts, sum(counts)] for name, counts in scores.items()]
    return Table(columns=["bytes loaded and stored", *columns, "all"], rows=rows, verdict=verdict)
