"""18.3, `accept_or_redraw`: guesses of a draft that draws on its own. What an answer returns is random, so it is tried
with every way in which its coins may fall, which gives the exact probability of each result."""

from collections.abc import Iterator, Sequence
from math import isfinite
from random import getstate
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.exercise import Mistake

MOST_WAYS = 3000


class Case(NamedTuple):
    """The guesses, the distributions they come from, and the larger model's."""

    draft: list[int]
    q: list[list[float]]
    p: list[list[float]]


# Guesses | the draft's distributions | the model's, in hundredths
CASES = """
| | 50 50
0 | 50 50 | 20 80, 50 50
1 | 50 50 | 20 80, 30 70
0 | 100 0 | 20 80, 30 70
0 | 50 50 | 50 50, 10 90
0 | 20 30 50 | 50 30 20, 20 20 60
2 | 20 30 50 | 50 30 20, 20 20 60
1 | 10 80 10 | 40 20 40, 30 30 40
1 | 10 80 10 | 25 0 75, 30 30 40
0 | 60 40 0 | 30 20 50, 100 0 0
0 1 | 50 50, 50 50 | 20 80, 90 10, 30 70
1 1 | 50 50, 40 60 | 20 80, 90 10, 30 70
2 0 | 20 30 50, 70 20 10 | 50 30 20, 30 30 40, 10 10 80
0 0 | 20 30 50, 70 20 10 | 50 30 20, 80 10 10, 10 20 70
1 0 2 | 25 25 50, 60 20 20, 10 10 80 | 10 50 40, 30 40 30, 50 10 40, 20 30 50
0 2 2 | 50 25 25, 20 20 60, 10 10 80 | 40 20 40, 10 60 30, 50 10 40, 20 30 50
3 1 | 10 20 30 40, 20 30 40 10 | 40 30 20 10, 10 15 25 50, 25 25 25 25
"""


def cases() -> Iterator[Case]:
    for line in CASES.strip("\n").split("\n"):
        draft, *rest = line.split("|")
        q, p = ([[int(n) / 100 for n in one.split()] for one in part.split(",") if one.strip()] for part in rest)
        yield Case(list(map(int, draft.split())), q, p)


class Ways:
    """Coins and choices that take every way in turn: `script` is which option each of them takes."""

    def __init__(self, script: list[int]):
        self.script, self.taken, self.probability = script, [], 1.0

    def take(self, shares: list[float]) -> int:
        options = [index for index, share in enumerate(shares) if share > 0]
        place = len(self.taken)
        index = self.script[place] if place < len(self.script) else 0
        self.taken.append((index, len(options)))
        self.probability *= shares[options[index]]
        return options[index]

    def coin(self, probability: float) -> bool:
        probability = min(1.0, max(0.0, float(probability)))
        return self.take([probability, 1 - probability]) == 0

    def choose(self, weights: Sequence[float]) -> int:
        weights = [float(weight) for weight in weights]
        if not all(isfinite(weight) and weight >= 0 for weight in weights):
            raise ValueError("a weight below 0")
        if sum(weights) <= 0:
            raise ValueError("no weight is above 0")
        return self.take([weight / sum(weights) for weight in weights])


def results(attempt: Any, case: Case) -> dict[str, float]:
    """Each result of an answer, as text, and its exact probability."""
    found: dict[str, float] = {}
    script: list[int] = []
    for _ in range(MOST_WAYS):
        ways = Ways(script)
        draft, before = list(case.draft), getstate()
        result = attempt(draft, [*map(list, case.q)], [*map(list, case.p)], ways.coin, ways.choose)
        if getstate() != before:
            raise Mistake("you draw from `random`.", idea="Use `coin` and `choose` for everything that is random.")
        if draft != case.draft:
            raise Mistake("you change `draft`, which the caller still uses.", idea="Make a new list, `list(draft)`.")
        if not isinstance(result, list) or not all(isinstance(token, int) for token in result):
            raise Mistake(f"a list of tokens is expected; yours is {str(result)[:60]}.", idea="Return a list of ints.")
        found[str(result)] = found.get(str(result), 0.0) + ways.probability
        while ways.taken and ways.taken[-1][0] + 1 == ways.taken[-1][1]:
            ways.taken.pop()
        if not ways.taken:
            return found
        script = [index for index, _ in ways.taken]
        script[-1] += 1
    raise Mistake("there is no end to your coins.", idea="Toss one coin a guess at most, and choose one token.")


