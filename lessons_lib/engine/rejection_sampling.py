"""Lesson 18: the rule by which guesses of a draft are accepted where both models draw on their own (Leviathan et al.
2023, Chen et al. 2023). The engine doesn't need it: its models share their noise."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf


def accept_or_redraw(
    draft: list[int], draft_probs: ListOf[ListOf[float]], probs: ListOf[ListOf[float]],
    coin: Callable[[float], bool], choose: Callable[[ListOf[float]], int],
) -> list[int]:  # fmt: skip
    """Accept the first guesses and draw one more token, so that each has the distribution of the larger model.

    Args:
        draft: k guesses.
        draft_probs: [k][vocabulary], the distributions q that they were drawn from.
        probs: [k + 1][vocabulary], the larger model's distributions p in these places, and in the one after.
        coin: function (probability) -> True with this probability.
        choose: function (weights) -> a token, drawn with a probability proportional to its weight.
    """
    for place, (guess, q, p) in enumerate(zip(draft, draft_probs, probs)):
        if not coin(min(1.0, p[guess] / q[guess])):
            return [*draft[:place], choose([max(0.0, ours - theirs) for ours, theirs in zip(p, q)])]
    return [*draft, choose(probs[len(draft)])]
