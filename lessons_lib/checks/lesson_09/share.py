"""Judges 09.1, `share_budget`: decodes first, prompts with what is left, and never a token too many."""

from numbers import Integral
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_09.made_up import a_sequence, names_of, state_of
from lessons_lib.scheduling.scheduler import share_budget

# ((name, tokens of the prompt, of the answer so far, computed), ...), budget; smallest first.
CASES = (
    ([("A", 13, 5, 17)], 32),
    ([("A", 13, 0, 0)], 32),
    ([("A", 13, 0, 8)], 32),
    ([("A", 13, 0, 0)], 8),
    ([("A", 13, 5, 17), ("C", 3, 2, 4)], 2),
    ([("A", 13, 5, 17), ("C", 3, 2, 4), ("D", 21, 1, 21)], 2),
    ([("A", 13, 5, 17)], 0),
    ([("B", 62, 0, 0), ("A", 13, 5, 17)], 32),
    ([("B", 62, 0, 0), ("A", 13, 5, 17)], 1),
    ([("D", 21, 0, 0), ("F", 40, 0, 0)], 32),
    ([("F", 40, 0, 0), ("D", 21, 0, 0)], 48),
    ([("D", 21, 0, 0), ("F", 40, 0, 0)], 21),
    ([("A", 13, 5, 17), ("B", 62, 0, 32), ("C", 3, 2, 4), ("D", 21, 0, 0), ("F", 40, 0, 0)], 64),
    ([("E", 5, 20, 0)], 64),
    ([("E", 5, 20, 0), ("A", 13, 5, 17)], 10),
    ([("F", 40, 0, 0), ("D", 21, 0, 20)], 16),
    ([], 32),
)


def check_share_budget(attempt) -> None:
    found = []
    for specs, budget in CASES:
        try:
            found.append(_counts(attempt, specs, budget))
        except Exception:
            if found == [_right(*case) for case in CASES[: len(found)]]:
                raise
            break  # an earlier case was wrong: that one is told
    for case, counts in zip(CASES, found):
        if counts != _right(*case):
            raise Mistake(_what(counts, _right(*case)), case=_told(*case), idea=_why(found, counts, case))
    rng = Random(9)
    for _ in range(200):
        specs = []
        for name in "ABCDEFGH"[: rng.randint(0, 8)]:
            prompt, answer = rng.choice((1, 2, 13, 40)), rng.choice((0, 1, 7))
            specs.append((name, prompt, answer, rng.choice((0, prompt + answer - 1, rng.randrange(prompt + answer)))))
        case = specs, rng.choice((0, 1, 2, 5, 16, 64))
        counts = _counts(attempt, *case)
        if counts != _right(*case):
            raise Mistake(_what(counts, _right(*case)), case=_told(*case), idea=_why([], counts, case))


def _made(specs) -> list:
    return [a_sequence(name, prompt, answered=answer, computed=computed) for name, prompt, answer, computed in specs]


def _right(specs, budget: int) -> dict[str, int]:
    return {sequence.id: count for sequence, count in share_budget(_made(specs), budget).items()}


def _told(specs, budget: int) -> str:
    running = ", ".join(
        f"{name} ({prompt + answer} tokens known, {computed} computed)" for name, prompt, answer, computed in specs
    )
    return f"running: {running or 'nobody'}; budget {budget}."


def _what(counts, want) -> str:
    return f"the counts should be {want}; yours are {short(counts)}."


def _counts(attempt, specs, budget: int) -> dict[str, int]:
    """What the attempt hands out, by name.

    Raises:
        Mistake: it changed something, or what it returned are no counts of sequences.
    """
    running, case = _made(specs), _told(specs, budget)
    given, states = list(running), [state_of(sequence) for sequence in running]
    got = call(lambda: attempt(given, budget), case=case)
    if names_of(given) != names_of(running):
        what = f"your code changed the list `running`: it holds {names_of(given)} after the call, and held {names_of(running)}."
        raise Mistake(
            what,
            case=case,
            idea="It is the scheduler's own list, in the order of admission. Make a new one: `[... for sequence in running if ...]` or `sorted(...)`.",
        )
    for sequence, state in zip(running, states):
        if state_of(sequence) != state:
            what = f"your code changed {sequence.id} itself: {state[2]} tokens were computed of it, now {sequence.num_computed_tokens}, of {sequence.num_tokens} known."
            raise Mistake(
                what, case=case, idea="This is a plan. What is computed is counted after the pass, by `update`."
            )
    return _as_counts(got, running, case)


def _as_counts(got, running, case: str) -> dict[str, int]:
    if not isinstance(got, dict):
        raise Mistake(
            f"a dict should come back; yours returned {type(got).__name__}.",
            case=case,
            idea="sequence → number of tokens: `counts[sequence] = ...`.",
        )
    strange = [key for key in got if not any(key is sequence for sequence in running)]
    if strange:
        idea = "The keys are the sequences themselves, not their names or numbers: `counts[sequence] = 1`."
        raise Mistake(
            f"the dict should have sequences of `running` as keys; yours has {short(strange[0])}.", case=case, idea=idea
        )
    for sequence, count in got.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            idea = "A step computes whole tokens: min and minus of whole numbers are whole; `/` makes a float."
            raise Mistake(f"a count should be a whole number; {sequence.id} has {count!r}.", case=case, idea=idea)
    return {sequence.id: int(count) for sequence, count in got.items()}


