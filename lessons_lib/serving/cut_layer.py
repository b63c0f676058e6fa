"""Lesson 16: one decoder layer in parts. The sums are forward hooks, so that the layer keeps its own modules.

The engine uses `cut_model` instead: code that reads the weights of a matrix without calling it would pass over a hook.
"""

from typing import TYPE_CHECKING, Any

import torch

from lessons_lib.serving.tensor_parallel import cut_linear

if TYPE_CHECKING:
    from lessons_lib.serving.tensor_parallel import AllReduce

DecoderLayer = Any  # of the Llama and Qwen families


def cut_layer(layer: "DecoderLayer", rank: int, world_size: int, all_reduce: "AllReduce") -> None:
    """Leave only the part of one process in a decoder layer. It still returns what the whole layer returned.

    Args:
        layer: changed in place. It has `self_attn` with q_proj, k_proj, v_proj and o_proj, and `mlp` with gate_proj,
            up_proj and down_proj; each is a torch.nn.Linear. Everything else stays whole.
        rank: the index of the process, from 0.
        world_size: the number of processes.
        all_reduce: function from this process's tensor to the sum over all processes. A forward pass calls it at most
            twice.
    """
    attention, mlp = layer.self_attn, layer.mlp
    first = [attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj]
    second = [attention.o_proj, mlp.down_proj]
    for linear in first + second:
        cut = "colwise" if linear in first else "rowwise"
        weight, bias = cut_linear(linear.weight, linear.bias, cut, rank, world_size)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        linear.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
    for linear in second:
        linear.register_forward_hook(lambda module, inputs, output: all_reduce(output))
