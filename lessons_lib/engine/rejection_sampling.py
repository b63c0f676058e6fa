"""Lesson 18: the rule by which guesses of a draft are accepted where both models draw on their own (Leviathan et al.
2023, Chen et al. 2023). The engine doesn't need it: its models share their noise."""

import torch


def accept_or_redraw(
    draft: list[int], draft_probs: torch.Tensor, probs: torch.Tensor, generator: torch.Generator
) -> list[int]:
    """Accept the first guesses and draw one more token, so that each has the distribution of the larger model.

    A guess x that the draft drew with probability q(x) is accepted with probability min(1, p(x) / q(x)). Where it
    isn't, the token is drawn from what p has more of than q: max(0, p - q), normalized.

    Args:
        draft: k guesses.
        draft_probs: [k, vocabulary], the distributions q that they were drawn from.
        probs: [k + 1, vocabulary], the larger model's distributions p in these places, and in the one behind.
        generator: of the random numbers.

    Returns:
        1 to k + 1 tokens.
    """
    for place, guess in enumerate(draft):
        p, q = probs[place], draft_probs[place]
        if torch.rand((), generator=generator) * q[guess] >= p[guess]:
            rest = (p - q).clamp(min=0)
            return [*draft[:place], int(torch.multinomial(rest, 1, generator=generator))]
    return [*draft, int(torch.multinomial(probs[len(draft)], 1, generator=generator))]