def _wanted(sequence) -> int:
    return sequence.num_tokens - sequence.num_computed_tokens


def _handed_out(sequences, budget, wants=_wanted, cut=True) -> dict[str, int]:
    """What comes of going through sequences in this order."""
    counts = {}
    for sequence in sequences:
        wanted = wants(sequence)
        count = min(wanted, budget) if cut else wanted if wanted <= budget else 0
        if count > 0:
            counts[sequence.id] = count
            budget -= count
    return counts


def _ones(running) -> list:
    return [sequence for sequence in running if _wanted(sequence) == 1]


def _more(running) -> list:
    return [sequence for sequence in running if _wanted(sequence) > 1]


def _both(running) -> list:
    return _ones(running) + _more(running)


def _answering_first(running) -> list:
    return sorted(running, key=lambda sequence: not sequence.output_ids)


def _each(sequences) -> dict[str, int]:
    return {sequence.id: 1 for sequence in sequences}


# Another rule, and what to say to whoever follows it: (running, budget) -> counts.
RULES = (
    (lambda r, b: {s.id: _wanted(s) for s in r}, "This is all that everybody wants. Take what you hand out off the budget, and give nobody more than is left."),
    (lambda r, b: _each(_ones(r)) | _handed_out(_more(r), b), "The tokens of those that want one were not taken off the budget."),
    (lambda r, b: _each(_ones(r)) | _handed_out(_more(r), b - len(_ones(r))), "More want one token than there is room for. The last of them get none in this step."),
    (lambda r, b: _handed_out(r, b), "You go through `running` in one turn, and somebody who wants a single token stands behind a prompt. Serve all that want one first, then the others."),
    (lambda r, b: _handed_out(_more(r) + _ones(r), b), "The prompts come first here, and the rest gets what they leave. Those that want one token come first: it costs little, and without it an answer ends a step later."),
    (lambda r, b: _handed_out(_ones(r), b), "Whoever wants more than one token got nothing. What is left of the budget is for prompts."),
    (lambda r, b: _handed_out(_more(r), b), "Whoever wants one token got nothing: 1 is a wish too."),
    (lambda r, b: _handed_out(_both(r), b, cut=False), "A prompt that does not fit as a whole still gets a chunk: as many tokens as are left of the budget. Otherwise a prompt longer than the budget never starts."),
    (lambda r, b: _handed_out(_ones(r) + _more(r)[::-1], b), "The prompts are served in the wrong order. First in `running`, first served: the one that was admitted first is finished first."),
    (lambda r, b: _handed_out(_ones(r) + sorted(_more(r), key=_wanted), b), "You serve short wishes before long ones. Among those that want more than one token, the order is that of `running`."),
    (lambda r, b: _handed_out(_ones(r) + _more(r)[:1], b), "Only one of the prompts got tokens. Go on while any budget is left."),
    (
        lambda r, b: _handed_out(_answering_first(r), b, lambda s: 1 if s.output_ids else _wanted(s)),
        "Who has answered already does not always want one token. Here an answer has to be computed again, because the cache was lost: known − computed is the wish, whatever the tokens are.",
    ),
    (lambda r, b: _handed_out(_answering_first(r), b), "You seem to ask whether there is an answer. The wish alone decides: those with known − computed = 1 come first."),
    (lambda r, b: _handed_out(_both(r), b, lambda s: len(s.prompt_ids) - s.num_computed_tokens), "You count the prompt only. An answer whose cache was lost is computed again as well: known tokens are those of the prompt and of the answer so far, `sequence.num_tokens`."),
    (lambda r, b: _handed_out(_both(r), b, lambda s: len(s.prompt_ids) - s.num_computed_tokens or 1), "You count the prompt only, and one token for whoever answers. An answer whose cache was lost is computed again as a whole: known tokens are those of the prompt and of the answer, `sequence.num_tokens`."),
    (lambda r, b: _handed_out(_both(r), b, lambda s: s.num_tokens), "These are all tokens that are known. Those that are computed already are in the cache: wanted = known − computed."),
    (lambda r, b: _handed_out(_both(r), b, lambda s: len(s.prompt_ids)), "These are whole prompts. Wanted is what is known and not computed yet."),
    (lambda r, b: _each(r[:b]), "Everybody got one token. Who has a prompt to compute wants more: known − computed, as far as the budget goes."),
    (lambda r, b: _each(_both(r)[:b]), "Nobody got more than one token. Who has a prompt to compute wants more: known − computed, as far as the budget goes."),
    (lambda r, b: _handed_out(_both(r), max(b - 1, 0)), "One token of the budget is not used: as many tokens may be computed as the budget says."),
)  # fmt: skip


def _why(found, counts, case) -> str:
    specs, budget = case
    if any(count == 0 for count in counts.values()):
        return "Who gets no token is left out: an entry of 0 would put an empty piece into the packed row."
    if any(count < 0 for count in counts.values()):
        return "A count below 0: was more handed out than the budget holds?"
    for rule, idea in RULES:
        if found and found == [rule(_made(other), room) for other, room in CASES[: len(found)]]:
            return idea
    if sum(counts.values()) > budget:
        return f"Together these are {sum(counts.values())} tokens; a step has room for {budget}. Take what you hand out off the budget."
    if sum(counts.values()) < sum(_right(*case).values()):
        return "Budget is left, and somebody could use it. Give each as much as it wants while there is any."
    return "First one token to each that wants one, in order; then to each of the others `min(wanted, what is left)`, in order."
