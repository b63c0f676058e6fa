"""Lesson 19: the gated delta nets of Qwen3.5 over a whole packed row, by two kernels that find states in slots."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from lessons_lib.hybrid.packed_states import Piece
from lessons_lib.hybrid.sequence_states import PADDING, SequenceStates

CLOSE = 0.05  # relative error; in bfloat16, rounding alone may give 0.02
PARTS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "A_log", "dt_bias", "norm", "out_proj")


@dataclass(frozen=True)
class Wave:
    """Pieces that are computed at the same time: at most one of each sequence. See `packed_conv`.

    Attributes:
        copies: pairs of slots, int64 [2, M]: after this wave, copy the state of the first to the second.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    fresh: torch.Tensor
    copies: torch.Tensor | None = None


def waves_of(pieces: list[Piece], device: torch.device) -> list[Wave]:
    """Group the pieces of a row into waves: the first pieces of all sequences, then the second ones, and so on."""
    waves: list[list[Piece]] = []
    place_of: Counter[int] = Counter()
    for piece in pieces:
        if place_of[piece.slot] == len(waves):
            waves.append([])
        waves[place_of[piece.slot]].append(piece)
        place_of[piece.slot] += 1
    found = []
    for wave in waves:
        table = torch.tensor([[each.start, each.length, each.slot, each.is_fresh] for each in wave], device=device)
        copies = [(each.slot, each.target) for each in wave if each.target is not None]
        starts, lengths, slots, fresh = table.T.contiguous()
        pairs = torch.tensor(copies, device=device).T if copies else None
        found.append(Wave(starts, lengths, slots, fresh, pairs))
    return found


class GatedDeltaLayer:
    """Computes a layer of Hugging Face's with its weights."""

    def __init__(self, module: Any, states: SequenceStates):
        self.module, layer = module, module.layer_idx
        self.conv, self.recurrent = ((layer, kind, 0) for kind in ("conv", "recurrent"))
        self.states = states

    def forward(self, hidden: torch.Tensor, waves: list[Wave]) -> torch.Tensor:
        """The output of the layer for a packed row [1, T, hidden size]."""
        from lessons_lib.kernels.gated_delta import packed_conv, packed_delta  # Triton is not available everywhere

        module, row = self.module, hidden[0]
        mixed, gate = module.in_proj_qkv(row), module.in_proj_z(row)
        gates = module.in_proj_a(row), module.in_proj_b(row), module.A_log, module.dt_bias
        conv, recurrent = self.states.tensors[self.conv], self.states.tensors[self.recurrent]
        convolved, out = torch.empty_like(mixed), mixed.new_empty(len(row), *recurrent.shape[1::2])
        for wave in waves:
            where = (wave.starts, wave.lengths, wave.slots, wave.fresh)
            packed_conv(mixed, module.conv1d.weight[:, 0], conv, *where, convolved)
            packed_delta(convolved, *gates, recurrent, *where, out)
            if wave.copies is not None:
                for tensor in (conv, recurrent):
                    tensor[wave.copies[1]] = tensor[wave.copies[0]]
        normed = module.norm(out.flatten(0, 1), gate.reshape(-1, out.shape[-1]))
        result: torch.Tensor = module.out_proj(normed.reshape(1, len(row), -1))
        return result


def takes_rows(module: Any, states: SequenceStates) -> bool:
    """True if a module is on a GPU, and GatedDeltaLayer computes what it computes."""
    is_known = all(hasattr(module, part) for part in PARTS) and getattr(module, "activation", "") == "silu"
    return is_known and bool(module.A_log.is_cuda) and agrees(module, states)


@torch.inference_mode()
def agrees(module: Any, states: SequenceStates) -> bool:
    """True if a module gives the same for a few tokens, the last of which continues from a state. Changes PADDING."""
    weight = module.in_proj_z.weight
    row = torch.randn(1, 6, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    pieces = [Piece(0, 5, PADDING, True, False, None), Piece(5, 1, PADDING, False, False, None)]
    try:
        found = GatedDeltaLayer(module, states).forward(row, waves_of(pieces, weight.device))
    except Exception:  # such as a head size that the kernel can't tile
        return False
    expected = module(row)
    return bool((found - expected).norm() <= CLOSE * expected.norm())
