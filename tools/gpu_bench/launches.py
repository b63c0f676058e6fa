"""Our kernels on the inputs of a case, with other tiles, splits or kernels than `decode` and `varlen` would choose."""

from collections.abc import Callable

import torch

from lessons_lib.kernels.launch import launch_decode, launch_prefill
from lessons_lib.kernels.paged_flash import prefill_kernel
from lessons_lib.measuring.attention_cases import Inputs
from lessons_lib.measuring.attention_peers import Calls


def decode_with(inputs: Inputs, table, kv=None, **options) -> torch.Tensor:
    """A decode over one of the block tables. `kv`: other caches; `options`: those of `launch_decode`."""
    out = torch.empty_like(inputs.q)
    keys, values = kv or (inputs.k_cache, inputs.v_cache)
    max_context_len = table.shape[1] * inputs.case.block_size
    launch_decode(
        inputs.q, keys, values, table, inputs.context_lens, None, out, inputs.scale, max_context_len, **options
    )
    return out


def prefill_with(inputs: Inputs, table, scale=1.0, **options) -> torch.Tensor:
    """The sequences with several new tokens, by the kernel for any GPU.

    `scale`: multiplies the scale of the inputs; `options`: those of `launch_prefill`.
    """
    out = torch.empty_like(inputs.q)
    lengths = (inputs.context_lens, inputs.cu_seqlens_q)
    options = {"kernel": prefill_kernel, **options}
    launch_prefill(inputs.q, inputs.k_cache, inputs.v_cache, table, *lengths, out, inputs.scale * scale, **options)
    return out


def mixed_with(inputs: Inputs, table, **options) -> torch.Tensor:
    """A mixed batch as `varlen` computes it: first what `prefill_with` computes, then the decodes."""
    out = prefill_with(inputs, table, **options)
    cache, max_context_len = (inputs.k_cache, inputs.v_cache, table, inputs.context_lens), max(inputs.case.context_lens)
    launch_decode(inputs.q, *cache, inputs.cu_seqlens_q, out, inputs.scale, max_context_len)
    return out


def each_table(inputs: Inputs, call: Callable[[Inputs, torch.Tensor], torch.Tensor]) -> Calls:
    """One call per block table of the inputs."""
    return [lambda table=table: call(inputs, table) for table in inputs.tables]
