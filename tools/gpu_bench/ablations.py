"""The gain from each idea in the fast kernels: the case in which it matters most, timed without the idea."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from lessons_lib.kernels.ablations import VARIANTS
from lessons_lib.kernels.launch import LOG2_E, decode_tiles
from lessons_lib.measuring.attention_cases import Inputs
from lessons_lib.measuring.attention_peers import Calls
from lessons_lib.measuring.published import ANY_GPU, HOPPER
from tools.gpu_bench.launches import decode_with, each_table, mixed_with, prefill_with


@dataclass(frozen=True)
class Ablation:
    """One idea removed.

    Attributes:
        without: what replaces the idea; if that needs another kernel, its name in `VARIANTS`.
        case: the beginning of the name of the case that is timed.
        calls: inputs -> one call per block table.
    """

    without: str
    case: str
    calls: Callable[[Inputs], Calls]


def _decode_without(name: str) -> Callable[[Inputs], Calls]:
    kernel = VARIANTS[name].kernel
    return lambda inputs: each_table(inputs, lambda i, table: decode_with(i, table, kernel=kernel))


def _prefill_without(name: str, **options) -> Callable[[Inputs], Calls]:
    kernel = VARIANTS[name].kernel
    return lambda inputs: each_table(inputs, lambda i, table: prefill_with(i, table, kernel=kernel, **options))


def _one_program_per_query_head(inputs: Inputs) -> Calls:
    """Cache views with one KV head per query head; the variant finds four neighboring heads at the same address."""
    kernel = VARIANTS["one program per query head"].kernel

    def repeated(cache):
        return cache.as_strided((*cache.shape[:2], inputs.case.q_heads, cache.shape[3]), (*cache.stride()[:2], 0, 1))

    kv = (repeated(inputs.k_cache), repeated(inputs.v_cache))
    return each_table(inputs, lambda i, table: decode_with(i, table, kv, kernel=kernel))


def _without_tensor_cores(inputs: Inputs) -> Calls:
    """One block per iteration: with larger tiles, the products wouldn't fit into the registers."""
    kernel = VARIANTS["no tensor cores"].kernel
    tiles = replace(_decode_tiles(inputs), keys=16)
    return each_table(inputs, lambda i, table: decode_with(i, table, kernel=kernel, tiles=tiles))


def _one_block_per_iteration(inputs: Inputs) -> Calls:
    tiles = replace(_decode_tiles(inputs), keys=inputs.case.block_size)
    return each_table(inputs, lambda i, table: decode_with(i, table, tiles=tiles))


def _unsplit(inputs: Inputs) -> Calls:
    return each_table(inputs, lambda i, table: decode_with(i, table, split_size=max(i.case.context_lens)))


def _wide_offsets(inputs: Inputs) -> Calls:
    return each_table(inputs, lambda i, table: prefill_with(i, table, use_int64=True))


def _any_gpu(inputs: Inputs) -> Calls:
    return each_table(inputs, mixed_with if inputs.case.kind == "mixed" else prefill_with)


def _hopper(inputs: Inputs) -> Calls:
    from lessons_lib.kernels.hopper_prefill import launch_hopper_prefill  # imports Gluon, which others may lack

    def call(i: Inputs, table) -> torch.Tensor:
        out = torch.empty_like(i.q)
        launch_hopper_prefill(i.q, i.k_cache, i.v_cache, table, i.context_lens, i.cu_seqlens_q, out, i.scale)
        return out

    return each_table(inputs, call)


def _decode_tiles(inputs: Inputs):
    return decode_tiles(inputs.case.head_dim * inputs.q.element_size())


def ablations() -> list[Ablation]:
    even, long, prefill, mixed = (
        "decode 32,8,128; batch 64, context 2048",
        "decode 32,8,128; batch 1,",
        "prefill 32",
        "mixed",
    )
    return [
        Ablation("one program per query head", even, _one_program_per_query_head),
        Ablation("no tensor cores", even, _without_tensor_cores),
        Ablation("one block per iteration", even, _one_block_per_iteration),
        Ablation("table read one iteration early", even, _decode_without("table read one iteration early")),
        Ablation(
            "table read one iteration early",
            "decode 14,2,64; batch 256",
            _decode_without("table read one iteration early"),
        ),
        Ablation("sequences not split", long, _unsplit),
        Ablation("sequences not split", "decode 32,8,128; batch 64, ragged", _unsplit),
        # The launcher multiplies the scale by log2(e); natural exponentials need the bare scale.
        Ablation("natural exponentials", prefill, _prefill_without("natural exponentials", scale=1 / LOG2_E)),
        Ablation("a mask in every iteration", prefill, _prefill_without("a mask in every iteration")),
        Ablation("first tokens first", prefill, _prefill_without("first tokens first")),
        Ablation("64-bit offsets", prefill, _wide_offsets),
        *(Ablation(ANY_GPU, case, _any_gpu) for case in (prefill, "prefill 14,2,64; 4 ", "prefill 14,2,64; 64", mixed)),
        Ablation(HOPPER, "prefill 14,2,64; 64", _hopper),
        Ablation("one kernel for prefills and decodes", mixed, _prefill_without("one kernel for prefills and decodes")),
    ]
