"""01.2, `generate_wave`: the answers, and the shapes of the passes that they took."""

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.diagnosis import Known, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.own_passes import own_passes
from lessons_lib.checks.diagnosis.watching import is_tensor
from lessons_lib.checks.exercise import Exercise, short
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
            }

        watch("the call", attempt, model, *arguments, look=look, returns=plain_answers, subject="the list of answers")


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
- input_ids = next_tokens
+ if eos_token_id in next_tokens.tolist(): break
+ ...
or
- running[row] = token
+ ...
+ if token == eos_token_id: running = [False] * len(running)
The end token belongs to the answer: append it, then stop the row.
~ answers[row].append(token) => answers[row] += [token] * (token != eos_token_id)
or
= return [[token for token in answer if token != eos_token_id] for answer in answers]
A finished row is still computed, but its answer doesn't change any more. Yours goes on growing.
~ if running[row]: => if True:
or
- if running[row]:
- answers[row].append(token)
+ answers[row].append(token)
+ if running[row]:
or
- if running[row]:
- answers[row].append(token)
+ answers[row].append(token if running[row] else pad_token_id)
+ if running[row]:
Each row has a limit of its own, in `max_tokens_each`.
~ max_tokens_each[row] => max(max_tokens_each)
or
~ max_tokens_each[row] => min(max_tokens_each)
or
~ max_tokens_each[row] => max_tokens_each[0]
or
~ max_tokens_each[row] => max_tokens_each[-1]
The limit counts *new* tokens only, not those of the prompt.
~ len(answers[row]) < => len(answers[row]) + len(prompt_ids[row]) <
One token too many: look at the length after you append a token.
~ < max_tokens_each[row] => <= max_tokens_each[row]
One token too few: an answer ends with the token that reaches its limit, and the prefill gives the first one.
= return [answer[:-1] for answer in answers]
or
~ < max_tokens_each[row] => < max_tokens_each[row] - 1
The first new token is missing: the prefill's logits give it.
= return [answer[1:] for answer in answers]
or
= return [answer[1:] for answer in answers]
~ < max_tokens_each[row] => < max_tokens_each[row] + 1
The answers come in the order of the prompts.
- input_ids, attention_mask =
+ prompt_ids, max_tokens_each = zip(*sorted(zip(prompt_ids, max_tokens_each), key=lambda request: request[1]))
+ ...
or
- input_ids, attention_mask =
+ prompt_ids, max_tokens_each = zip(*sorted(zip(prompt_ids, max_tokens_each), key=lambda request: len(request[0])))
+ ...
The mask covers all that the pass can attend to, the cache and the new token: append a column of *ones* in every pass. A
0 hides the new token from itself.
- attention_mask = torch.cat
or
= attention_mask = torch.ones_like(input_ids)
or
~ torch.ones_like(input_ids) => torch.zeros_like(input_ids)
The new column of the mask comes at the end, like the new token.
~ [attention_mask, torch.ones_like(input_ids)] => [torch.ones_like(input_ids), attention_mask]
A mask of ones hides nothing: without it, or full of ones, a row reads its padding as text.
~ attention_mask=attention_mask, => attention_mask=torch.ones_like(attention_mask),
or
~ attention_mask=attention_mask, => attention_mask=None,
or
= attention_mask = torch.ones(len(prompt_ids), attention_mask.shape[1] + 1, dtype=torch.int64)
The mask is inverted: 1 on tokens, 0 on padding.
~ attention_mask=attention_mask, => attention_mask=1 - attention_mask,
A prompt may contain the padding token, and there it is real. Take the mask that `pad_left` returns.
- position_ids = positions_from_mask
+ attention_mask = (input_ids != pad_token_id).long()
+ ...
or
~ torch.ones_like(input_ids) => (input_ids != pad_token_id).long()
A row with padding is shifted to the right. Without `position_ids`, the model takes the column as the position.
~ position_ids=position_ids, => position_ids=None,
or
= position_ids = torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)
Padding needs a valid position, too, and -1 isn't. `positions_from_mask` gives it 0.
= position_ids = attention_mask.cumsum(dim=1) - 1
The position of a row's new token is one more than its last, in every pass.
- position_ids = position_ids[:, -1:] + 1
+ position_ids = position_ids[:, -1:]
or
- position_ids = position_ids[:, -1:] + 1
+ position_ids = position_ids[:, -1:] + 2
or
~ position_ids[:, -1:] + 1 => attention_mask.sum(dim=1, keepdim=True)
Each row counts its own tokens: the position of its new token isn't the column, and not that of the longest row either.
~ position_ids[:, -1:] + 1 => torch.full_like(input_ids, attention_mask.shape[1] - 1)
or
~ position_ids[:, -1:] + 1 => position_ids[:, -1:].max().expand(input_ids.shape) + 1
or
~ position_ids[:, -1:] + 1 => torch.full_like(input_ids, attention_mask.shape[1])
One new token has one position: [rows, 1].
~ position_ids[:, -1:] + 1 => positions_from_mask(attention_mask)
or
~ position_ids[:, -1:] + 1 => position_ids + 1
The tokens are right, but every pass computes the whole sequence again. Pass one cache, and feed only the new tokens.
~ past_key_values=cache => use_cache=False
= input_ids = torch.cat([input_ids, next_tokens[:, None]], dim=1)
~ torch.ones_like(input_ids) => torch.ones_like(next_tokens[:, None])
~ position_ids[:, -1:] + 1 => positions_from_mask(attention_mask)
There is *one* cache for the wave, the same in all passes. Yours begins with an empty one, or with none, each time.
~ past_key_values=cache => past_key_values=DynamicCache()
or
~ past_key_values=cache => use_cache=False
The prompt's last token is in the cache. Feed the tokens that came *out* of the last pass.
~ input_ids = next_tokens[:, None] => input_ids = input_ids[:, -1:]
What is in the cache is stored, and attended to, a second time if it is fed again. Feed only the new tokens.
= input_ids = torch.cat([input_ids, next_tokens[:, None]], dim=1)
~ torch.ones_like(input_ids) => torch.ones_like(next_tokens[:, None])
or
= input_ids = torch.cat([input_ids, next_tokens[:, None]], dim=1)
~ torch.ones_like(input_ids) => torch.ones_like(next_tokens[:, None])
~ position_ids[:, -1:] + 1 => positions_from_mask(attention_mask)
The new tokens are a column, [rows, 1]: `next_tokens[:, None]`.
~ input_ids = next_tokens[:, None] => input_ids = next_tokens
or
~ input_ids = next_tokens[:, None] => input_ids = next_tokens
~ torch.ones_like(input_ids) => torch.ones_like(next_tokens[:, None])
or
~ input_ids = next_tokens[:, None] => input_ids = next_tokens[None]
Every row has logits of its own. Yours takes the token of row 0 for all.
~ .argmax(dim=-1) => [:1].argmax(dim=-1).expand(len(prompt_ids))
The padding is on the left, so the newest token of every row is in the *last* column: read the logits there.
~ logits_to_keep=1 => logits_to_keep=0
~ .logits[:, -1] => .logits[:, 0]
or
- input_ids, attention_mask =
+ width = max(map(len, prompt_ids))
+ input_ids = torch.tensor([list(ids) + [pad_token_id] * (width - len(ids)) for ids in prompt_ids])
+ attention_mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in prompt_ids])
That is the best token of every *column*. Only the last column says what comes next.
~ logits_to_keep=1 => logits_to_keep=0
~ .logits[:, -1] => .logits
`.argmax()` without `dim` gives one number, an index into all logits of all rows.
~ .argmax(dim=-1) => .argmax()
or
~ .argmax(dim=-1) => .argmax().expand(len(prompt_ids))
You take the token with the smallest logit.
~ .argmax(dim=-1) => .argmin(dim=-1)
Return only the new tokens, without the prompts.
= return [[*ids, *answer] for ids, answer in zip(prompt_ids, answers)]
A list with one answer per row, also if there is only one row.
= return answers[0] if len(answers) == 1 else answers
or
= return [token for answer in answers for token in answer]
The answers are right, but passes are made after the last row has finished. Look at all rows, and stop.
~ while any(running): => for _ in range(max(max_tokens_each)):
or
~ while any(running): => for _ in range(max(max_tokens_each) + 1):
The model may write the padding token like any other. Only the end token and the limit end a row.
~ token != eos_token_id => token not in (eos_token_id, pad_token_id)
or
~ token != eos_token_id => token != (pad_token_id if eos_token_id is None else eos_token_id)
The padding token may be part of an answer: don't filter it out.
= return [[token for token in answer if token != pad_token_id] for answer in answers]
`[[]] * n` is one list, n times: whatever one row appends is in all of them.
~ [[] for _ in prompt_ids] => [[]] * len(prompt_ids)
0 is a token like any other, but falsy in Python. Compare with `token != eos_token_id`.
~ token != eos_token_id => (not eos_token_id or token != eos_token_id)
`eos_token_id` is None here, and ends nothing. Do you replace it, by 0 or by the model's own?
~ token != eos_token_id => token != (model.config.eos_token_id if eos_token_id is None else eos_token_id)
or
~ token != eos_token_id => token != (eos_token_id or 0)
The end token, {end}, ends a row.
~ token != eos_token_id and => True and
Only a *new* token ends a row. The prompt may contain the end token.
~ running = [True] * len(prompt_ids) => running = [eos_token_id not in ids for ids in prompt_ids]
A cut-off prompt is another prompt. Pad all of it, however long.
~ pad_left(prompt_ids, => pad_left([ids[-64:] for ids in prompt_ids],
or
~ pad_left(prompt_ids, => pad_left([ids[-128:] for ids in prompt_ids],
"""


def one_after_the_other(model: Any, prompts: Any, limits: Any, pad: int, end: int | None = None) -> list[list[int]]:
    return [greedy_with_cache(model, ids, limit, end) for ids, limit in zip(prompts, limits)]


TASK = Task(
    reference="lessons_lib.batching.static_batching:generate_wave",
    cases=cases,
    run=run,
    tell=tell,
    known=[
        *mistakes(MISTAKES),
        Known("Your rows go through the model one after the other. One pass computes all.", answer=one_after_the_other),
    ],
    facts=lambda case: {"end": case.end},
    enough=6,
    about={
        "returned": "A row's answer is the one that its prompt gets alone. Which tokens, mask and positions went in?",
        "the shapes that the passes fed": "The prefill feeds [rows, longest prompt], and each further pass [rows, 1], "
        "all rows, until the last one has finished.",
        "the number of cached columns before each pass": "One cache, empty at first; each pass adds what it feeds.",
        "raised TooManyPasses": "Which condition ends your loop, and does it ever become true?",
    },
)

EXERCISE = Exercise(
    id="01.2",
    title="the loop for one wave",
    reference=TASK.reference,
    test=TASK,
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
