"""01.2, `generate_wave`: the answers, and the shapes of the passes that they took."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.diagnosis import Differs, Task, Watch, is_tensor, mistakes
from lessons_lib.checks.diagnosis.own_passes import Pass, TooManyPasses, own_passes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.models.tiny_models import tiny_model

# Families with absolute positions, in which a shifted row gives another answer, come first.
FIRST, SECOND, THIRD = [3, 7, 11], [8, 3, 60, 21, 9], [33, 2]


class Case(NamedTuple):
    prompts: list[list[int]]
    limits: list[int]
    end: int | None = None
    pad: int = 1
    family: str = "gpt2"
    own_end: int | None = None  # the end token in the model's configuration, which the answer must not depend on


@cache
def model_of(family: str, own_end: int | None) -> PreTrainedModel:
    model = tiny_model(family)
    if own_end is not None:
        model = copy.deepcopy(model)
        model.config.eos_token_id = model.generation_config.eos_token_id = own_end
    return model


def cases() -> Iterator[Case]:
    first, second = (greedy_with_cache(tiny_model("gpt2"), ids, 8) for ids in (FIRST, SECOND))
    end = next(token for token in first[2:] if token not in first[:2] and token not in second)
    yield Case([FIRST], [1])
    yield Case([FIRST], [2])
    yield Case([FIRST], [5])
    yield Case([FIRST, FIRST[::-1]], [4, 4])
    yield Case([FIRST, SECOND], [4, 4])
    yield Case([FIRST, SECOND], [2, 4])
    yield Case([SECOND, THIRD], [3, 6])
    yield Case([FIRST], [8], end)
    yield Case([FIRST, SECOND], [6, 6], end)
    yield Case([FIRST, SECOND], [6, 6], second[0])
    yield Case([[end, *FIRST], SECOND], [6, 6], end, pad=end)  # in a prompt, and the padding token as well
    yield Case([FIRST], [6], second[0], pad=first[1])  # the model writes the padding token, and goes on
    yield Case([FIRST, THIRD], [4, 3], pad=first[1])
    yield Case([FIRST], [2], own_end=first[0])
    yield Case([FIRST, SECOND, THIRD, FIRST[::-1]], [3, 5, 2, 4])
    yield Case([[75], [75]], [2, 3])  # equal prompts are two requests
    yield Case([[75], [52, 28, 37, 78, 40], [57, 2]], [3, 9, 6], family="llama")
    yield Case([[index * 5 % 97 for index in range(150)], FIRST], [2, 3])  # longer than any window
    zeros = greedy_with_cache(tiny_model("qwen2"), [5, 17, 42, 17], 5)  # 76, 78, 38, 63, 0
    yield Case([[5, 17, 42, 17], SECOND], [7, 5], zeros[4], family="qwen2")
    yield Case([[5, 17, 42, 17], THIRD], [7, 5], family="qwen2")


def run(attempt: Any, case: Case, watch: Watch) -> None:
    arguments: list[Any] = [case.prompts, case.limits, case.pad] + ([] if case.end is None else [case.end])
    model = model_of(case.family, case.own_end)
    most = 12 + max(case.limits) * len(case.prompts)
    with own_passes(model, most) as passes:

        def look() -> dict[str, Any]:
            return {
                "the shapes that the passes fed": [shape_of(each.token_ids) for each in passes],
                "the number of cached columns before each pass": [each.cached for each in passes],
                "the columns of each mask": [len(rows_of(each, "attention_mask")[0]) for each in passes],
            }

        try:
            watch(
                "the call", attempt, model, *arguments, look=look, returns=plain_answers, subject="the list of answers"
            )
        except Differs:
            step = watch.steps[-1]
            if watch.wanted and not isinstance(step.error, Mistake | TooManyPasses) and not step.before:
                with suppress(TypeError, ValueError, IndexError):  # what was fed is no rectangle
                    step.error = first_odd(case, passes, watch.wanted[0].seen["returned"], step.seen) or step.error
                    step.seen |= {"odd": step.error.what} if isinstance(step.error, Mistake) else {}
            raise


def rows_of(each: Pass, name: str) -> list[list[int]]:
    """One of the inputs of a pass; what the model takes if it isn't given."""
    value = each.named.get(name)
    num_rows, new = shape_of(each.token_ids)
    if value is not None and value.dim() <= 2:
        rows = value.int().tolist() if value.dim() == 2 else [value.int().tolist()]
        return rows * num_rows if len(rows) == 1 else rows
    columns = range(each.cached, each.cached + new)
    return [[1] * columns.stop if name == "attention_mask" else list(columns)] * num_rows


