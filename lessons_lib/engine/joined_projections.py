"""Lesson 13: products of the same hidden states with several weights, computed as one product with all of them.

For few tokens, a product is dominated by launching it and reading its weights, so three small ones take about three
times as long as one. The weights lie one below the other in memory. In the compiled model, each projection computes the
product with all of them and takes its part; a pass of the compiler merges equal products (equal_products.py). A layer
that gives its projections different inputs is computed correctly, too.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn import Linear

# The names in all of Hugging Face's models that are built like Llama.
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass
class Joined:
    """Projections whose weights lie one below the other.

    Attributes:
        weight: all of them, [outputs of all, inputs].
        bias: [outputs of all], or None.
        parts: the projections.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    parts: list["JoinedLinear"]

    def gather(self) -> None:
        """Put the weights of the projections where they belong, if they are elsewhere now."""
        for part in self.parts:
            for own, joined in ((part.weight, self.weight), (part.bias, self.bias)):
                if joined is not None and own.data_ptr() != (place := joined[part.rows]).data_ptr():
                    place.copy_(own)
                    own.data = place

    def separate(self) -> None:
        """Give every projection memory of its own again."""
        for part in self.parts:
            for parameter in part.parameters():
                parameter.data = parameter.data.clone()
            part.__class__ = Linear  # type: ignore[assignment]
            del part.joined, part.rows


class JoinedLinear(Linear):
    """A projection that is joined with others. Outside of a compiled model, it is a Linear.

    Attributes:
        joined: all of them.
        rows: the slice of their outputs that is its own.
    """

    joined: Joined
    rows: slice

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        return F.linear(input, self.joined.weight, self.joined.bias)[..., self.rows]


@torch.no_grad()
def join_projections(model: torch.nn.Module) -> list[Joined]:
    """Join the projections of each layer that read the same hidden states, if they are plain products of one kind.
    Their weights keep their names and values, in other memory."""
    joined = []
    for module in model.modules():
        for names in GROUPS:
            parts = [getattr(module, name, None) for name in names]
            if all(type(part) is Linear for part in parts):  # a subclass does more than multiply
                linears: list[Any] = parts
                kinds = {(one.in_features, one.bias is None, one.weight.dtype, one.weight.device) for one in linears}
                if len(kinds) == 1:
                    joined.append(_join(linears))
    return joined


def _join(parts: list[Any]) -> Joined:
    biases = [part.bias for part in parts if part.bias is not None]
    joined = Joined(_stacked([part.weight for part in parts]), _stacked(biases) if biases else None, parts)
    end = 0
    for part in parts:
        part.__class__ = JoinedLinear
        part.joined, part.rows = joined, slice(end, end := end + len(part.weight))
    joined.gather()
    return joined


def _stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.cat(tensors)
    torch._dynamo.mark_static(stacked)  # its sizes won't change
    return stacked
