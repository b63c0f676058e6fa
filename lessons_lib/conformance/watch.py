"""Counts what a model computes, and makes its passes slow, or one of them fail."""

import time
from typing import Any

import torch


class ModelWatch:
    """Counts the tokens that a model computes, and makes its passes slow, or one of them fail, if asked to.

    Attributes:
        passes: tokens of each pass.
        fail_at: the number of the pass that raises, counted from 1.
        fails_late: whether it raises after all layers, when their keys and values are in the cache already, or before.
        seconds_per_pass: added to each.
    """

    def __init__(self, model: Any):
        self.passes: list[int] = []
        self.fail_at: int | None = None
        self.fails_late = False
        self.seconds_per_pass = 0.0
        model.get_input_embeddings().register_forward_pre_hook(self._begins)
        model.get_output_embeddings().register_forward_pre_hook(self._ends)

    def _begins(self, module: object, args: tuple[torch.Tensor, ...]) -> None:
        self.passes.append(args[0].numel())
        self.wait()
        self._fail_if(not self.fails_late)

    def _ends(self, module: object, args: tuple[torch.Tensor, ...]) -> None:
        self._fail_if(self.fails_late)

    def _fail_if(self, is_here: bool) -> None:
        if is_here and len(self.passes) == self.fail_at:
            raise ModelFault("the model failed in this pass, on purpose")

    def wait(self) -> None:
        time.sleep(self.seconds_per_pass)


class ModelFault(RuntimeError):
    pass