PREFILL = "The prefill feeds all prompts in one pass, in their order, with the padding on the left."
FED = {
    "input_ids": "A decode step feeds all rows, each the token that it got from the pass before: a column, [rows, 1]. "
    "The rest is in the cache.",
    "the cache": "The wave has one cache, empty at first and the same in all passes.",
    "attention_mask": "The mask has a number for each column that the pass can attend to, in the cache and new: 0 on "
    "padding, 1 on tokens. So each pass adds a column of ones at the end.",
    "position_ids": "A position counts the tokens of its own row from 0, without the padding. A new token has one "
    "position, [rows, 1], one more than the row's last.",
}
TAKEN = "A row's next token is the largest of its logits in the last column: `.logits[:, -1].argmax(dim=-1)`."


def first_odd(case: Case, passes: list[Pass], answers: list[list[int]], seen: dict[str, Any]) -> Mistake | None:
    """What goes wrong first: in what a pass is fed, in what is taken from its logits, or in when a row finishes."""
    width, mine = max(map(len, case.prompts)), seen.get("returned")
    mine = mine if isinstance(mine, list) and all(type(each) is list for each in mine) else []
    mine = mine if all(type(token) is int for each in mine for token in each) and len(mine) == len(answers) else []
    for number, each in enumerate(passes[: max(map(len, answers))]):
        this, before = (f"pass {index}" if index > 1 else "the prefill" for index in (number + 1, number))
        shape, cached = [len(case.prompts), 1 if number else width], width + number - 1 if number else 0
        if (got := shape_of(each.token_ids)) != shape:
            what = f"`input_ids` of {this} should have the shape {shape}; yours has {got}."
            return Mistake(what, idea=FED["input_ids"] if number else PREFILL)
        if each.cached != cached:
            what = f"before {this}, the cache should hold {cached} columns; yours holds {each.cached}."
            return Mistake(what, idea=FED["the cache"])
        for row, (ids, answer) in enumerate(zip(case.prompts, answers)):
            if number >= len(answer):
                continue  # what a finished row is fed is free
            padding = width - len(ids)
            wanted = {
                "input_ids": answer[number - 1 : number] if number else [case.pad] * padding + ids,
                "attention_mask": [0] * padding + [1] * (len(ids) + number),
                "position_ids": [len(ids) + number - 1] if number else [0] * padding + list(range(len(ids))),
            }
            for name, want in wanted.items():
                fed = each.token_ids[row] if name == "input_ids" else rows_of(each, name)[row]
                free = 0 if number or name == "attention_mask" else padding
                if fed[free:] == want[free:] and len(fed) == len(want):
                    continue
                if name == "input_ids" and number and not (mine and mine[row][:number] == answer[:number]):
                    what = f"the token of row {row} from {before} should be {want[0]}; yours is {fed[0]}."
                    return Mistake(what, idea=f"What {before} was fed is right. {TAKEN}")
                given = name == "input_ids" or each.named.get(name) is not None
                yours = f"yours is {short(fed)}" if given else "yours has none"
                idea = PREFILL if name == "input_ids" and not number else FED[name]
                return Mistake(f"row {row} of `{name}` in {this} should be {short(want)}; {yours}.", idea=idea)
    for row, (answer, got) in enumerate(zip(answers, mine)):
        if got != answer:
            what = f"the list of answers should be {short(answers)}; yours is {short(mine)}."
            if got[: len(answer)] != answer[: len(got)]:
                return Mistake(what, idea=TAKEN)
            why = "the end token" if answer[-1] == case.end else "the token that reaches its limit"
            return Mistake(
                what, idea=f"Row {row} ends with {answer[-1]}, {why}: not before, and nothing comes after it."
            )
    return None


def shape_of(rows: Any) -> Any:
    return [len(rows), *shape_of(rows[0])] if isinstance(rows, list) and rows else []


def plain_answers(got: Any) -> Any:
    """The answers as lists of plain ints, whatever kind of int they have."""
    if not isinstance(got, tuple | list) or not all(isinstance(answer, tuple | list) for answer in got):
        return got
    return [
        [int(token) if hasattr(token, "__index__") and not is_tensor(token) else token for token in answer]
        for answer in got
    ]


def tell(case: Case) -> str:
    end = "" if case.end is None else f", eos_token_id={case.end}"
    own = "" if case.own_end is None else f" with model.config.eos_token_id={case.own_end}"
    what = f"prompt_ids={short(case.prompts)}, max_tokens_each={case.limits}, pad_token_id={case.pad}{end}"
    return f"{what}, on a tiny {case.family} model{own}."


