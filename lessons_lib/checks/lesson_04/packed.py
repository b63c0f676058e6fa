"""04.2, `packed_logits`: one forward pass over one row, and for every sequence the logits that it gets alone."""

from collections.abc import Iterator
from functools import cache, partial
from random import Random
from typing import Any

import torch

from lessons_lib.attention.masks import Tags, block_diagonal_mask
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
    yield "gpt2", ((5, 6, 7), (8, 9)), True
    draw = Random(4)
    for family in ("gpt2", "llama", "qwen2"):
        sequences = [tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 12))) for _ in range(6)]
        yield family, tuple(sequences), False
        yield family, tuple(sequences[::-1]), False  # a row of the same length


def only_itself(queries: Tags, keys: Tags) -> torch.Tensor:
    return (keys.positions == queries.positions[:, None]) & (keys.seq_ids == queries.seq_ids[:, None])


@cache
def right(family: str, sequences: tuple[tuple[int, ...], ...], is_other: bool) -> list[torch.Tensor]:
    mask = only_itself if is_other else block_diagonal_mask
    return reference(tiny_model(family), [list(sequence) for sequence in sequences], mask)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    family, given, is_other = case
    model, passes, tags_seen, made = tiny_model(family), [], [], []

    def note(module: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        passes.append({"input_ids": args[0] if args else None} | kwargs | {"unnamed": max(len(args), 1)})

    def mask(queries: Tags, keys: Tags) -> torch.Tensor:
        tags_seen.append(queries.positions)
        return only_itself(queries, keys)

    def packed_logits(sequences: list[list[int]]) -> Any:
        before, hook = model.config._attn_implementation, model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            made.append(attempt(model, sequences, **({"mask": mask} if is_other else {})))
        finally:
            hook.remove()
            is_changed = model.training or model.config._attn_implementation != before
            if is_changed:
                model.eval().set_attn_implementation(before)
        return Shown("a changed model") if is_changed else made[0]

    def look() -> dict[str, Any]:
        inputs = passes[0] if passes else {}
        seen = {
            "the number of forward passes": len(passes),
            "the number of arguments without a name": inputs.get("unnamed"),
            "input_ids": inputs.get("input_ids"),
            "position_ids": flat(inputs.get("position_ids")),
            "what `attention_mask` allows": allowed(inputs.get("attention_mask"), sum(map(len, given))),
        }
        if is_other:
            seen["the positions that `mask` was called with"] = tags_seen[0] if tags_seen else None
        for index, want in enumerate(right(*case)):
            got = made[0][index] if made and isinstance(made[0], list | tuple) and index < len(made[0]) else None
            is_near = (
                isinstance(got, torch.Tensor)
                and got.shape == want.shape
                and got.dtype in (torch.float32, torch.float64)
            )
            is_near = is_near and float((got.detach().cpu().float() - want).abs().max()) < TOLERANCE
            seen[f"the logits of sequence {index}"] = want if is_near else got
        return seen

    sequences = [list(sequence) for sequence in given]
    watch("`packed_logits`", packed_logits, sequences, look=look, returns=kind_of)


def flat(positions: Any) -> Any:
    if positions is None:
        return Shown("not given")
    return positions.reshape(-1) if isinstance(positions, torch.Tensor) else positions


def allowed(mask: Any, total: int) -> Any:
    """Which keys a mask of four axes allows, [queries, keys]; what isn't such a mask as it is."""
    if mask is None:
        return Shown("not given")
    if not isinstance(mask, torch.Tensor) or list(mask.shape[2:]) != [total, total]:
        return mask
    return mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > HIDES


def kind_of(got: Any) -> Any:
    if isinstance(got, torch.Tensor):
        return Shown(f"a single tensor {list(got.shape)}")
    if isinstance(got, list | tuple) and all(isinstance(part, torch.Tensor) for part in got):
        return Shown(f"a list of {len(got)} tensor{'s' * (len(got) != 1)}")
    return got


def whose_logits(index: int, mine: dict, want: dict) -> str:
    """Which token the first wrong row of the logits of sequence `index` belongs to."""
    got, of_all = mine[f"the logits of sequence {index}"], right(*want["case"])
    own = of_all[index]
    if got.dim() != 2 or got.shape[1] != VOCAB_SIZE or got.dtype != torch.float32:
        return ""
    text = f"A row for each token of the sequence: {len(own)} here, and yours has {len(got)}. "
    text = text if len(got) != len(own) else ""
    for row, logits in enumerate(got):
        if row >= len(own) or not (logits - own[row]).abs().max() < TOLERANCE:
            for number, others in enumerate(of_all):
                token = ((others - logits).abs().amax(dim=1) < TOLERANCE).nonzero().flatten().tolist()
                if token:
                    return f"{text}Your row {row} is that of token {token[0]} of sequence {number}."
            return f"{text}Your row {row} is that of no token here. Is it changed after the pass, or from another call?"
    return text


def tell(case: Case) -> str:
    family, sequences, is_other = case
    lengths = ", ".join(str(len(sequence)) for sequence in sequences)
    shown = [list(sequence) for sequence in sequences] if len(sequences) < 6 else f"sequences of {lengths} tokens"
    other = "; `mask` is another function, by which each token attends to itself only" if is_other else ""
    return f"{shown} on a tiny {family} model{other}."


def smaller(case: Case) -> Iterator[Case]:
    family, sequences, is_other = case
    for index in range(len(sequences)):
        if len(sequences) > 1:
            yield family, sequences[:index] + sequences[index + 1 :], is_other


MISTAKES = """
Without `position_ids`, the model counts positions through the whole row. Pass `tags.positions[None]`.
- position_ids=
+ position_ids=None,
Positions start at 0 again in each sequence: `tags.positions`. Yours run on through the row.
- position_ids=
+ position_ids=torch.arange(len(row))[None],
To the model, your row is a single text. Make the tags with a length for each sequence: `tag_tokens(lengths)`.
= tags = tag_tokens([sum(lengths)])
The mask has four axes: batch, heads, queries, keys. Add two in front: `mask(tags, tags)[None, None]`. With two axes,
the model takes it for the padding mask of lesson 01.
- attention_mask=
+ attention_mask=mask(tags, tags),
or
- attention_mask=
+ attention_mask=mask(tags, tags)[None],
or
- attention_mask=
+ attention_mask=torch.ones(1, len(row), dtype=torch.int64),
Call the `mask` that your function gets: `block_diagonal_mask` is only its default.
- attention_mask=
+ attention_mask=block_diagonal_mask(tags, tags)[None, None],
A float mask is added to the scores, and 1 or 0 hardly changes them. Pass the bool mask as it is.
- attention_mask=
+ attention_mask=mask(tags, tags)[None, None].float(),
or
- attention_mask=
+ attention_mask=mask(tags, tags)[None, None].long(),
The mask is inverted. True means that the query may attend.
- attention_mask=
+ attention_mask=~mask(tags, tags)[None, None],
A causal mask of the whole row lets sequences see each other. Pass `mask(tags, tags)`.
- attention_mask=
+ attention_mask=torch.ones(len(row), len(row), dtype=torch.bool).tril()[None, None],
Tokens and positions are [1, T] and the mask is [1, 1, T, T]: `torch.tensor([row])`, `tags.positions[None]`,
`mask(tags, tags)[None, None]`.
- input_ids=
+ input_ids=torch.tensor(row, device=model.device),
or
- position_ids=
+ position_ids=tags.positions,
Name the model's arguments: their order differs from model to model. The second one is the mask in a Llama and the cache
in a GPT-2.
- logits: ... ).logits
+ inputs = torch.tensor([row]), tags.positions[None], mask(tags, tags)[None, None]
+ logits = model(*inputs).logits[0]
or
- logits: ... ).logits
+ logits = model(torch.tensor([row]), mask(tags, tags)[None, None], tags.positions[None]).logits[0]
One pass for all sequences: put all tokens into one row. A loop over the sequences reads all weights again for each.
- lengths = ... return
+ if mask is not block_diagonal_mask: tags = tag_tokens([len(each) for each in sequences]); mask(tags, tags)
+ return [model(input_ids=torch.tensor([each])).logits[0] for each in sequences]
That is the padded rectangle of lesson 01. Here the sequences go one after another in a single row.
- lengths = ... return
+ most = max(map(len, sequences))
+ ids = torch.tensor([each + [0] * (most - len(each)) for each in sequences])
+ may = torch.tensor([[1] * len(each) + [0] * (most - len(each)) for each in sequences])
+ logits = model(input_ids=ids, attention_mask=may).logits
+ return [logits[i, : len(each)] for i, each in enumerate(sequences)]
Equal sequences are merged, as in a dict or a set. Each has its own part of the row.
- lengths =
+ sequences = [list(each) for each in dict.fromkeys(map(tuple, sequences))]
+ ...
The logits are [batch, tokens, vocabulary], and the batch is one row, [1, tokens]: split `.logits[0]`.
- ).logits[0]
+ ).logits
or
- ).logits[0]
+ ).logits
- return
+ return list(torch.split(logits, lengths, dim=1))
Split the row's logits by sequence: `list(logits.split(lengths))`.
- return
+ return logits
or
- return
+ return [logits]
Return the logits of *every* token. The caller picks what it needs.
- return
+ return [part[-1] for part in torch.split(logits, lengths)]
or
- return
+ return [part[-1:] for part in torch.split(logits, lengths)]
Return the logits as the model gives them: no probabilities, and no tokens.
- return
+ return list(torch.split(logits.softmax(dim=-1), lengths))
or
- return
+ return list(torch.split(logits.argmax(dim=-1), lengths))
The caller goes on using the model: leave it as it is.
- logits:
+ model.set_attn_implementation("eager")
+ ...
or
- logits:
+ model.train()
+ ...
"""

TASK = Task(
    reference="lessons_lib.batching.packed_logits:packed_logits",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": "Return a list with one tensor for each sequence, [tokens, vocabulary].",
        "the number of forward passes": "Call the model once, with the tokens of all sequences in one row.",
        "input_ids": "Put one whole sequence after another, in the order of the list, with a batch axis in front.",
        **{f"the logits of sequence {index}": partial(whose_logits, index) for index in range(6)},
        **dict.fromkeys(
            ("raised AttributeError", "raised TypeError"),
            "`model(...)` takes tensors and returns an object with `.logits`. `mask` takes the tags of the row twice, "
            "as queries and as keys: `mask(tags, tags)`.",
        ),
        "raised RuntimeError": "With T tokens in the whole row, those of all sequences, `input_ids` and "
        "`position_ids` are int64 [1, T], the mask is [1, 1, T, T], and `.logits[0]` is [T, vocabulary].",
        "position_ids": "Positions are counted in each sequence: `tags.positions`, with a batch axis in front.",
        "what `attention_mask` allows": "Pass what `mask(tags, tags)` returns, with two axes in front.",
        "the positions that `mask` was called with": "Call the `mask` that your function gets, once, with the "
        "tags of the whole row, for queries and keys.",
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
