"""Judges 13.2, `next_tokens`, and 13.4, `replace_placeholders`: tokens that the host doesn't know yet."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.attention.custom_op import replace_placeholders
from lessons_lib.checks.exercise import Mistake, call, current_case, short
from lessons_lib.engine.input_batch import next_tokens
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.viz.words import marked

# --- 13.2


@dataclass(frozen=True)
class Part:
    """A sequence in a step: its tokens, how many are computed and how many are scheduled, and its index in the step in
    flight."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    computed: int = 0
    count: int = 1
    waits: bool = False
    row: int | None = None

    def __str__(self) -> str:
        text = f"{self.name}: prompt {list(self.prompt)}"
        text += f", output {list(self.output)}" if self.output else ""
        text += ", and a placeholder" if self.waits else ""
        text += f"; {self.computed} computed, {self.count} scheduled"
        return text + (f"; index {self.row} in the step in flight" if self.row is not None else "")


@dataclass(frozen=True)
class Case:
    parts: tuple[Part, ...]
    idea: str

    def __str__(self) -> str:
        return ". ".join(map(str, self.parts)) + "."

    def build(self) -> tuple[SchedulerOutput, dict[Sequence, int]]:
        sequences = [
            Sequence(
                part.name, list(part.prompt), 20, output_ids=list(part.output), num_computed_tokens=part.computed,
                num_placeholders=int(part.waits), blocks=[number],
            )
            for number, part in enumerate(self.parts)
        ]  # fmt: skip
        of_row = {part.row: sequence for sequence, part in zip(sequences, self.parts) if part.row is not None}
        # The other sequences of the step in flight aren't scheduled again.
        rows = {of_row.get(row) or Sequence("gone", [1], 20): row for row in range(max(of_row, default=-1) + 1)}
        return SchedulerOutput({each: part.count for each, part in zip(sequences, self.parts)}), rows


PROMPT = (11, 12, 13, 14)
NEXT = "The next tokens begin at `num_computed_tokens`; count from the beginning of the prompt."
KNOWN = "A sequence of the step in flight doesn't always wait for a token. This one's next token is known."
ZERO = " (−i wouldn't do: −0 is token 0. And an `if` takes the index 0 for False.)"
UNKNOWN = (
    "All known tokens are computed; the next one is the token that the step in flight produces for this sequence: "
    "−1 − i, where i is its index in that step."
)

ATTRIBUTES = {
    "prompt_ids": "Join prompt and output in a new list. `+=` and `append` change the list of the sequence itself.",
    "output_ids": "Only read it: `output_ids` gets the token once it arrives.",
    "num_computed_tokens": "Only read it: the engine counts these tokens itself.",
    "num_placeholders": "Only read it: the engine counts placeholders itself.",
}

CASES = (
    Case((Part("A", PROMPT, count=4),), "Nothing is computed yet, and the whole prompt is scheduled."),
    Case((Part("A", PROMPT, count=2),), "Two tokens are scheduled: the first two that aren't computed yet."),
    Case((Part("A", PROMPT, computed=2, count=2),), NEXT),
    Case((Part("A", PROMPT, (21,), computed=4),), "The output follows the prompt: token 4 is `output_ids[0]`."),
    Case((Part("A", PROMPT, (21, 22, 23), computed=6),), "Token 6 is `output_ids[6 - 4]`."),
    Case((Part("A", PROMPT, (21,), computed=5, waits=True, row=0),), UNKNOWN + ZERO),
    Case((Part("B", (31,), (41,), 1), Part("A", PROMPT, (21,), 5, waits=True, row=2)), UNKNOWN),
    Case((Part("A", PROMPT, computed=4, waits=True, row=1),), UNKNOWN + " It's the first one after the prompt."),
    Case((Part("A", PROMPT, computed=2, count=2, row=0),), KNOWN + " The step in flight has a part of its prompt."),
    Case((Part("A", PROMPT, computed=3, count=1, row=0),), KNOWN + " It is the last token of the prompt."),
    Case((Part("A", PROMPT, (21,), computed=4, row=0),), KNOWN + " It has arrived already."),
    Case((Part("A", PROMPT),), "One scheduled token needn't be the last of its sequence: this is the first of the "
         "prompt. `num_computed_tokens` says which one is next."),
    Case((Part("A", PROMPT), Part("B", (31, 32), (41,), computed=2)), "One sequence after the other, in their order."),
    Case(
        (Part("A", PROMPT, (21,), 5, waits=True, row=1), Part("B", (31, 32), (41,), 3, waits=True, row=0)),
        "i is the sequence's index in the step in flight, which `previous_rows` knows. In this step it has another.",
    ),
    Case(
        (Part("A", PROMPT, count=4), Part("B", (31, 32), (41,), 3, waits=True, row=0), Part("C", (51,), (61,), 1)),
        "Each sequence has as many tokens in this step as are scheduled for it.",
    ),
    Case((Part("A", PROMPT, (21, 22), count=6),), "It was preempted, and all its tokens are computed again: the "
         "prompt's, and then those of the output."),
    Case((Part("A", PROMPT, (21, 22), computed=1, count=4),), "It is computed again in parts, and this part reaches "
         "from the prompt into the output."),
    Case((Part("A", PROMPT, (21, 22, 23), computed=4, count=2),), "It is computed again, and this part begins and ends "
         "in the output."),
)  # fmt: skip


