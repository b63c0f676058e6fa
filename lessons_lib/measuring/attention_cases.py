"""The benchmark's cases: shapes of Llama and Qwen2 models, blocks of 16 slots scattered over the pool."""

import random
from dataclasses import dataclass, field

import torch

from lessons_lib.attention.packing import PackedBatch, pack
from lessons_lib.attention.paged_attention import plan_torch

L2_BYTES = 50 * 2**20  # the L2 cache of an H100 or H200; others have less


@dataclass(frozen=True)
class Case:
    """Attention of one layer in one forward pass.

    Attributes:
        name: name in tables.
        kind: "decode", "mixed" or "prefill".
        q_heads, kv_heads, head_dim: the model's.
        q_lens: new tokens of each sequence. context_lens: tokens of each sequence, the new ones included.
        block_size: slots per block.
    """

    name: str
    kind: str
    q_heads: int
    kv_heads: int
    head_dim: int
    q_lens: tuple[int, ...] = field(repr=False)
    context_lens: tuple[int, ...] = field(repr=False)
    block_size: int = 16

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in bfloat16."""
        return 2 * 2 * self.kv_heads * self.head_dim

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values, in bfloat16."""
        return sum(self.context_lens) * self.token_bytes

    @property
    def is_even(self) -> bool:
        """True if all sequences have the same lengths."""
        return len(set(self.q_lens)) == len(set(self.context_lens)) == 1


def decode_case(heads: tuple[int, int, int], contexts: list[int], what: str) -> Case:
    return Case(
        f"decode {heads[0]},{heads[1]},{heads[2]}; {what}", "decode", *heads, (1,) * len(contexts), tuple(contexts)
    )


def _cases() -> list[Case]:
    rng = random.Random(8)
    ragged = [rng.randint(100, 8000) for _ in range(64)]
    rng = random.Random(0)
    llama, qwen = (32, 8, 128), (14, 2, 64)
    prompts = [rng.randint(512, 2048) for _ in range(8)]
    running = [rng.randint(100, 8000) for _ in range(120)]
    return [
        decode_case(llama, [8192], "batch 1, context 8192"),
        decode_case(llama, [8192] * 8, "batch 8, context 8192"),
        decode_case(llama, [2048] * 64, "batch 64, context 2048"),
        decode_case(llama, ragged, "batch 64, ragged 100–8000"),
        decode_case(llama, [8192] * 256, "batch 256, context 8192"),
        decode_case(qwen, [2048] * 64, "batch 64, context 2048"),
        decode_case(qwen, [8192] * 256, "batch 256, context 8192"),
        Case(
            "mixed 32,8,128; 8 prefills of 512–2048, 120 decodes of 100–8000",
            "mixed",
            *llama,
            (*prompts, *[1] * 120),
            (*prompts, *running),
        ),
        Case("prefill 32,8,128; 4 × 4096", "prefill", *llama, (4096,) * 4, (4096,) * 4),
        Case("prefill 14,2,64; 4 × 4096", "prefill", *qwen, (4096,) * 4, (4096,) * 4),
        Case("prefill 14,2,64; 64 × 100", "prefill", *qwen, (100,) * 64, (100,) * 64),
    ]


CASES = _cases()


@dataclass
class Inputs:
    """Tensors of a case, on a device.

    Attributes:
        q: [T, Hq, D]. k_cache, v_cache: [num_blocks, block_size, Hkv, D].
        cu_seqlens_q: int32 [N + 1]. context_lens: int32 [N].
        tables: several block tables, each int32 [N, M] over its own blocks. Cycling through them keeps the keys out of
            the GPU's L2 cache.
        packed: the packed batch.
        scale: factor of the scores.
    """

    case: Case
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    tables: list[torch.Tensor]
    packed: PackedBatch
    scale: float

    def reference(self) -> torch.Tensor:
        """Attention over the first block table, one sequence after another, in float32: [T, Hq, D]."""
        out = []
        for index, queries in enumerate(self.q.split(list(self.case.q_lens))):
            one = pack([[0] * len(queries)], [self.case.context_lens[index] - len(queries)]).to(self.q.device)
            blocks = self.tables[0][index : index + 1].long()
            own = blocks[0, : -(-self.case.context_lens[index] // self.case.block_size)]
            keys, values = self.k_cache[own].float(), self.v_cache[own].float()
            in_order = torch.arange(len(own), device=self.q.device)[None]
            out.append(plan_torch(one, in_order, self.case.block_size)(queries.float(), keys, values, self.scale))
        return torch.cat(out)


def make_inputs(case: Case, device="cuda", dtype=torch.bfloat16, rotations: int | None = None) -> Inputs:
    """Random inputs; by default, so many block tables that four times the L2 cache is read between uses of a key."""
    generator = torch.Generator().manual_seed(0)
    counts = [-(-context // case.block_size) for context in case.context_lens]
    rotations = rotations or max(1, -(-4 * L2_BYTES // case.kv_bytes))
    order = torch.randperm(rotations * sum(counts), generator=generator).to(torch.int32)
    tables = []
    for blocks in order.split(sum(counts)):
        tables.append(
            torch.nn.utils.rnn.pad_sequence(list(blocks.split(counts)), batch_first=True).contiguous().to(device)
        )
    shape = (len(order), case.block_size, case.kv_heads, case.head_dim)
    k_cache, v_cache = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    packed = pack(
        [[0] * count for count in case.q_lens],
        [context - count for context, count in zip(case.context_lens, case.q_lens)],
    )
    q = torch.randn(sum(case.q_lens), case.q_heads, case.head_dim, device=device, dtype=dtype)
    bounds, lens = packed.cu_seqlens_q.to(device, torch.int32), packed.context_lens.to(device, torch.int32)
    return Inputs(case, q, k_cache, v_cache, bounds, lens, tables, packed, case.head_dim**-0.5)
