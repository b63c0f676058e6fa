"""Lessons 12 and 13: simple ways to draw a token: from sorted probabilities, or from a whole row. `sampling` draws from
the same distributions without a sort."""

import torch

from lessons_lib.engine.stateless_random import random_numbers


def token_probabilities(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities that the next token is drawn from.

    Args:
        logits: [N, vocabulary].
        temperature: [N], above 0.
        top_k: int [N], 1 or more: only the `top_k` likeliest may be drawn.
        top_p: [N], above 0: of what `top_k` leaves, only the likeliest that together have this share. The one that
            reaches it is included.

    Returns:
        (probabilities, tokens), each [N, vocabulary], likeliest first: tokens[i, j] is drawn with probabilities[i, j].
    """
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)
    of_likelier = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(of_likelier >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens


def draw_on_device(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Draw a token for each row where nothing is cut, without waiting for the device.

    Args:
        logits: [N, vocabulary], of any floating-point dtype; -inf where a token must not be drawn.
        temperature: float32 [N]; where it is 0, the likeliest token is returned.
        seeds, positions: int64 [N]: of the request, and of the token in its answer. See `random_numbers`.

    Returns:
        int64 [N].
    """
    highest, likeliest = logits.float().max(dim=-1, keepdim=True)
    weights = ((logits - highest) / temperature[:, None]).exp()  # of the likeliest token, 1: nothing overflows
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    numbers = random_numbers(seeds[:, None], positions[:, None], tokens)
    drawn = (weights / -torch.log1p(-numbers)).argmax(dim=-1)
    return torch.where(temperature > 0, drawn, likeliest[:, 0])