def check_next_tokens(attempt) -> None:
    earlier: list[int] = []
    for case in CASES:
        earlier = _check_case(attempt, case, earlier)
    rng = Random(13)
    for _ in range(200):
        _check_case(attempt, _random_case(rng))


def _check_case(attempt, case: Case, earlier: list[int] | None = None) -> list[int]:
    """What the attempt returns, which is right; `earlier` is what the call before returned."""
    want = next_tokens(*case.build())
    current_case.text = told = str(case)
    scheduler_output, rows = case.build()
    before = _state(scheduler_output)
    try:
        got = attempt(scheduler_output, rows)
    except KeyError as error:
        missing = getattr(error.args[0], "id", None) if error.args else None
        if missing is None:
            raise
        raise Mistake(f"your code looked for {missing} in a dict that doesn't have it.", case=told,
                      idea="Only sequences of the step in flight are in `previous_rows`.") from None  # fmt: skip
    for old, new in zip(before, _state(scheduler_output)):
        for name, idea in ATTRIBUTES.items():
            if old[name] != new[name]:
                what = f"your code changed a sequence: its `{name}` was {short(old[name])}, and is {short(new[name])}."
                raise Mistake(what, case=told, idea=idea)
    if not isinstance(got, list) or any(not isinstance(token, int) or isinstance(token, bool) for token in got):
        what = f"expected a list of ints, {want}; yours returned a {type(got).__name__}: {short(got)}."
        idea = "One flat list: the tokens of the first sequence, then those of the second."
        raise Mistake(what, case=told, idea=idea)
    if got == want:
        return list(got)
    if earlier and got in (earlier + want, want + earlier):
        does = "begins" if got == earlier + want else "ends"
        what = f"your result {does} with the tokens of an earlier call, {short(earlier)}: {short(got)}."
        idea = "Make a new list in each call. A default such as `ids=[]` is made only once, and so is a list outside "
        raise Mistake(what, case=f"after that call, {told}", idea=idea + "the function: they grow from call to call.")
    if len(got) != len(want):
        what = f"the step computes {len(want)} token{'s' * (len(want) != 1)}; yours returned {len(got)}: "
        what += f"{marked(want, got)}."
    else:
        what = f"expected {short(want)}; yours returned {marked(want, got)}."
    idea = case.idea
    if len(case.parts) > 1 and sorted(got) == sorted(want):
        idea = "These are the right ids in another order. The order is that of `num_scheduled_tokens`."
    elif len(got) == len(want) and (again := _computed_in_place_of_a_placeholder(case, want, got)):
        idea = f"{again} is computed already. {case.idea.removesuffix(ZERO)}"
    raise Mistake(what, case=told, idea=idea)


def _computed_in_place_of_a_placeholder(case: Case, want: list[int], got: list[int]) -> int | None:
    computed = {token for part in case.parts for token in (*part.prompt, *part.output)[: part.computed]}
    return next((given for wanted, given in zip(want, got) if wanted < 0 and given in computed), None)


def _state(scheduler_output: SchedulerOutput) -> list[dict[str, object]]:
    """What must not change, of each sequence."""
    return [
        {name: deepcopy(getattr(sequence, name)) for name in ATTRIBUTES}
        for sequence in scheduler_output.num_scheduled_tokens
    ]


def _random_case(rng: Random) -> Case:
    parts, free_rows = [], rng.sample(range(8), 8)
    for name in "ABCDE"[: rng.randint(1, 5)]:
        prompt = tuple(rng.sample(range(1, 90), rng.randint(1, 5)))
        output = tuple(rng.sample(range(1, 90), rng.randint(0, 4)))
        total = len(prompt) + len(output)
        if rng.random() < 0.4:
            parts.append(Part(name, prompt, output, total, 1, True, free_rows.pop()))
            continue
        computed = rng.randrange(total)
        row = free_rows.pop() if computed and rng.random() < 0.5 else None
        parts.append(Part(name, prompt, output, computed, rng.randint(1, total - computed), False, row))
    return Case(tuple(parts), "Each of these sequences is right in a smaller case. Which rule decides between them?")


# --- 13.4


@dataclass(frozen=True)
class Ids:
    input_ids: tuple[int, ...]
    previous: tuple[int, ...]
    idea: str

    def __str__(self) -> str:
        return f"input_ids {list(self.input_ids)}, previous_tokens {list(self.previous)}."


