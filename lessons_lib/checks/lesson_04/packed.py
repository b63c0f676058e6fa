"""04.2, `packed_logits`: one forward pass over one row, and for every sequence the logits that it gets alone."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from itertools import chain, repeat
from random import Random
from typing import Any

import torch

from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens
from lessons_lib.batching.packed_logits import packed_logits as reference
from lessons_lib.checks.diagnosis import Shown, Task, Watch, kind, mistakes
from lessons_lib.checks.diagnosis.own_passes import own_passes
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

TOLERANCE = 1e-2  # rounding changes the tiny models' logits by less than 1e-4, the smallest mistake by more than 0.1
HIDES = -20.0  # added to a score, it leaves a negligible weight
Case = tuple[str, tuple[tuple[int, ...], ...], bool]  # the model, sequences, and whether another mask is passed


def cases() -> Iterator[Case]:
    """GPT-2 comes first: its positions are absolute, so wrong ones show."""
    for family, sequences in (
        ("gpt2", ((5, 6, 7),)), ("gpt2", ((5,), (6,))), ("gpt2", ((5,), (5,))), ("gpt2", ((5, 6, 7), (8, 9))),
        ("gpt2", ((5, 6), (7, 8, 9))), ("llama", ((1, 2), (3, 4, 5, 6), (7,))),
        ("qwen2", ((9, 9, 4), (4, 9, 9), (4,))),
    ):  # fmt: skip
        yield family, sequences, False
    yield from (("gpt2", sequences, True) for sequences in (((5, 6, 7), (8, 9)), ((5, 6, 7),)))
    draw = Random(4)
    for family in ("gpt2", "llama", "qwen2"):
        sequences = [tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 12))) for _ in range(6)]
        yield family, tuple(sequences), False
        yield family, tuple(sequences[::-1]), False  # a row of the same length


def no_earlier(queries: Tags, keys: Tags) -> torch.Tensor:
    return keys.positions >= queries.positions[:, None]


@cache
def right(family: str, sequences: tuple[tuple[int, ...], ...], is_other: bool) -> torch.Tensor:
    mask = no_earlier if is_other else block_diagonal_mask
    return torch.cat(reference(tiny_model(family), [list(sequence) for sequence in sequences], mask))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    family, given, is_other = case
    model, made = deepcopy(tiny_model(family)), []
    before = dict(vars(model.config))

    def packed_logits(sequences: list[list[int]]) -> Any:
        made.append(attempt(model, sequences, **({"mask": no_earlier} if is_other else {})))
        return made[0]

    def look() -> dict[str, Any]:
        total = sum(map(len, given))
        inputs = passes[0].named if passes else {}
        positions = inputs.get("position_ids")
        starts = [sum(map(len, given[:index])) for index in range(len(given))]
        return {
            "the number of forward passes": len(passes),
            "input_ids": passes[0].token_ids if passes else None,
            "position_ids": [*range(total)] if positions is None else positions.flatten().tolist(),
            "what `attention_mask` allows": allowed(inputs.get("attention_mask"), total),
            "whether the model is as before": not model.training and vars(model.config) == before,
            "the tokens of the row whose logits you return": [
                tokens_of(logits, right(*case), start)
                for logits, start in zip(made[0] if isinstance(made[0], list | tuple) else (), chain(starts, repeat(0)))
            ],
        }

    with own_passes(model) as passes:
        watch("`packed_logits`", packed_logits, [list(each) for each in given], look=look, returns=kind_of)


def allowed(mask: Any, total: int) -> Any:
    """Which keys a mask of four axes allows, [queries, keys]."""
    if mask is None:
        return torch.ones(total, total, dtype=torch.bool).tril()
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or list(mask.shape[2:]) != [total, total]:
        return Shown(f"of shape {list(getattr(mask, 'shape', []))}")
    return mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > HIDES


def tokens_of(got: Any, row: torch.Tensor, start: int) -> Any:
    """For each line of a sequence's logits, the token of the row that has them; None if there is none."""
    if not isinstance(got, torch.Tensor) or got.dim() != 2 or got.shape[1] != VOCAB_SIZE or got.dtype != row.dtype:
        return Shown(kind(got))
    near = (got.detach().cpu()[:, None] - row).abs().amax(dim=2) < TOLERANCE
    found = [line.nonzero().flatten().tolist() for line in near]
    return [own if own in tokens else next(iter(tokens), None) for own, tokens in enumerate(found, start)]


def kind_of(got: Any) -> Any:
    return None if got is None else Shown("a list of tensors" if isinstance(got, list | tuple) else kind(got))


def first_wrong_position(mine: dict, want: dict) -> str:
    got, should = mine["position_ids"], want["position_ids"]
    token = next((token for token, pair in enumerate(zip(got, should)) if pair[0] != pair[1]), None)
    if token is None:
        return "Each token of the row has one position: `tags.positions`, with a batch axis in front."
    return (
        f"Token {token} of the row is token {should[token]} of its sequence, so that's its position: "
        "`tags.positions[None]`. Without `position_ids`, the model counts through the whole row."
    )