def run(attempt: Any, case: Case, watch: Watch) -> None:
    probabilities: dict[str, float] = {}

    def judged() -> None:
        probabilities.update(results(attempt, case))

    def look() -> dict[str, Any]:
        rounded = ((result, round(chance, 5)) for result, chance in sorted(probabilities.items()))  # float32 will do
        told = [f"{result} with {chance:.3g}" for result, chance in rounded if chance]
        return {"what comes, and its probability,": Shown(", ".join(told))}

    watch("`accept_or_redraw`", judged, look=look)


def tell(case: Case) -> str:
    return f"`draft` = {case.draft}, `draft_probs` = {case.q}, `probs` = {case.p}."


MISTAKES = """
You accept every guess. Those that the draft draws more often than the model would come too often.
~ if not coin(min(1.0, p[guess] / q[guess])) => if False
The share of q(x) that is needed is p(x) / q(x): then x comes with q(x) · p(x) / q(x) = p(x). You take another one.
~ p[guess] / q[guess] => p[guess] / (p[guess] + q[guess])
Each guess needs one coin. A second one changes its probability.
- if not coin => if not coin(min(1.0, p[guess] / q[guess])) or not coin(min(1.0, p[guess] / q[guess])):
or - if not coin => if not coin(min(1.0, p[guess] / q[guess])) and not coin(min(1.0, p[guess] / q[guess])):
A guess is judged only if those before it were accepted, so its own p(x) / q(x) counts, not their product.
- for place, (guess, q, p)
+ ratio = 1.0
+ ...
+     ratio *= min(1.0, p[guess] / q[guess])
~ coin(min(1.0, p[guess] / q[guess])) => coin(ratio)
or - for place, (guess, q, p)
+ ratio = 1.0
+ ...
+     ratio *= p[guess] / q[guess]
~ coin(min(1.0, p[guess] / q[guess])) => coin(min(1.0, ratio))
The weights after a refusal are what is missing of each token: the *difference* p - q where that is above 0.
~ max(0.0, ours - theirs) => ours / theirs if theirs else 0.0
or ~ max(0.0, ours - theirs) => ours / theirs
or ~ max(0.0, ours - theirs) => ours if ours > theirs else 0.0
or ~ max(0.0, ours - theirs) => min(ours, theirs)
After a refusal, draw in the refused place, from max(0, p - q). The last row of `probs` is for k accepted guesses.
~ choose([max(0.0, ours - theirs) for ours, theirs in zip(p, q)]) => choose(probs[-1])
Accept x with p(x) / q(x): the model's probability, divided by the draft's.
~ p[guess] / q[guess] => q[guess] / p[guess] if p[guess] else 1.0
Which token is drawn after a refusal matters. Drawn from p, the refused token could come again, and those that q has too
much of would come too often: draw from what p has more of than q.
~ choose([max(0.0, ours - theirs) for ours, theirs in zip(p, q)]) => choose(p)
or ~ max(0.0, ours - theirs) for ours, theirs in zip(p, q) => each * (x != guess) for x, each in enumerate(p)
After a refusal, the *larger* model decides: max(0, p - q).
~ choose([max(0.0, ours - theirs) for ours, theirs in zip(p, q)]) => choose(q)
or ~ max(0.0, ours - theirs) => max(0.0, theirs - ours)
The difference is negative where q is larger: `max(0.0, ours - theirs)`.
~ max(0.0, ours - theirs) => ours - theirs
or ~ max(0.0, ours - theirs) => abs(ours - theirs)
The probability of accepting is p(x) / q(x), or 1 if that is more. You accept with p(x).
~ min(1.0, p[guess] / q[guess]) => p[guess]
Accept x with probability p(x) / q(x): toss the coin.
~ coin(min(1.0, p[guess] / q[guess])) => p[guess] >= q[guess]
or ~ coin(min(1.0, p[guess] / q[guess])) => p[guess] == max(p)
Always drawing anew from p has the right distribution, too, but then no guess is ever accepted.
< for place, (guess, q, p) => return [choose(probs[0])]
or < for place, (guess, q, p) => if draft: return [choose(probs[0])]
or ~ coin(min(1.0, p[guess] / q[guess])) => coin(q[guess] and sum(min(pair) for pair in zip(p, q)))
You accept a guess if a draw of the larger model is the same by chance. That happens with p(x), and p(x) / q(x) is more.
- if not coin
- return [*draft[:place]
+ own = choose(p)
+ if own != guess:
+     return [*draft[:place], own]
If all guesses are accepted, one more token is drawn, from the last row of `probs`.
~ choose(probs[len(draft)]) => choose(probs[len(draft) - 1])
or ~ choose(probs[len(draft)]) => choose(probs[0])
or ~ return [*draft, choose(probs[len(draft)])] => return draft
or ~ choose(probs[len(draft)]) => choose([max(0.0, a - b) for a, b in zip(probs[-1], (draft_probs or [[0, 0]])[-1])])
Without guesses, one token is drawn from the first row of `probs`.
< for place, (guess, q, p) => if not draft: return []
The guesses before the refused one are accepted: they come first.
~ return [*draft[:place], choose( => return [choose(
The token that is drawn replaces the refused guess and all that follow it.
~ [*draft[:place], choose( => [*draft[: place + 1], choose(
or ~ [*draft[:place], choose( => [*draft, choose(
What follows a refused guess is refused, too: it was drawn after a token that isn't there. Stop at the first refusal.
- for place, (guess, q, p)
+ kept = [x for x, q, p in zip(draft, draft_probs, probs) if coin(min(1.0, p[x] / q[x]))]
+ if len(kept) < len(draft):
+     q, p = draft_probs[len(kept)], probs[len(kept)]
+     weights = [max(0.0, ours - theirs) for ours, theirs in zip(p, q)]
+     return [*kept, choose(weights if sum(weights) else p)]
+ for guess, q, p in ():
~ [*draft[:place], choose( => [choose(
What follows a refused guess is refused, too: it was drawn after a token that isn't there. You go on after it.
- for place, (guess, q, p) ... return [*draft, choose(probs
+ found = []
+ for x, q, p in zip(draft, draft_probs, probs):
+     weights = [max(0.0, ours - theirs) for ours, theirs in zip(p, q)]
+     found.append(x if coin(min(1.0, p[x] / q[x])) else choose(weights))
+ return [*found, choose(probs[-1])]
or - for place, (guess, q, p) ... return [*draft, choose(probs
+ kept = [x for x, q, p in zip(draft, draft_probs, probs) if coin(min(1.0, p[x] / q[x]))]
+ return [*kept, choose(probs[-1])]
The likeliest token isn't a draw: the others would never come. `choose` draws by weights.
~ choose([max => likeliest([max
or ~ choose(probs => likeliest(probs
or ~ choose( => likeliest(
Each place has its own distributions, p and q. You use those of one place for all.
~ in zip(p, q)] => in zip(p, draft_probs[-1])] if draft_probs[-1] != p else p
or ~ p[guess] / q[guess] => p[guess] / max(1e-9, draft_probs[-1][guess])
or - for place, (guess, q, p)
+ for place, guess in enumerate(draft):
+     q, p = draft_probs[0], probs[0]
or ~ min(1.0, p[guess] / q[guess]) => min(1.0, probs[0][guess] / q[guess])
After a refusal, p and q are those of the refused place.
~ in zip(p, q)] => in zip(probs[place + 1], q)]
or < for place, (guess, q, p) => if draft: first_p, first_q = probs[0], draft_probs[0]
~ in zip(p, q)] => in zip(first_p, first_q)] if first_p != first_q else p
`probs` has a row for each place: the guess in place i is judged by row i.
~ enumerate(zip(draft, draft_probs, probs)) => enumerate(zip(draft, draft_probs, probs[1:]))
Only the first refusal ends the guesses. You stop after the first guess, right or wrong.
- return [*draft, choose(probs[len(draft)])] => return [*draft[:1], choose(probs[len(draft[:1])])]
~ zip(draft, draft_probs, probs)) => zip(draft[:1], draft_probs, probs))
The coin says whether the guess is accepted. You take it the other way round.
~ if not coin => if coin
"""

