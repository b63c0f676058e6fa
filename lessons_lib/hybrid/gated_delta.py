"""Lesson 19: one head of a gated delta net (Yang et al. 2024, https://arxiv.org/abs/2412.06464) over a packed row, in
plain PyTorch. Its kernel is `kernels.gated_delta`."""

import torch


def gated_delta(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decays: torch.Tensor, betas: torch.Tensor,
    states: torch.Tensor, segments: list[tuple[int, int, bool]],
) -> torch.Tensor:  # fmt: skip
    """Compute a packed row of T tokens, one segment after the other.

    Args:
        queries, keys: [T, K].
        values: [T, V].
        decays, betas: [T]; the share of the state that a token keeps, and the share of the error that it corrects.
        states: [num_slots, K, V]; a segment's slot gets the state after its last token, the others don't change.
        segments: (length, slot, is_fresh) of each sequence's tokens, in the order of the row. A fresh sequence has no
            computed token before the row, so its slot still has another sequence's state.

    Returns:
        a new tensor [T, V].
    """
    outputs = torch.empty_like(values)
    start = 0
    for length, slot, is_fresh in segments:
        state = torch.zeros_like(states[slot]) if is_fresh else states[slot]
        for token in range(start, start + length):
            state = decays[token] * state
            error = values[token] - keys[token] @ state
            state = state + betas[token] * torch.outer(keys[token], error)
            outputs[token] = queries[token] @ state
        states[slot] = state
        start += length
    return outputs
