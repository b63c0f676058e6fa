"""Checks 09.1, `share_budget`: decodes first, then prompts with what is left, never more than the budget."""

from numbers import Integral
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_09.made_up import a_sequence, names_of, state_of
from lessons_lib.scheduling.scheduler import share_budget
from lessons_lib.scheduling.sequence import Sequence

# ((name, tokens of the prompt, tokens of the answer so far, computed tokens), ...), budget; smallest first.
CASES = (
    ([("A", 13, 5, 17)], 32),
    ([("A", 13, 0, 0)], 32),
    ([("A", 13, 0, 8)], 32),
    ([("A", 13, 0, 0)], 8),
    ([("A", 13, 0, 0)], 1),
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
    ([("A", 13, 5, 17), ("C", 3, 2, 4), ("F", 40, 0, 0)], 1),
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
            break  # an earlier case was wrong: report that one
    for case, counts in zip(CASES, found):
        if counts != _right(*case):
            raise Mistake(_what(counts, _right(*case)), case=_told(*case), idea=_why(found, counts, case))
    _check_order_of_admission(attempt)
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


def _check_order_of_admission(attempt) -> None:
    """The first one in `running` arrived last."""
    for specs, budget in (([("D", 21, 0, 0), ("F", 40, 0, 0)], 32), ([("A", 13, 5, 17), ("C", 3, 2, 4)], 1)):
        running = _made(specs)
        running[0].arrival_time = 1.0
        first, second = names_of(running)
        case = f"{_told(specs, budget)} {first} arrived at 1, {second} at 0."
        counts = _as_counts(call(lambda: attempt(list(running), budget), case=case), running, case)
        if counts != _right(specs, budget):
            idea = (
                f"{second} arrived before {first}, but was admitted after it. Go through the sequences in the order of "
                "`running`."
            )
            raise Mistake(_what(counts, _right(specs, budget)), case=case, idea=idea)


def _made(specs) -> list:
    return [a_sequence(name, prompt, answered=answer, computed=computed) for name, prompt, answer, computed in specs]


def _right(specs, budget: int) -> dict[str, int]:
    return {sequence.id: count for sequence, count in share_budget(_made(specs), budget).items()}


def _told(specs, budget: int) -> str:
    running = ", ".join(
        f"{name} (known {prompt + answer}, computed {computed})" for name, prompt, answer, computed in specs
    )
    return f"running: {running or 'none'}; budget {budget}."


def _what(counts, want) -> str:
    return f"the scheduled tokens should be {want}; yours are {short(counts)}."


def _counts(attempt, specs, budget: int) -> dict[str, int]:
    """What the attempt schedules, by name.

    Raises:
        Mistake: it changed something, or didn't return a dict of sequence -> count.
    """
    running, case = _made(specs), _told(specs, budget)
    given, states = list(running), [state_of(sequence) for sequence in running]
    got = call(lambda: attempt(given, budget), case=case)
    if names_of(given) != names_of(running):
        what = f"your code changed the list `running`: it was {names_of(running)} and is now {names_of(given)}."
        raise Mistake(
            what,
            case=case,
            idea=(
                "It's the scheduler's own list, in the order of admission. Make a new one: `[... for sequence in "
                "running if ...]` or `sorted(...)`."
            ),
        )
    for sequence, state in zip(running, states):
        if state_of(sequence) != state:
            what = (
                f"your code changed {sequence.id} itself: {state[2]} of its tokens were computed, now "
                f"{sequence.num_computed_tokens} of {sequence.num_tokens}."
            )
            raise Mistake(
                what,
                case=case,
                idea="Nothing has been computed yet. `update` counts computed tokens after the forward pass.",
            )
    return _as_counts(got, running, case)


def _as_counts(got, running, case: str) -> dict[str, int]:
    if not isinstance(got, dict):
        raise Mistake(
            f"the function should return a dict; yours returned {type(got).__name__}.",
            case=case,
            idea="Map each sequence to its number of tokens: `num_scheduled_tokens[sequence] = ...`.",
        )
    strange = [key for key in got if not any(key is sequence for sequence in running)]
    if strange and all(isinstance(key, Sequence) for key in got):
        name = strange[0].id
        raise Mistake(
            f"the keys of the dict should be sequences from `running`; yours has a sequence {name} that isn't there.",
            case=case,
            idea="It may be left from an earlier call, or a copy. Make a new dict in each call, and use the sequences "
            "of `running` themselves.",
        )
    if strange:
        idea = "The keys are the sequences themselves, not their ids or indices: `num_scheduled_tokens[sequence] = 1`."
        raise Mistake(
            f"the keys of the dict should be sequences from `running`; yours has {short(strange[0])}.",
            case=case,
            idea=idea,
        )
    for sequence, count in got.items():
        if isinstance(count, bool) or not isinstance(count, Integral):
            idea = "A step computes whole tokens. `min` and `-` of ints give ints; `/` gives a float."
            raise Mistake(f"a count should be an int; {sequence.id} has {count!r}.", case=case, idea=idea)
    return {sequence.id: int(count) for sequence, count in got.items()}


def _wanted(sequence) -> int:
    return sequence.num_tokens - sequence.num_computed_tokens


def _served_in_order(sequences, budget, wants=_wanted, cut=True) -> dict[str, int]:
    """What going through sequences in this order schedules."""
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


def _decoding_first(running) -> list:
    return sorted(running, key=lambda sequence: _wanted(sequence) != 1 or not sequence.output_ids)


def _split_evenly(running, budget) -> dict[str, int]:
    ones, more = _ones(running)[:budget], _more(running)
    return _each(ones) | _served_in_order(more, budget, lambda s: min(_wanted(s), (budget - len(ones)) // len(more)))


def _up_to_the_first_one(running, budget) -> dict[str, int]:
    first = next((index for index, sequence in enumerate(running) if _wanted(sequence) == 1), len(running))
    return _served_in_order(_ones(running) + running[:first], budget)


def _ones_twice(running, budget) -> dict[str, int]:
    ones = _each(_ones(running)[:budget])
    return ones | _served_in_order(running, budget - len(ones))


ALL_KNOWN = "You schedule all known tokens. Those already computed are in the cache: wanted = known − computed."
PROMPT_ONLY = (
    "You count only the prompt. An answer whose cache was lost is computed again as well: the known tokens "
    "are prompt and answer so far, `sequence.num_tokens`."
)
# Another rule, (running, budget) -> counts, and the message if the attempt follows it.
RULES = (
    (lambda r, b: {s.id: _wanted(s) for s in r}, (
        "Each sequence gets all it wants. Subtract what you schedule from the budget, and never schedule more "
        "than is left."
    )),
    (lambda r, b: _each(_ones(r)) | _served_in_order(_more(r), b), (
        "A sequence that wants one token uses up budget too: subtract its token from the budget."
    )),
    (lambda r, b: _each(_ones(r)) | _served_in_order(_more(r), b - len(_ones(r))), (
        "More sequences want one token than the budget allows. The last of them get none in this step."
    )),
    (lambda r, b: _served_in_order(r, b), (
        "A sequence that wants one token waits behind a prompt. First serve all that want one, wherever they are in "
        "`running`, then the others."
    )),
    (lambda r, b: _served_in_order(_more(r) + _ones(r), b), (
        "You serve the prompts first, and the rest gets what they leave. Sequences that want one token come "
        "first: that token costs little, and without it an answer ends a step later."
    )),
    (lambda r, b: _served_in_order(_ones(r), b), (
        "Sequences that want more than one token got nothing. What is left of the budget is for prompts."
    )),
    (lambda r, b: _served_in_order(_more(r), b), "Sequences that want one token got nothing: wanting 1 counts too."),
    (lambda r, b: _served_in_order(_both(r), b, cut=False), (
        "A prompt that doesn't fit as a whole still gets a chunk: as many tokens as are left of the budget. "
        "Otherwise a prompt longer than the budget never starts."
    )),
    (lambda r, b: _served_in_order(_ones(r) + _more(r)[::-1], b), (
        "You serve the prompts in the wrong order. Go through them in the order of `running`, so that the oldest "
        "is completed first."
    )),
    (lambda r, b: _served_in_order(_ones(r) + sorted(_more(r), key=_wanted), b), (
        "You serve short prompts before long ones. Among sequences that want more than one token, keep the order "
        "of `running`."
    )),
    (lambda r, b: _served_in_order(_ones(r) + _more(r)[:1], b), (
        "Only one of the prompts got tokens. Continue while any budget is left."
    )),
    (
        lambda r, b: _served_in_order(_answering_first(r), b, lambda s: 1 if s.output_ids else _wanted(s)),
        (
            "A sequence that has begun its answer doesn't always want one token. Here the cache was lost, so the "
            "answer has to be computed again: what it wants is known − computed."
        ),
    ),
    (lambda r, b: _served_in_order(_answering_first(r), b), (
        "You seem to check whether there is an answer. Only what a sequence wants matters: sequences with "
        "known − computed = 1 come first."
    )),
    (lambda r, b: _served_in_order(_both(r), b, lambda s: len(s.prompt_ids) - s.num_computed_tokens), PROMPT_ONLY),
    (
        lambda r, b: _served_in_order(
            _both(r), b, lambda s: 1 if _wanted(s) == 1 else len(s.prompt_ids) - s.num_computed_tokens
        ),
        PROMPT_ONLY,
    ),
    (lambda r, b: _served_in_order(_both(r), b, lambda s: len(s.prompt_ids) - s.num_computed_tokens or 1), (
        "You count only the prompt, plus one token once it is computed. An answer whose cache was lost is "
        "computed again as a whole: the known tokens are prompt and answer, `sequence.num_tokens`."
    )),
    (lambda r, b: _served_in_order(_both(r), b, lambda s: s.num_tokens), ALL_KNOWN),
    (lambda r, b: _served_in_order(_both(r), b, lambda s: 1 if _wanted(s) == 1 else s.num_tokens), ALL_KNOWN),
    (lambda r, b: _served_in_order(_both(r), b, lambda s: len(s.prompt_ids)), (
        "You schedule whole prompts. A sequence wants the tokens that are known and not computed yet."
    )),
    (lambda r, b: _each(r[:b]), (
        "Each sequence got one token. One with a prompt to compute wants more: known − computed, as far as the "
        "budget goes."
    )),
    (lambda r, b: _each(_both(r)[:b]), (
        "No sequence got more than one token. One with a prompt to compute wants more: known − computed, as far "
        "as the budget goes."
    )),
    (lambda r, b: _served_in_order(_decoding_first(r), b), (
        "A sequence that wants one token comes first even if it hasn't begun its answer: here, D wants only the "
        "last token of its prompt. What counts is known − computed = 1."
    )),
    (_up_to_the_first_one, (
        "Your second pass stops at a sequence that wants one token. Leave that sequence out and go on with the next: "
        "`continue`, not `break`."
    )),
    (lambda r, b: _served_in_order(sorted(r, key=lambda s: len(s.prompt_ids)), b), (
        "You serve short prompts before long ones. First come those that want one token, then the others, both in the "
        "order of `running`."
    )),
    (_split_evenly, (
        "You divide what is left among the prompts. The first of them gets as much as it wants, then the next one: "
        "`min(wanted, what is left)`, in order."
    )),
    (_ones_twice, (
        "A sequence that wants one token seems to pay for it twice. In the second pass, leave out the sequences that "
        "want one token."
    )),
    (lambda r, b: _served_in_order(_ones(r) or r, b), (
        "As soon as a sequence wants one token, the prompts get nothing. What is left of the budget is for them."
    )),
    (lambda r, b: _served_in_order(_both(r), max(b - 1, 0)), (
        "One token of the budget stays unused: the step may use the whole budget."
    )),
)  # fmt: skip


def _why(found, counts, case) -> str:
    _, budget = case
    if any(count == 0 for count in counts.values()):
        return "Leave out sequences that get no tokens: an entry of 0 would put an empty segment into the packed batch."
    if any(count < 0 for count in counts.values()):
        return (
            "A count is negative. More sequences may want one token than the budget allows: subtract only what you "
            "schedule, and stop when nothing is left."
        )
    for rule, idea in RULES:
        if found and found == [rule(_made(other), room) for other, room in CASES[: len(found)]]:
            return idea
    if counts and budget == 0:
        return "With a budget of 0, no sequence gets a token."
    if sum(counts.values()) > budget:
        return (
            f"That makes {sum(counts.values())} in total; the budget is {budget}. Subtract what you "
            "schedule from the budget."
        )
    return _first_too_short(counts, case) or (
        "First, one token for each sequence that wants one, in order; then `min(wanted, what is left)` for each "
        "of the others, in order."
    )


def _first_too_short(counts, case) -> str:
    """The first sequence, in the order of serving, that gets less than it could, as a sentence; "" if there is none."""
    specs, budget = case
    want, left = _right(*case), budget - sum(counts.values())
    for sequence in _both(_made(specs)):
        name, got = sequence.id, counts.get(sequence.id, 0)
        if got > _wanted(sequence):
            return f"{name} gets {got} tokens, and wants only {_wanted(sequence)}."
        if got >= want.get(name, 0):
            continue
        wants = (
            f"{name} wants {_wanted(sequence)} token{'s' * (_wanted(sequence) != 1)} (known − computed = "
            f"{sequence.num_tokens} − {sequence.num_computed_tokens}) and gets {got}"
        )
        if left:
            return f"{wants}, although {left} of the budget {'are' if left > 1 else 'is'} left."
        ahead = next(other for other in counts if counts[other] > want.get(other, 0))
        return f"{wants}. {ahead}, which comes after it, gets {counts[ahead]}."
    return ""