TASK = Task(
    reference="lessons_lib.engine.rejection_sampling:accept_or_redraw",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES, likeliest=lambda weights: weights.index(max(weights))),
    about={
        "what comes, and its probability,": "A guess x is accepted with min(1, p(x) / q(x)); where one isn't, the "
        "token is drawn from max(0, p - q), and nothing follows; if all are, one more is drawn from the last row.",
        "raised ValueError": "The weights of `choose` are 0 or more, and at least one is above 0.",
    },
)

EXERCISE = TASK.exercise(
    id="18.3",
    title="accept or redraw",
    hints=(
        "Begin with one guess. It is x with probability q(x), and should be with p(x). Where q(x) is larger, accept "
        "only a part of the x's. Which tokens are missing then, and how many of each?",
        "For each place: `coin(min(1, p(x) / q(x)))` accepts. At the first refusal, return the guesses before it and "
        "one token from `choose`, with the weights max(0, p - q). If there was none: all guesses, and one from "
        "the last row of `probs`.",
        "`for place, (guess, q, p) in enumerate(zip(draft, draft_probs, probs)):`; `if not coin(min(1.0, p[guess] / "
        "q[guess])):`; `return [*draft[:place], choose([max(0.0, a - b) for a, b in zip(p, q)])]`; at the end `return "
        "[*draft, choose(probs[len(draft)])]`.",
    ),
)
