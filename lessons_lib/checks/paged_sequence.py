"""A sequence in blocks of a KV cache, for the checks of kernels that read it (lessons 07 and 08)."""

from dataclasses import dataclass
from functools import cached_property
from random import Random

import torch

INTERLEAVED = "views in which blocks of keys and of values alternate"
HEADS_FIRST = "views of one KV head of two, [num_blocks, Hkv, block_size, D]"
SPREAD = "views of one KV head of two, [num_blocks, block_size, Hkv, D]"
# (first element of a key; all elements of a value) of the first 16 tokens, and of later ones
EXTREMES = {
    "near −100,000": ((-2500.0, 1.0), (-2500.0, -1.0)),
    "near 210": ((349.25, 2.0), (348.75, -2.0)),
    "of which the first tile's have nearly all the weight": ((0.0, 1.25), (-19.15, -1.0)),
    "that are all 0, and values of 5,000": ((0.0, 5000.0), (0.0, 5000.0)),
    "that fall from 300 to 0 after the first block": ((1000.0, 1.0), (0.0, -1.0)),
}


@dataclass(frozen=True)
class PagedSequence:
    """The keys and values of one sequence, and queries. What no token fills is NaN.

    Attributes:
        rows: queries. layout: of the caches, if they are views.
        scores: "" for random ones, or a key of `EXTREMES`.
    """

    tokens: int
    rows: int = 1
    block_size: int = 16
    dim: int = 16
    layout: str = ""
    dtype: torch.dtype = torch.float32
    scores: str = ""

    @property
    def table(self) -> list[int]:
        """Blocks, in no order; block 0 and another one stay free."""
        count = -(-self.tokens // self.block_size)
        return Random(self.tokens).sample(range(1, count + 2), count)

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows, D], keys and values [num_blocks, block_size, D]."""
        draw = torch.Generator().manual_seed(self.tokens)
        caches = self._caches()
        queries = torch.randn(self.rows, self.dim, generator=draw)
        if self.scores:
            queries = {"near −100,000": 100.0, "near 210": 1.5}.get(self.scores, 1.0) * torch.eye(1, self.dim)
        for token in range(self.tokens):
            place = self.table[token // self.block_size], token % self.block_size
            for cache in caches:
                cache[place] = 2 * torch.randn(self.dim, generator=draw)
            if self.scores:
                key, value = EXTREMES[self.scores][token >= 16]
                caches[0][place], caches[1][place] = key * torch.eye(1, self.dim)[0], value
        return queries.to(self.dtype), *caches

    def _caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = [len(self.table) + 2, self.block_size, self.dim]
        nan, half = float("nan"), self.dtype
        if self.layout == INTERLEAVED:
            pool = torch.full([shape[0], 2, *shape[1:]], nan, dtype=half)
            return pool[:, 0], pool[:, 1]
        axis = {HEADS_FIRST: 1, SPREAD: 2}.get(self.layout)
        if axis:
            return tuple(torch.full([*shape[:axis], 2, *shape[axis:]], nan, dtype=half).select(axis, 1) for _ in "kv")
        return tuple(torch.full(shape, nan, dtype=half) for _ in "kv")

    def attention(self, start: int, end: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Over the keys at positions `start` to `end` - 1: the output [rows, D], and the log-sum-exp [rows]."""
        queries, *caches = self.tensors
        places = [(self.table[p // self.block_size], p % self.block_size) for p in range(start, end)]
        keys, values = (torch.stack([cache[place] for place in places]).double() for cache in caches)
        scores = queries.double() @ keys.T * scale
        return scores.softmax(dim=1) @ values, scores.logsumexp(dim=1)

    @property
    def told(self) -> str:
        text = f"block table {self.table}, BLOCK_SIZE = {self.block_size}, head size {self.dim}"
        text += f"; the caches are {self.layout}" if self.layout else ""
        text += "; float16" if self.dtype == torch.float16 else ""
        text += f"; scores {self.scores}" if self.scores else ""
        return f"{text}. Slots without a token hold NaN."


def far_block(slots: int, dim: int) -> tuple[torch.Tensor, int] | None:
    """A cache in which a block's offset doesn't fit into 32 bits, and this block; only it is touched. None if there is
    not enough address space on this machine."""
    block = 2**31 // (slots * dim) + 2
    try:
        cache = torch.empty(block + 1, slots, dim, dtype=torch.float16)
    except RuntimeError:
        return None
    cache[block] = 1.0
    return cache, block
