"""Lesson 16: tensor parallelism by hand. Several processes compute one model together, and each has a part of every
large matrix.

Both blocks of a Llama or Qwen layer, attention and MLP, are a matrix, an operation on separate heads or elements, and
another matrix. The first matrix is cut by columns (q, k, v, gate, up): each process computes its own heads and
elements, from the whole input. The second is cut by rows (o, down), and the sum over all processes is the block's
output. So a layer needs two sums, and nothing else is sent. (Shoeybi et al. 2019, "Megatron-LM",
https://arxiv.org/abs/1909.08053)
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from lessons_lib.models.configuration import kv_head_size, text_config

AllReduce = Callable[[torch.Tensor], torch.Tensor]
# In each layer; the words are those of transformers' `tp_plan`.
COLWISE, ROWWISE = "colwise", "rowwise"
CUTS = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), COLWISE)
CUTS |= {"self_attn.o_proj": ROWWISE, "mlp.gate_proj": COLWISE, "mlp.up_proj": COLWISE, "mlp.down_proj": ROWWISE}


class CannotCut(ValueError):
    """The model can't be cut into this many equal parts. Nothing was changed."""


def cut_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, cut: str, rank: int, world_size: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The part of a linear layer that one process computes.

    Args:
        weight: [outputs, inputs], as in torch.nn.Linear: the layer computes `x @ weight.T + bias`.
        bias: [outputs], or None.
        cut: "colwise": this process computes its share of the outputs, from all inputs. "rowwise": it gets its share of
            the inputs, and computes a part of every output; the layer's output is the sum over all processes.
        rank: the index of the process, from 0.
        world_size: the number of processes.

    Returns:
        (weight, bias) of this process: new tensors of the same type, which keep nothing of the whole ones in memory.

    Raises:
        ValueError: the outputs or inputs can't be divided into equal parts.
    """
    dim = 0 if cut == "colwise" else 1
    size, rest = divmod(weight.shape[dim], world_size)
    if rest:
        raise ValueError(f"{weight.shape[dim]} {('outputs', 'inputs')[dim]} can't be divided by {world_size}.")
    own = slice(rank * size, (rank + 1) * size)
    if cut == "colwise":
        return weight[own].clone(), None if bias is None else bias[own].clone()
    # The processes' results are added up, so only one of them may add the bias.
    return weight[:, own].clone(), None if bias is None or rank > 0 else bias.clone()


class RowParallelLinear(torch.nn.Module):
    """A linear layer whose inputs are spread over the processes. Its output is whole, and the same in each of them.

    Attributes:
        weight: [outputs, inputs of this process]; bias: [outputs] or None.
        all_reduce: function from this process's tensor to the sum over all processes.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, all_reduce: AllReduce):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
        self.all_reduce = all_reduce

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.all_reduce(F.linear(hidden, self.weight, self.bias))


def cut_model(model: PreTrainedModel, rank: int, world_size: int, all_reduce: AllReduce) -> None:
    """Leave only the part of one process in a model of the Llama and Qwen families. Afterwards it is a model with fewer
    heads, and its configuration says so: a paged cache that is made for it holds only the KV heads of this process.

    The embedding, the norms and the last matrix stay whole: every process computes all logits. (vLLM cuts the embedding
    and the last matrix too.)

    Args:
        model: changed in place. To cut a model that is too large for one device, load it on the CPU and move it after.
        rank, world_size: see `cut_linear`.
        all_reduce: see RowParallelLinear.

    Raises:
        CannotCut: the model is built in another way, or something can't be divided by `world_size`.
    """
    check_can_be_cut(model, world_size)
    for layer in model.model.layers:
        for name, cut in CUTS.items():
            parent, linear = layer.get_submodule(name.split(".")[0]), layer.get_submodule(name)
            bias = None if linear.bias is None else linear.bias.data
            weight, bias = cut_linear(linear.weight.data, bias, cut, rank, world_size)
            if cut == ROWWISE:
                setattr(parent, name.split(".")[1], RowParallelLinear(weight, bias, all_reduce))
                continue
            linear.weight.data, linear.out_features = weight, len(weight)
            if bias is not None:
                linear.bias.data = bias
    config = model.config
    kv_heads, config.head_dim = kv_head_size(config)
    config.num_key_value_heads = kv_heads // world_size
    config.num_attention_heads //= world_size
    config.intermediate_size //= world_size


def check_can_be_cut(model: PreTrainedModel, world_size: int) -> None:
    """Raise CannotCut if `cut_model` would."""
    name, layers = type(model).__name__, getattr(getattr(model, "model", None), "layers", None)
    if layers is None or text_config(model.config) is not model.config:
        raise CannotCut(f"{name} can't be cut: it has no `model.layers` as Llama and Qwen do. Serve it on one device.")
    kv_heads, head_dim = kv_head_size(model.config)
    for index, layer in enumerate(layers):
        if reason := why_not_cut(layer, head_dim):
            raise CannotCut(f"{name} can't be cut: layer {index} {reason}. Serve it on one device.")
    sizes = dict(num_attention_heads=model.config.num_attention_heads, num_key_value_heads=kv_heads)
    sizes["intermediate_size"] = model.config.intermediate_size
    for field, size in sizes.items():
        if size % world_size:
            possible = [n for n in range(1, size + 1) if all(each % n == 0 for each in sizes.values())]
            raise CannotCut(
                f"{name} can't be cut into {world_size} equal parts: {field} is {size}. It can be cut into "
                f"{' or '.join(map(str, possible))}."
            )


def why_not_cut(layer: Any, head_dim: int) -> str:
    """A part of the layer that Llama's and Qwen's layers don't have; "" if there is none."""
    modules = dict(layer.named_modules())
    for name in CUTS:
        if type(modules.get(name)) is not torch.nn.Linear:
            return f"has no linear layer {name!r}"
    for name, parameter in layer.named_parameters():
        owner = name.rsplit(".", 1)[0]
        # A norm over each head is the same for all heads; one over all heads together would need the others' elements.
        is_head_norm = owner.startswith("self_attn.") and parameter.shape == (head_dim,)
        is_layer_norm = "." not in owner and parameter.dim() == 1
        if owner not in CUTS and not (is_head_norm or is_layer_norm):
            return f"has {name!r}, which belongs to all heads or elements together"
    return ""
