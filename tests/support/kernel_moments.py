"""A recording of lesson 07's kernel with the moments of one program."""

import torch

from lessons_lib.kernels.simple_paged import decode_heads_kernel
from lessons_lib.recording import Recorder

BLOCK_SIZE, HEAD_DIM, TABLE, CONTEXT = 4, 8, [5, 0, 3], 10


def recorded(moments_of=(1, 1)):
    """Two sequences, two query heads over one KV head."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 2, HEAD_DIM, generator=generator)
    keys, values = (torch.randn(6, BLOCK_SIZE, 1, HEAD_DIM, generator=generator) for _ in range(2))
    tables = torch.tensor([[1, 0, 0], TABLE], dtype=torch.int32)
    lens = torch.tensor([2, CONTEXT], dtype=torch.int32)
    out = torch.empty_like(q)
    strides = (*q.stride()[:2], *keys.stride()[:3], tables.stride(0))
    sizes = dict(GROUP=2, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
    recorder = Recorder(decode_heads_kernel, moments_of)
    recorder[(2, 2)](q, keys, values, tables, lens, out, 0.5, *strides, **sizes)
    return recorder.recording, q, keys, out