MISTAKES = """
The wave goes on until its *last* row has finished. Yours stops with the first.
~ while any(running) => while all(running)
Only the row that writes the end token has finished. The others go on.
> running[row] = token => if token == eos_token_id: running = [False] * len(running)
The end token belongs to the answer: append it, then stop the row.
~ answers[row].append(token) => answers[row] += [token] * (token != eos_token_id)
A finished row is still computed, but its answer doesn't change any more. Yours goes on growing.
~ if running[row]: => if True:
The new tokens are a column, [rows, 1]: `next_tokens[:, None]`.
~ input_ids = next_tokens[:, None] => input_ids = next_tokens
Each row has a limit of its own, in `max_tokens_each`.
~ max_tokens_each[row] => max(max_tokens_each)
or ~ max_tokens_each[row] => max_tokens_each[0]
or ~ max_tokens_each[row] => min(max_tokens_each)
An answer is too short: is a loop missing, or does your limit count the prompt's tokens, too?
~ len(answers[row]) < => len(answers[row]) + len(prompt_ids[row]) <
One token too many: look at the length after you append a token.
~ < max_tokens_each[row] => <= max_tokens_each[row]
One token too few: an answer ends with the token that reaches its limit, and the prefill gives the first one.
= return [answer[:-1] for answer in answers]
or ~ < max_tokens_each[row] => < max_tokens_each[row] - 1
The first new token is missing: the prefill's logits give it.
= return [answer[1:] for answer in answers]
or = return [answer[1:] for answer in answers]
~ < max_tokens_each[row] => < max_tokens_each[row] + 1
The answers come in the order of the prompts.
= return sorted(answers, key=len)
A prompt may contain the padding token, and there it is real. Take the mask that `pad_left` returns.
< position_ids = positions_from_mask => attention_mask = (input_ids != pad_token_id).long()
Padding needs a valid position, too, and -1 isn't. `positions_from_mask` gives it 0.
= position_ids = attention_mask.cumsum(dim=1) - 1
A pass gives each row one token, the best of its last column: `.logits[:, -1].argmax(dim=-1)`.
~ logits_to_keep=1 => logits_to_keep=0
~ .logits[:, -1] => .logits
or ~ logits_to_keep=1 => logits_to_keep=0
~ .logits[:, -1] => .logits[-1]
or ~ .argmax(dim=-1) => .argmax(dim=0)
or ~ .argmax(dim=-1) => .argmax()
The model returns several things. The logits are its `.logits`.
~ .logits[:, -1] => [:, -1]
Return only the new tokens, without the prompts.
= return [[*ids, *answer] for ids, answer in zip(prompt_ids, answers)]
The answers are right, but passes are made after the last row has finished. Look at all rows, and stop.
~ while any(running): => for _ in range(max(max_tokens_each)):
or ~ while any(running): => for _ in range(max(max_tokens_each) + 1):
The model may write the padding token like any other. Only the end token and the limit end a row.
~ token != eos_token_id => token not in (eos_token_id, pad_token_id)
or ~ token != eos_token_id => token != (pad_token_id if eos_token_id is None else eos_token_id)
The padding token may be part of an answer: don't filter it out.
= return [[token for token in answer if token != pad_token_id] for answer in answers]
`[[]] * n` is one list, n times: whatever one row appends is in all of them.
~ [[] for _ in prompt_ids] => [[]] * len(prompt_ids)
0 is a token like any other, but falsy in Python. Compare with `token != eos_token_id`.
~ token != eos_token_id => (not eos_token_id or token != eos_token_id)
`eos_token_id` is None here, and ends nothing. Do you replace it, by 0 or by the model's own?
~ token != eos_token_id => token != (model.config.eos_token_id if eos_token_id is None else eos_token_id)
or ~ token != eos_token_id => token != (eos_token_id or 0)
The end token, {end}, ends a row.
~ token != eos_token_id and => True and
Only a *new* token ends a row. The prompt may contain the end token.
~ running = [True] * len(prompt_ids) => running = [eos_token_id not in ids for ids in prompt_ids]
"""


TASK = Task(
    reference="lessons_lib.batching.static_batching:generate_wave",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    facts=lambda case: {"end": case.end},
    enough=6,
    about={
        "returned": "The inputs of your passes are right. Return a list of ints for each row, in their order.",
        "the shapes that the passes fed": "The prefill feeds [rows, longest prompt], and each further pass [rows, 1], "
        "all rows, until the last one has finished.",
        "raised TooManyPasses": "A row finishes with the end token or at its limit, whichever comes first, and the "
        "loop ends when all rows have. Does its condition ever become true?",
    },
)

EXERCISE = TASK.exercise(
    id="01.2",
    title="the loop for one wave",
    points=4,
    hints=(
        "Every pass adds one column to the whole wave, but each row finishes on its own. So keep what the wave shares "
        "in tensors, and remember for every row whether it is still running.",
        "Before the loop: pad the prompts, compute the positions, make an empty `DynamicCache` and a list for each "
        "answer. In the loop: call the model with the four inputs; take the argmax of every row's last column; append "
        "to the running rows, then check whether they have finished. For the next pass, feed the new tokens, append a "
        "1 to every row of the mask, and use each row's last position plus 1.",
        "`for row, token in enumerate(next_tokens.tolist()): if running[row]: answers[row].append(token); running[row] "
        "= token != eos_token_id and len(answers[row]) < max_tokens_each[row]`. For the next pass: `input_ids = "
        "next_tokens[:, None]`, `attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)`, "
        "`position_ids = position_ids[:, -1:] + 1`.",
    ),
)
