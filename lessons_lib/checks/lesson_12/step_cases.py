"""The requests of 12.3's cases, and what goes wrong in each."""

from dataclasses import dataclass, field
from typing import Any


class Broken(Exception):
    """What the model, a copy or the sampler raises."""


@dataclass
class Case:
    """Requests and what goes wrong.

    Attributes:
        told: in words.
        requests: name -> (length of the prompt, max_tokens, settings of its SamplingParams).
        config: of the engine.
        where: the call of the core that fails.
        broken: in which call of `where` the error comes; 0 for never.
        error: what is raised then.
        extra_copies: block copies of every step besides those of the scheduler.
        left_out: letters of the running requests that aren't scheduled in the step that fails.
    """

    told: str
    requests: dict[str, tuple[int, int, dict[str, Any]]]
    config: dict[str, Any] = field(default_factory=dict)
    where: str = "forward"
    broken: int = 0
    error: type[BaseException] = Broken
    extra_copies: int = 0
    left_out: str = ""


def swapping(told: str, **trouble: Any) -> Case:
    """Three requests that need more blocks than there are: C is swapped out in the fifth step.

    Args:
        trouble: attributes of the case besides its requests and its config.
    """
    requests: dict[str, Any] = {"A": (8, 14, {}), "B": (8, 14, {}), "C": (5, 14, {})}
    return Case(f"8 blocks of 4 and a swap space; {told}", requests, {"num_blocks": 8, "num_swap_blocks": 8}, **trouble)


DRAWN: dict[str, Any] = {"temperature": 0.9, "seed": 1}
TWO: dict[str, Any] = {"A": (3, 4, {}), "B": (3, 4, {})}
CASES = (
    Case("one request, prompt of 3 tokens, `max_tokens` 2", {"A": (3, 2, {})}),
    Case("an engine without requests", {}),
    Case("nothing is scheduled, but there is a block to copy", {}, extra_copies=1),
    Case(
        "a budget of 4 tokens; A has a prompt of 2 tokens, B one of 6",
        {"A": (2, 4, {}), "B": (6, 2, {})},
        {"max_num_batched_tokens": 4},
    ),
    Case(
        "A and B with temperature 0.9 and the seeds 1 and 2, C greedy and with a `logit_bias`",
        {"A": (3, 4, DRAWN), "B": (3, 4, DRAWN | {"seed": 2}), "C": (4, 4, {"logit_bias": {3: 80.0}})},
    ),
    Case("A asks for two answers (`n=2`), B for one", {"A": (5, 3, DRAWN | {"n": 2}), "B": (3, 3, {})}),
    Case(
        "A asks for the log-probabilities of its prompt, so `forward` returns more rows than there are requests",
        {"A": (5, 2, {"prompt_logprobs": 1}), "B": (3, 3, {})},
    ),
    Case(
        "steps overlap (lesson 13): the token of the last step is still in flight",
        {"A": (3, 4, DRAWN), "B": (3, 4, DRAWN | {"seed": 2})},
        {"overlap": True},
    ),
    swapping("A, B and C grow until one is swapped out"),
    Case(
        "6 blocks of 4 and a budget of 4 tokens; A and B grow until one is preempted and computed again, in parts",
        {"A": (4, 14, {}), "B": (4, 14, {})},
        {"num_blocks": 6, "max_num_batched_tokens": 4},
    ),
    Case(
        "two batch slots; A and B run, C waits, and the second forward pass fails",
        TWO | {"C": (3, 2, {})},
        {"max_num_seqs": 2},
        broken=2,
    ),
    Case("A and B run, and sampling fails in the second step", TWO, where="sampler", broken=2),
    Case("A and B run, and `keep_tokens` fails in the second step", TWO, where="keep_tokens", broken=2),
    Case(
        "A and B run; the scheduler leaves B out of the second step, whose forward pass fails",
        TWO,
        broken=2,
        left_out="B",
    ),
    Case(
        "A has two answers (`n=2`), B has one, and the third forward pass fails",
        {"A": (5, 6, DRAWN | {"n": 2}), "B": (3, 6, {})},
        broken=3,
    ),
    swapping("C is swapped out, A and B are scheduled, and copying fails", where="copy_blocks", broken=1),
    swapping(
        "a step schedules nothing, but swaps C out, and copying its blocks fails",
        where="copy_blocks",
        broken=1,
        left_out="AB",
    ),
    swapping("C has just been swapped out when the forward pass fails", broken=5),
    Case("A and B run, and Ctrl-C comes during the second forward pass", TWO, broken=2, error=KeyboardInterrupt),
    Case("one request, and `count_launched` raises an error", {"A": (3, 2, {})}, where="count_launched", broken=1),
)