def what_the_mask_is(mine: dict, want: dict) -> str:
    got, should = (seen["what `attention_mask` allows"] for seen in (mine, want))
    if isinstance(got, Shown):
        return (
            "The mask has four axes: batch, heads, queries, keys. Add two in front: `mask(tags, tags)[None, None]`. "
            "With two axes, the model takes it for the padding mask of lesson 01. A packed row has no padding."
        )
    tags = tag_tokens([len(sequence) for sequence in want["case"][1]])
    query, key = (got != should).nonzero()[0].tolist()
    for other, sentence in (
        (block_diagonal_mask(tags, tags), "Call the `mask` that your function gets: yours is only its default."),
        (~should, "It is inverted: True means that the query may attend."),
        (
            torch.ones_like(should),
            "It allows all: a float mask is added to the scores, and 1 or 0 hardly changes them. Pass a bool mask.",
        ),
        (should.T, "Its last two axes are swapped: queries first, then keys."),
        (
            got,
            f"Token {query} of the row {'may' if should[query, key] else 'must not'} attend to token {key}. Pass "
            "`mask(tags, tags)[None, None]`, where `tags = tag_tokens(lengths)` has a length for each sequence. "
            "Without a mask, the row is a single text.",
        ),
    ):
        if torch.equal(got, other):
            break
    return sentence


def tell(case: Case) -> str:
    family, sequences, is_other = case
    lengths = ", ".join(str(len(sequence)) for sequence in sequences)
    shown = [list(sequence) for sequence in sequences] if len(sequences) < 6 else f"sequences of {lengths} tokens"
    other = "; `mask` is another function, by which a token attends to no earlier position" if is_other else ""
    return f"{shown} on a tiny {family} model{other}."


def smaller(case: Case) -> Iterator[Case]:
    family, sequences, is_other = case
    for index in range(len(sequences)):
        if len(sequences) > 1:
            yield family, sequences[:index] + sequences[index + 1 :], is_other


MISTAKES = """
Return the logits of *every* token. The caller picks what it needs.
- return => return [part[-1] for part in torch.split(logits, lengths)]
or - return => return [part[-1:] for part in torch.split(logits, lengths)]
The logits are [batch, tokens, vocabulary], and the batch is one row, [1, tokens]: split `.logits[0]`.
- ).logits[0] => ).logits
- return => return list(torch.split(logits, lengths, dim=1))
"""

TASK = Task(
    reference="lessons_lib.batching.packed_logits:packed_logits",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "Split the row's logits by sequence: `list(logits.split(lengths))`.",
        "the number of forward passes": "Call the model once, with the tokens of all sequences in one row. A loop over "
        "the sequences reads all weights again for each.",
        "input_ids": "Put one whole sequence after another in a single row, in the order of the list, with a batch "
        "axis in front. There's no padding, and equal sequences stay apart.",
        "position_ids": first_wrong_position,
        "what `attention_mask` allows": what_the_mask_is,
        "the tokens of the row whose logits you return": "For each sequence, return the logits of its tokens as the "
        "model gives them: `list(logits.split(lengths))`. None stands for logits of no token: they were changed after "
        "the pass, or come from another call.",
        "whether the model is as before": "The caller goes on using the model: leave its mode and its config.",
        **dict.fromkeys(
            ("raised AttributeError", "raised TypeError"),
            "`model(...)` takes tensors and returns an object with `.logits`. Name its arguments: their order differs "
            "from model to model. `mask` takes the tags of the row twice: `mask(tags, tags)`.",
        ),
        **dict.fromkeys(
            ("raised RuntimeError", "raised IndexError"),
            "With T tokens in the whole row, those of all sequences, `input_ids` and `position_ids` are int64 [1, T], "
            "the mask is [1, 1, T, T], and `.logits[0]` is [T, vocabulary].",
        ),
    },
)

EXERCISE = TASK.exercise(
    id="04.2",
    title="several sequences in one forward pass",
    hints=(
        "You need the list of lengths twice, before the pass and after it. For what? And which axes does the model "
        "expect that your tensors don't have yet?",
        "`tag_tokens` of the lengths gives the positions, and `mask(tags, tags)` the mask. The model expects a "
        "batch axis: `[1, T]` for tokens and positions, and `[1, 1, T, T]` for the mask, which also has an axis "
        "for the heads. Its `.logits[0]` is `[T, vocabulary]`, and `tensor.split(lengths)` splits that: "
        "`split([3, 5])` gives 3 rows and 5 rows.",
        "`logits = model(input_ids=torch.tensor([row]), position_ids=tags.positions[None], "
        "attention_mask=mask(tags, tags)[None, None], use_cache=False).logits[0]`, where "
        "`row = [token for sequence in sequences for token in sequence]`. Then `return "
        "list(logits.split(lengths))`.",
    ),
    points=3,
)