ID_CASES = (
    Ids((-1,), (9,), "−1 stands for token 0 of the step in flight."),
    Ids((-1,), (9, 8, 7), "−1 − i stands for token i: −1 is token 0. (As an index, −1 means the last one.)"),
    Ids((-2,), (9, 8), "−1 − i stands for token i: −2 is token 1, also if no other id stands for token 0."),
    Ids((5, -1), (9, 8), "A known id stays as it is."),
    Ids((0, -1), (9, 8), "0 is a token like any other. Only negative ids are placeholders."),
    Ids((-3, 5, -1, 7), (9, 8, 6), "Each placeholder says which token it stands for, in any order."),
    Ids((-1, -1, 6), (9, 8), "Each placeholder says which token it stands for."),
    Ids((5, 7), (9, 8), "Known ids stay as they are."),
    Ids((49151, -2), (9, 8), "A known id may be larger than the step in flight."),
)


ALL_IDS = (
    "The CPU would have to wait for the GPU, which a capture doesn't allow. Compute something for all ids, and choose "
    "with `torch.where`."
)


OUT_OF_RANGE = (
    "`torch.where` chooses between two tensors that are both computed in full, so the known ids need a valid index "
    "too. (On a GPU, an index out of range ends the whole process.)"
)


def check_replace_placeholders(attempt) -> None:
    for case in ID_CASES:
        _check_ids(attempt, case)
    _check_captured(attempt)
    rng = Random(5)
    for _ in range(50):
        previous = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 9)))
        ids = tuple(
            rng.randrange(1000) if rng.random() < 0.5 else -1 - rng.randrange(len(previous))
            for _ in range(rng.randint(1, 12))
        )
        _check_ids(attempt, Ids(ids, previous, "Only negative ids change."))


def _check_ids(attempt, case: Ids) -> None:
    input_ids, previous = torch.tensor(case.input_ids), torch.tensor(case.previous)
    want = replace_placeholders(input_ids, previous).tolist()
    try:
        got = call(attempt, input_ids, previous, case=str(case))
    except IndexError as error:
        raise Mistake(
            f"expected {want}; an index was out of range: {str(error)[:80]}.",
            case=str(case),
            idea=case.idea if max(case.input_ids) < 0 else OUT_OF_RANGE,
        ) from None
    if not isinstance(got, torch.Tensor) or got.shape != input_ids.shape:
        came = (
            f"a tensor of shape {list(got.shape)}"
            if isinstance(got, torch.Tensor)
            else f"a {type(got).__name__}: {short(got)}"
        )
        raise Mistake(f"expected a tensor of shape {list(input_ids.shape)}; yours returned {came}.", case=str(case),
                      idea="One id for each id of the batch. The shape of a captured step never changes.")  # fmt: skip
    if got.dtype != torch.int64:
        raise Mistake(f"ids should be int64; yours are {got.dtype}.", case=str(case),
                      idea="Both inputs are int64, and the model looks the result up as indices.")  # fmt: skip
    if got.tolist() != want:
        idea = case.idea
        if got.tolist() == list(case.input_ids):
            idea += " Yours returns the ids as they came. Is the condition true for every negative id, and does the "
            idea += "token come before the id in `torch.where(condition, a, b)`?"
        if _is_right_among_more(attempt, input_ids, previous, want):
            idea = "If there are more ids, yours is right. Does your code limit the index by the number of ids? A step "
            idea += "may have fewer ids than the step in flight has tokens."
        raise Mistake(f"expected {want}; yours returned {marked(want, got.tolist())}.", case=str(case), idea=idea)


def _is_right_among_more(attempt: Callable, input_ids: torch.Tensor, previous: torch.Tensor, want: list[int]) -> bool:
    if len(input_ids) >= len(previous):
        return False
    more = torch.cat([input_ids, torch.ones_like(previous)])
    try:
        return attempt(more, previous.clone())[: len(want)].tolist() == want
    except Exception:
        return False


def _check_captured(attempt: Callable) -> None:
    """On the meta device, tensors have no values, so whatever looks at one raises."""
    current_case.text = case = "tensors without values, as during a capture."
    input_ids, previous = (torch.empty(count, dtype=torch.int64, device="meta") for count in (6, 4))
    try:
        attempt(input_ids, previous)
    except Exception as error:
        text = str(error)
        if "devices" in text or "expected device" in text:
            what, idea = "your code mixes tensors of several devices", "Create tensors with `device=input_ids.device`."
        elif "nonzero" in text:
            what, idea = "how many elements your code selects depends on values", "Don't index with a mask. " + ALL_IDS
        elif "copy" in text or "numpy" in text:
            what, idea = "your code copies a tensor to the CPU", "Don't loop over the ids. " + ALL_IDS
        elif "item" in text:
            what, idea = "your code reads a value on the CPU", "No `if` may look at an id. " + ALL_IDS
        else:
            what, idea = f"your code raised {type(error).__name__}: {short(text)}", ALL_IDS
        raise Mistake(f"{what}.", case=case, idea=idea) from None
