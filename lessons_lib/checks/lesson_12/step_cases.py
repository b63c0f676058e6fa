"""The requests of 12.3's cases, and what goes wrong in each."""

from dataclasses import dataclass, field
from typing import Any


class Broken(Exception):
    """What the model or a copy raises."""


@dataclass
class Case:
    """Requests and what goes wrong.

    Attributes:
        told: in words.
        requests: name -> (length of the prompt, max_tokens, n).
        config: of the engine.
        where: "forward", "copies", or a call that fails because of a bug, such as "update".
        broken: in which call of `where` the error comes; 0 for never.
        error: what is raised then.
        fails_for: a callback that raises at its second token: the request's name.
        extra_copies: block copies of every step besides those of the scheduler.
        left_out: letters of the running requests that aren't scheduled in the step that fails.
    """

    told: str
    requests: dict[str, tuple[int, int, int]]
    config: dict[str, int] = field(default_factory=dict)
    where: str = "forward"
    broken: int = 0
    error: type[BaseException] = Broken
    fails_for: str = ""
    extra_copies: int = 0
    left_out: str = ""


def swapping(told: str, **trouble: Any) -> Case:
    """Three requests that need more blocks than there are: C is swapped out in the fifth step.

    Args:
        trouble: attributes of the case besides its requests and its config.
    """
    requests = {"A": (8, 14, 1), "B": (8, 14, 1), "C": (5, 14, 1)}
    return Case(f"8 blocks of 4 and a swap space; {told}", requests, {"num_blocks": 8, "num_swap_blocks": 8}, **trouble)


CASES = (
    Case("one request, prompt of 3 tokens, `max_tokens` 2", {"A": (3, 2, 1)}),
    Case("an engine without requests", {}),
    Case("nothing is scheduled, but there is a block to copy", {}, extra_copies=1),
    Case(
        "a budget of 4 tokens; A has a prompt of 2 tokens, B one of 6",
        {"A": (2, 4, 1), "B": (6, 2, 1)},
        {"max_num_batched_tokens": 4},
    ),
    Case(
        "a budget of 4 tokens; A has a prompt of 6 tokens",
        {"A": (6, 2, 1)},
        {"max_num_batched_tokens": 4},
    ),
    Case(
        "A, B and C with `max_tokens` 3, 1 and 3, each with an `on_token`",
        {"A": (3, 3, 1), "B": (2, 1, 1), "C": (4, 3, 1)},
    ),
    Case("A asks for two answers (`n=2`), B for one", {"A": (5, 3, 2), "B": (3, 3, 1)}),
    swapping("A, B and C grow until one is swapped out"),
    Case(
        "6 blocks of 4 and a budget of 4 tokens; A and B grow until one is preempted and computed again, in parts",
        {"A": (4, 14, 1), "B": (4, 14, 1)},
        {"num_blocks": 6, "max_num_batched_tokens": 4},
    ),
    Case(
        "two batch slots; A and B run, C waits, and the second forward pass fails",
        {"A": (3, 4, 1), "B": (3, 4, 1), "C": (3, 2, 1)},
        {"max_num_seqs": 2},
        broken=2,
    ),
    Case(
        "a budget of 4 tokens; A has a prompt of 2 tokens, B one of 6, and the second forward pass fails",
        {"A": (2, 4, 1), "B": (6, 2, 1)},
        {"max_num_batched_tokens": 4},
        broken=2,
    ),
    Case(
        "A and B run; the scheduler leaves B out of the second step, whose forward pass fails",
        {"A": (3, 4, 1), "B": (3, 4, 1)},
        broken=2,
        left_out="B",
    ),
    Case(
        "A and B run; the scheduler leaves B out of the second step, and a block copy of that step fails",
        {"A": (3, 4, 1), "B": (3, 4, 1)},
        where="copies",
        broken=2,
        extra_copies=1,
        left_out="B",
    ),
    Case(
        "A has two answers (`n=2`), B has one, and the third forward pass fails",
        {"A": (5, 6, 2), "B": (3, 6, 1)},
        broken=3,
    ),
    swapping("copying the blocks of a sequence that is swapped out fails", where="copies", broken=1),
    swapping(
        "a step schedules nothing, but swaps C out, and copying its blocks fails",
        where="copies",
        broken=1,
        left_out="AB",
    ),
    swapping("C's cache has just been swapped out when the forward pass fails", broken=5),
    swapping(
        "C was swapped out two steps ago, and a block copy of another sequence fails",
        where="copies",
        broken=7,
        extra_copies=1,
    ),
    Case(
        "6 blocks of 4, no swap space; B is preempted, to be computed again, and a block copy of the same step fails",
        {"A": (4, 14, 1), "B": (4, 14, 1)},
        {"num_blocks": 6},
        where="copies",
        broken=10,
        extra_copies=1,
    ),
    Case(
        "A and B run, and Ctrl-C comes during the second forward pass",
        {"A": (3, 4, 1), "B": (3, 4, 1)},
        broken=2,
        error=KeyboardInterrupt,
    ),
    Case("one request, and `update` raises an error", {"A": (3, 2, 1)}, where="update", broken=1),
    Case(
        "one request, and `completions_with_token` raises an error",
        {"A": (3, 2, 1)},
        where="completions_with_token",
        broken=1,
    ),
    Case("one request, and `schedule` raises an error", {"A": (3, 2, 1)}, where="schedule", broken=1),
    Case("one request, and `pass_on` raises an error", {"A": (3, 2, 1)}, where="pass_on", broken=1),
    Case("one request, and `record_step` raises an error", {"A": (3, 2, 1)}, where="record_step", broken=1),
    Case(
        "A, B and C; the `on_token` of B raises at its second token",
        dict.fromkeys("ABC", (3, 4, 1)),
        fails_for="B",
    ),
)
