"""Finds the rule that a wrong answer seems to follow: the one that explains its first wrong result, and most of the others."""

from collections.abc import Callable, Sequence


def likeliest_idea(rules: Sequence[tuple[Callable[[int], bool | None], str]], first: int, count: int) -> str | None:
    """What to say of the likeliest rule.

    Args:
        rules: (function (number of a case) -> whether the rule gives what the attempt gave; None where it says nothing, what to say of it).
        first: the first case in which the attempt is wrong. A rule has to explain that.
        count: how many cases there are.
    """
    fitting = [(explains, idea) for explains, idea in rules if explains(first)]
    if not fitting:
        return None

    def score(rule) -> int:
        said = [rule[0](number) for number in range(count)]
        return said.count(True) - 3 * said.count(False)

    return max(fitting, key=score)[1]
