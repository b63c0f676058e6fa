"""Lesson 13: products of the same hidden states with several weights, computed as one product with all of them.

For few tokens, a product takes as long as it takes to start it and to read its weights; three small ones after another
take about three times as long as one. The weights lie one below the other in memory. In the compiled model, each
projection computes the product with all of them and takes its part; a pass of the compiler finds out that these are one
and the same (equal_products.py). So a layer that gives its projections different inputs is computed correctly, too.
"""

from collections.abc import Iterator
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

    def is_whole(self) -> bool:
        """Whether all weights still lie where they were put."""
        return all(
            own.data_ptr() == place.data_ptr() for part in self.parts for own, place in self._places(part) if len(own)
        )

    @torch.no_grad()
    def gather(self) -> None:
        """Put the weights of the projections, as they are now, where they belong."""
        for part in self.parts:
            for own, place in self._places(part):
                if own.data_ptr() != place.data_ptr():
                    place.copy_(own)
                    own.data = place

    def _places(self, part: "JoinedLinear") -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield part.weight, self.weight[part.rows]
        if self.bias is not None:
            yield part.bias, self.bias[part.rows]


class JoinedLinear(Linear):
    """A projection that knows those that it is joined with. Outside of a compiled model, it is a Linear.

    Attributes:
        joined: all of them.
        rows: which outputs of theirs are its own.
    """

    joined: Joined
    rows: slice

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        return F.linear(input, self.joined.weight, self.joined.bias)[..., self.rows]


@torch.no_grad()
def join_projections(model: torch.nn.Module) -> list[Joined]:
    """Join the projections of each layer that read the same hidden states, as far as they are plain products of one
    kind. Their weights keep their names and values, in other memory."""
    joined = []
    for module in model.modules():
        for names in GROUPS:
            parts = [getattr(module, name, None) for name in names]
            if _can_be_joined(parts):
                joined.append(_join(parts))
    return joined


def separate(joined: Joined) -> None:
    """Undo `join_projections`."""
    for part in joined.parts:
        for parameter in part._parameters.values():
            if parameter is not None:
                parameter.data = parameter.data.clone()
        part.__class__ = Linear  # type: ignore[assignment]
        del part.joined, part.rows


def _can_be_joined(parts: list[Any]) -> bool:
    if not all(type(part) is Linear for part in parts):  # a subclass does more than multiply
        return False
    kinds = {(part.in_features, part.bias is None, part.weight.dtype, part.weight.device) for part in parts}
    return len(kinds) == 1


def _join(parts: list[Any]) -> Joined:
    weight = torch.cat([part.weight.data for part in parts])
    torch._dynamo.mark_static(weight)  # its sizes won't change
    bias = None
    if parts[0].bias is not None:
        bias = torch.cat([part.bias.data for part in parts])
        torch._dynamo.mark_static(bias)
    joined = Joined(weight, bias, parts)
    end = 0
    for part in parts:
        part.__class__ = JoinedLinear
        part.joined, part.rows = joined, slice(end, end := end + len(part.weight))
    joined.gather()
    return joined
