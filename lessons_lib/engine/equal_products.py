"""Lesson 13: a pass of the compiler for joined projections."""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

# The operators of a product: transpose the weight, view the inputs as a matrix, multiply.
OPERATORS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
}


class ShareEqualProducts(CustomGraphPass):
    """Common subexpression elimination: a product of the same inputs is computed once."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        known: dict[Any, torch.fx.Node] = {}
        for node in list(graph.nodes):
            if node.target in OPERATORS:
                same = known.setdefault((node.target, _frozen(node.args), _frozen(node.kwargs)), node)
                if same is not node:
                    node.replace_all_uses_with(same)
                    graph.erase_node(node)

    def uuid(self) -> Any:
        """The key of the compiler's cache on disk: another pass would make other code."""
        return get_hash_for_files((__file__,))


def _frozen(arguments: Any) -> Any:
    """Arguments of a node as a key of a dict."""
    if isinstance(arguments, list | tuple):
        return tuple(map(_frozen, arguments))
    if isinstance(arguments, dict):
        return tuple((name, _frozen(value)) for name, value in arguments.items())
    return arguments
