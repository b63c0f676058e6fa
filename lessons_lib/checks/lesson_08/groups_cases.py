"""The cases of 08.2: batches of decodes, in blocks of a cache that is NaN wherever no token is."""

from dataclasses import dataclass
from random import Random

import torch

SCALE = 0.4
# Memory layouts of the caches.
PLAIN = "[num_blocks, block_size, Hkv, D]"
INTERLEAVED = "views of one tensor [num_blocks, 2, block_size, Hkv, D], in which blocks of keys and of values alternate"
HEADS_FIRST = "views of [num_blocks, Hkv, block_size, D]"


@dataclass
class Decodes:
    """One call.

    Attributes:
        q, out: [N, Hq, D]; k_cache, v_cache: [num_blocks, block_size, Hkv, D]; NaN in slots without a token.
        tables: of each sequence, its blocks and nothing past them.
        tile: keys per iteration.
        text: the case, for messages.
    """

    q: torch.Tensor
    out: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    contexts: list[int]
    tables: list[list[int]]
    tile: int
    text: str
    tolerance: float

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k_cache.shape[2]

    def heads(self, kv_head: int) -> list[int]:
        return list(range(kv_head * self.group, (kv_head + 1) * self.group))

    def own_cells(self, seq: int, kv_head: int) -> list[tuple[int, int, int]]:
        """(block, slot, KV head) of every token, in order."""
        size = self.k_cache.shape[1]
        return [(self.tables[seq][p // size], p % size, kv_head) for p in range(self.contexts[seq])]

    def elements(self, seq: int, kv_head: int) -> list[int]:
        """Offsets of the group's elements in q and out."""
        stride_seq, stride_head, _ = self.q.stride()
        starts = [seq * stride_seq + head * stride_head for head in self.heads(kv_head)]
        return [start + dim for start in starts for dim in range(self.q.shape[2])]

    def parts(self, seq: int, kv_head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of the group, its keys and values, in float64."""
        places = self.own_cells(seq, kv_head)
        keys, values = (torch.stack([cache[p] for p in places]).double() for cache in (self.k_cache, self.v_cache))
        return self.q[seq, self.heads(kv_head)].double(), keys, values

    def want(self, seq: int, kv_head: int) -> torch.Tensor:
        queries, keys, values = self.parts(seq, kv_head)
        return (queries @ keys.T * SCALE).softmax(dim=1) @ values


def make(
    contexts, q_heads, kv_heads, block_size=16, tile=16, head_dim=32, layout=PLAIN, q_gap=0, dtype=torch.float32, seed=1
) -> Decodes:
    """`q_gap`: unused elements after each query head, as if q and out were views of larger tensors."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    counts = [-(-context // block_size) for context in contexts]
    order = rng.sample(range(1, sum(counts) + 2), sum(counts))  # block 0 stays free
    tables = [[order.pop() for _ in range(count)] for count in counts]
    k_cache, v_cache = (_cache(sum(counts) + 2, block_size, kv_heads, head_dim, layout, dtype) for _ in range(2))
    for table, context in zip(tables, contexts):
        for token in range(context):
            for cache in (k_cache, v_cache):
                vectors = 2 * torch.randn(kv_heads, head_dim, generator=generator)
                cache[table[token // block_size], token % block_size] = vectors.to(dtype)
    q, out = (torch.full((len(contexts), q_heads, head_dim + q_gap), -7.0, dtype=dtype)[..., :head_dim] for _ in "qo")
    q.copy_(torch.randn(len(contexts), q_heads, head_dim, generator=generator))
    group = q_heads // kv_heads
    text = (
        f"{q_heads} query head{'s' * (q_heads > 1)} over {kv_heads} KV head{'s' * (kv_heads > 1)} (GROUP = {group}, "
        f"BLOCK_M = 16); context{'s' * (len(contexts) > 1)} {contexts}, block tables {tables}, BLOCK_SIZE = "
        f"{block_size}, BLOCK_N = {tile}, HEAD_DIM = {head_dim}"
    )
    text += f"; stride_q_head = {q.stride(1)}" if q_gap else ""
    text += f"; the caches are {layout}" if layout != PLAIN else ""
    text += "; float16." if dtype == torch.float16 else "."
    return Decodes(q, out, k_cache, v_cache, contexts, tables, tile, text, 5e-3 if dtype == torch.float16 else 1e-4)


def far_below_zero() -> Decodes:
    """Scores near −100,000: a masked score of −10,000 would be larger than all of them.

    They are equal: how a score of this size rounds would move the weights by percents.
    """
    made = make([2], 1, 1)
    made.q.fill_(100.0)
    made.k_cache[made.tables[0][0], :2] = -80.0
    made.text += " Scores near −100,000."
    return made


def small_parts() -> Decodes:
    """The first tile has nearly all the weight: what each later tile adds is lost if a sum has 16 bits."""
    made = make([704], 1, 1, block_size=128, head_dim=16, dtype=torch.float16)
    _along_first_dim(made, (0.0, 1.25), (-19.15, -1.0))
    made.text += " The first tile has nearly all the weight, and the others add a little each."
    return made


def high_maximum() -> Decodes:
    """Base-2 scores near 201.5: as a maximum of 16 bits, the first tile's is off by 0.05."""
    made = make([32], 1, 1, head_dim=16, dtype=torch.float16)
    _along_first_dim(made, (349.25, 2.0), (348.75, -2.0))
    made.text += " Scores, in base 2, near 201.5."
    return made


def _along_first_dim(made: Decodes, first: tuple[float, float], later: tuple[float, float]) -> None:
    """Only element 0 of the query counts; (its key, all values) of the first 16 tokens, and of the later ones."""
    size = made.k_cache.shape[1]
    made.q.zero_()
    made.q[..., 0] = 1.0
    for token in range(made.contexts[0]):
        key, value = first if token < 16 else later
        place = made.tables[0][token // size], token % size
        made.k_cache[place], made.v_cache[place] = key, value


def _cache(num_blocks: int, block_size: int, kv_heads: int, head_dim: int, layout: str, dtype) -> torch.Tensor:
    if layout == INTERLEAVED:
        return torch.full((num_blocks, 2, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)[:, 0]
    if layout == HEADS_FIRST:
        return torch.full((num_blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype).transpose(1, 2)
    return torch.full((num_blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)
