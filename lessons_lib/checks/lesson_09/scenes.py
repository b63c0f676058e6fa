"""The scenes of 09.2: requests, what happens, and the scheduler's settings."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAging
from lessons_lib.scheduling.scheduler import conservative, optimistic


class Case(NamedTuple):
    """A scene: see SCENES."""

    words: str
    requests: dict[str, tuple[int, int, int]]
    events: list[str]
    settings: dict[str, Any]


class LastComeFirstServed:
    name = "last come, first served"

    def rank(self, sequence: Any) -> float:
        return -float(sequence.arrival_time)


# In words; the requests, "A13" or "A8/5/5" for tokens of the prompt, max_tokens and tokens of the answer; what happens:
# "+AF" arrive, "3" steps, "-6" blocks are taken, "E7" waits with six tokens of its answer known and 7 computed.
SCENES = """
nothing runs and nothing waits | | 1
A (prompt 13) waits | A13 | +A 3
budget 8; D (prompt 21) waits | D21 | +D 4 | budget 8
A (prompt 13) and C (3) wait | A13 C3 | +AC 1
A (prompt 13) and F (40) wait | A13 F40 | +AF 3
A (prompt 13), F (40) and C (3) wait | A13 F40 C3 | +AFC 4
an admission rule that always says no; A waits | A3 | +A 2 | none
E waits again: prompt 5, 6 tokens of its answer known, none computed | E5 | E0 3
E waits again: prompt 5, 6 tokens of its answer known, 7 of 11 computed | E5 | E7 3
budget 4; E waits again: 11 tokens known, none computed | E5 | E0 3 | budget 4
budget 12; E waits again: 11 tokens known, 7 computed; behind it A (prompt 13) | E5 A13 | E7 +A 2 | budget 12
two batch slots; A, B, C and D wait, with prompts of 3 | A3/3/3 B3/3/3 C3/3/3 D3/3/3 | +ABCD 5 | seqs 2
budget 8; A (prompt 3) runs; after step 1, F (20) and C (3) arrive | A3 F20 C3 | +A 1 +FC 5 | budget 8
budget 8; D (prompt 12) has computed 8 tokens in step 1, and wants 4; F (20) arrives | D12 F20 | +D 1 +F 2 | budget 8
ten blocks, `conservative`; A (8) runs; B (30), which may need all ten, waits, and behind it C (3) | \
A8/5/5 B30/11/11 C3/2/2 | +A 1 +BC 6 | blocks 10
one batch slot; A, C and E arrived in this order; the policy is last come, first served | \
A3/3/3 C3/3/3 E3/3/3 | +ACE 5 | seqs 1 last
one batch slot; A (prompt 20) came before C (3); `BalancedLengths(15)` prefers C: its length is closest | \
A20 C3 | +AC 2 | seqs 1 budget 8 near 15
two batch slots; D (40) runs, A (20) and C (3) wait; `BalancedLengths(33)`: beside D, C is best | \
D40 A20 C3 | +D 1 +AC 1 | seqs 2 budget 64 near 33
two batch slots; F (26), B (28) and C (10) wait; `BalancedLengths(32)`: F first, and beside F, C is best | \
F26 B28 C10 | +FBC 2 | seqs 2 budget 64 near 32
six blocks, all are admitted; A, B (prompts of 8) and C (5) fill them; D (prompt 3) arrives after step 1 | \
A8 B8 C5 D3 | +ABC 1 +D 2 | blocks 6 all
three blocks; A and B (prompts of 4) run; C (3) arrives after step 1; in step 2 B stalls, and A ends | \
A4/2/2 B4/9/9 C3/2/2 | +AB 1 +C 2 | blocks 3 all
four blocks, all are admitted; A (8) runs; D (12), which doesn't fit, and C (3) arrive after step 1 | \
A8/5/5 D12/2/2 C3/2/2 | +A 1 +DC 2 | blocks 4 all
four blocks, all are admitted; A (8) and B (7) fill them; in step 3, none can continue | \
A8/9/9 B7/9/9 | +AB 3 | blocks 4 all
budget 10; A (3) and F (30) run; then only one block is free, F needs two, and C (3) waits | \
A3 F30/9/9 C3/2/2 | +AF 1 -6 +C 2 | blocks 10 budget 10 all
four blocks, `optimistic` with a watermark of 2; A (8) waits, and nothing else | A8/5/5 | +A 3 | blocks 4 keep 2
nine blocks, all are admitted, budget 8; A (8) runs; F (30) waits: its first chunk fits, not all of it | \
A8 F30/1/1 | +A 1 +F 2 | blocks 9 budget 8 all
"""


def settings_of(told: str) -> dict[str, Any]:
    words = told.split()
    number = {word: int(value) for word, value in pairwise(words) if value.isdigit()}
    rules = {"all": lambda *given: True, "none": lambda *given: False, "keep": optimistic}
    policies = {"last": LastComeFirstServed(), "near": BalancedLengths(number.get("near", 1))}
    return {
        "num_blocks": number.get("blocks", 64),
        "max_num_seqs": number.get("seqs", 4),
        "max_num_batched_tokens": number.get("budget", 32),
        "watermark": number.get("keep", 0),
        "admission": next((rules[word] for word in words if word in rules), conservative),
        "policy": next((policies[word] for word in words if word in policies), None),
    }


def cases() -> Iterator[Case]:
    """Smallest first. Prompts without more go on for longer than the scene."""
    for scene in SCENES.strip().split("\n"):
        words, told, happens, settings = [each.strip() for each in (scene + " | ").split("|")[:4]]
        numbers = {each[0]: [int(number) for number in each[1:].split("/")] for each in told.split()}
        requests = {name: (each[0], *(each[1:] or (12, 12))) for name, each in numbers.items()}
        yield Case(words, requests, happens.split(), settings_of(settings))
    for seed in range(14):
        draw = Random(seed)
        requests = {}
        for name in "ABCDEFGH":
            most = draw.choice((1, 2, 5, 12))
            requests[name] = draw.choice((1, 3, 4, 9, 16, 30)), most, draw.randint(1, most)
        told = f"blocks {draw.choice((11, 14, 30))} seqs {draw.choice((1, 2, 4))} budget {draw.choice((4, 7, 32))}"
        told += draw.choice(("", " keep 0"))
        settings = settings_of(told) | {"policy": draw.choice((None, PriorityWithAging(3)))}
        events = [each for name in requests for each in (f"+{name}", "1")]
        yield Case(f"{told.replace(' keep 0', ', optimistic')}", requests, [*events, "25"], settings)
