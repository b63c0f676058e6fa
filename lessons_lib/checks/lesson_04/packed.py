"""04.2, `packed_logits`: one forward pass over one row, and for every sequence the logits that it gets alone."""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import torch

from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens
from lessons_lib.batching.packed_logits import packed_logits as reference
from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.diagnosis.telling import Shown
from lessons_lib.checks.exercise import Exercise
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
    model, passes, made, changed = tiny_model(family), [], [], []

    def note(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        passes.append({"input_ids": args[0] if args else None} | kwargs | {"unnamed": max(len(args), 1)})

    def packed_logits(sequences: list[list[int]]) -> Any:
        before, hook = model.config._attn_implementation, model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            made.append(attempt(model, sequences, **({"mask": no_earlier} if is_other else {})))
        finally:
            hook.remove()
            if model.training or model.config._attn_implementation != before:
                model.eval().set_attn_implementation(before)
                changed.append(model)
        return made[0]

    def look() -> dict[str, Any]:
        inputs = passes[0] if passes else {}
        seen = {
            "the number of forward passes": len(passes),
            "the number of arguments without a name": inputs.get("unnamed"),
            "input_ids": inputs.get("input_ids"),
            "position_ids": flat(inputs.get("position_ids"), sum(map(len, given))),
            "what `attention_mask` allows": allowed(inputs.get("attention_mask"), sum(map(len, given))),
            "the model": Shown("changed" if changed else "as before"),
        }
        for index, sequence in enumerate(given):
            start = sum(map(len, given[:index]))
            got = made[0][index] if isinstance(made[0], list | tuple) and index < len(made[0]) else None
            seen[f"the tokens of the row to which the logits of sequence {index} belong"] = tokens_of(
                got, right(*case), start
            )
        return seen

    sequences = [list(sequence) for sequence in given]
    watch("`packed_logits`", packed_logits, sequences, look=look, returns=kind_of)


def flat(positions: Any, total: int) -> Any:
    """Without positions, a model counts through the row."""
    positions = torch.arange(total) if positions is None else positions
    return positions.reshape(-1) if isinstance(positions, torch.Tensor) else positions


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
        return Shown(f"a tensor {list(got.shape)}" if isinstance(got, torch.Tensor) else "missing")
    near = (got.detach().cpu()[:, None] - row).abs().amax(dim=2) < TOLERANCE
    found = [line.nonzero().flatten().tolist() for line in near]
    return [own if own in tokens else next(iter(tokens), None) for own, tokens in enumerate(found, start)]


def kind_of(got: Any) -> Any:
    if isinstance(got, torch.Tensor):
        return Shown(f"a single tensor {list(got.shape)}")
    if isinstance(got, list | tuple) and all(isinstance(part, torch.Tensor) for part in got):
        return Shown(f"a list of {len(got)} tensor{'s' * (len(got) != 1)}")
    return got


def first_wrong_position(mine: dict, want: dict) -> str:
    got, should = mine["position_ids"], want["position_ids"]
    if got.shape != should.shape:
        return "Each token of the row has one position: `tags.positions`, with a batch axis in front."
    token = int((got != should).nonzero()[0])
    return (
        f"Token {token} of the row is token {int(should[token])} of its sequence, so that's its position: "
        "`tags.positions[None]`. Without `position_ids`, the model counts through the whole row."
    )


def what_the_mask_is(mine: dict, want: dict) -> str:
    name = "what `attention_mask` allows"
    (_, sequences, is_other), got, should = want["case"], mine[name], want[name]
    if isinstance(got, Shown):
        return (
            "The mask has four axes: batch, heads, queries, keys. Add two in front: `mask(tags, tags)[None, None]`. "
            "With two axes, the model takes it for the padding mask of lesson 01. A packed row has no padding."
        )
    tags = tag_tokens([len(sequence) for sequence in sequences])
    if is_other and torch.equal(got, block_diagonal_mask(tags, tags)):
        return "Call the `mask` that your function gets: `block_diagonal_mask` is only its default."
    if torch.equal(got, ~should):
        return "It is inverted: True means that the query may attend."
    if got.all() and not is_other:
        return (
            "Yours allows all: a float mask is added to the scores, and 1 or 0 hardly changes them. Pass a bool mask."
        )
    if torch.equal(got, should.T):
        return "Its last two axes are swapped: queries first, then keys."
    query, key = (got != should).nonzero()[0].tolist()
    return (
        f"Token {query} of the row {'may' if should[query, key] else 'must not'} attend to token {key}. Pass "
        "`mask(tags, tags)[None, None]`, where `tags = tag_tokens(lengths)` has a length for each sequence. Without a "
        "mask, the row is a single text."
    )


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
- return
+ return [part[-1] for part in torch.split(logits, lengths)]
or
- return
+ return [part[-1:] for part in torch.split(logits, lengths)]
Split the row's logits by sequence: `list(logits.split(lengths))`.
- return
+ return logits
The logits are [batch, tokens, vocabulary], and the batch is one row, [1, tokens]: split `.logits[0]`.
- ).logits[0]
+ ).logits
- return
+ return list(torch.split(logits, lengths, dim=1))
"""

TASK = Task(
    reference="lessons_lib.batching.packed_logits:packed_logits",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return a list with one tensor [tokens, vocabulary] for each sequence, also for equal ones.",
        "the number of forward passes": "Call the model once, with the tokens of all sequences in one row. A loop over "
        "the sequences reads all weights again for each.",
        "input_ids": "Put one whole sequence after another in a single row, in the order of the list, with a batch "
        "axis in front. There's no padding, and equal sequences stay apart.",
        "position_ids": first_wrong_position,
        "what `attention_mask` allows": what_the_mask_is,
        **{
            f"the tokens of the row to which the logits of sequence {index} belong": "Return float logits [tokens, "
            "vocabulary] for each sequence, as the model gives them: `logits.split(lengths)`. None "
            "stands for logits that were changed after the pass, or come from another call."
            for index in range(6)
        },
        "the model": "The caller goes on using the model: leave its mode and its attention function as they are.",
        **dict.fromkeys(
            ("raised AttributeError", "raised TypeError", "the number of arguments without a name"),
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

EXERCISE = Exercise(
    id="04.2",
    title="several sequences in one forward pass",
    reference=TASK.reference,
    test=TASK,
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
