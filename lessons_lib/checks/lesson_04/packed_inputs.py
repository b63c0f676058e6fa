"""The inputs of the one pass over a packed row, and what is wrong with them."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from lessons_lib.attention.masks import Tags, block_diagonal_mask, combine, not_in_the_future, same_sequence, tag_tokens
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_01.words import count, kind
from lessons_lib.checks.lesson_04.rows import drawn

# Values below this, added to a score, leave a negligible weight.
_HIDES = -20.0


@dataclass
class Seen:
    """The inputs of each pass: tensors, or whatever was passed. And the attention that the model was switched to."""

    passes: list[dict] = field(default_factory=list)
    switched_to: str = ""


@contextmanager
def recorded(model):
    seen = Seen()
    attention = model.config._attn_implementation

    def note(module, args, kwargs):
        seen.passes.append(
            {"input_ids": args[0] if args else kwargs.get("input_ids"), **kwargs, "by_position": len(args)}
        )

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()
        if model.config._attn_implementation != attention:  # the next check gets the same model
            seen.switched_to = str(model.config._attn_implementation)
            model.set_attn_implementation(attention)


def name_wrong_row(seen: Seen, sequences: list[list[int]], case: str) -> None:
    """Raise if the row of tokens is wrong."""
    row = [token for sequence in sequences for token in sequence]
    ids = seen.passes[0]["input_ids"]
    if not isinstance(ids, torch.Tensor):
        raise Mistake(
            f"`input_ids` should be a tensor; the model was given {kind(ids)}.",
            case=case,
            idea="`input_ids=torch.tensor([row])`.",
        )
    if ids.dim() == 2 and len(ids) > 1:
        raise Mistake(
            f"`input_ids` should be one row of {count(len(row), 'token')}; yours has {len(ids)} rows.",
            case=case,
            idea="That is the padded rectangle of lesson 01. Here the sequences go one after another in a single row.",
        )
    if list(ids.shape) != [1, len(row)]:
        idea = "The row has all tokens of all sequences, and nothing else."
        once = {tuple(sequence) for sequence in sequences}
        if len(once) < len(sequences) and ids.numel() == sum(map(len, once)):
            idea = "Two sequences here are equal. Are they merged, as in a dict or a set? Each has its part of the row."
        if list(ids.shape) == [len(row)]:
            idea = "The model expects a batch axis in front: `torch.tensor([row])`."
        raise Mistake(
            f"`input_ids` should have shape [1, {len(row)}]; yours has {list(ids.shape)}.", case=case, idea=idea
        )
    if ids[0].tolist() != row:
        raise Mistake(
            f"the row should be {short(row)}; yours is {short(ids[0])}.",
            case=case,
            idea="Put one whole sequence after another, in the order of the list.",
        )


def name_wrong_inputs(seen: Seen, sequences: list[list[int]], case: str) -> None:
    """Raise if an input of the pass is wrong; return if all are right."""
    if not seen.passes:
        return
    name_wrong_row(seen, sequences, case)
    inputs, total = seen.passes[0], sum(map(len, sequences))
    if inputs["by_position"] > 1:
        raise Mistake(
            f"you passed {inputs['by_position']} arguments to the model without their names.",
            case=case,
            idea="Their order differs from model to model: the second one is the mask in a Llama and the cache in a "
            "GPT-2. Name them: `position_ids=...`, `attention_mask=...`.",
        )
    mask = inputs.get("attention_mask")
    fault = (
        _one_text(inputs.get("position_ids"), mask, sequences, total)
        or _wrong_positions(inputs.get("position_ids"), sequences, total)
        or _wrong_mask(mask, sequences, total)
    )
    if fault:
        raise Mistake(fault[0], case=case, idea=fault[1])


def _one_text(positions, mask, sequences: list[list[int]], total: int):
    """If both inputs are those of a single text."""
    tensors = isinstance(positions, torch.Tensor) and isinstance(mask, torch.Tensor)
    if len(sequences) == 1 or not tensors or list(mask.shape) != [1, 1, total, total]:
        return None
    causal = torch.ones(total, total, dtype=torch.bool).tril()
    if positions.reshape(-1).tolist() != list(range(total)) or not torch.equal(_allowed(mask), causal):
        return None
    lengths = [len(sequence) for sequence in sequences]
    what = "positions and mask are those of a single text: the positions should be "
    return (
        f"{what}{short([tag_tokens(lengths).positions.tolist()])}; yours are {short(positions)}.",
        "The mask lets tokens attend to the sequences before theirs. Make the tags with a length for each sequence, "
        f"`tag_tokens({short(lengths)})`, not `tag_tokens([{total}])`, and take both inputs from them.",
    )


def _allowed(mask: torch.Tensor) -> torch.Tensor:
    """Which keys a mask of four axes allows, [queries, keys]."""
    mask = mask[0, 0].cpu()
    return mask if mask.dtype == torch.bool else mask > _HIDES


def _wrong_positions(positions, sequences: list[list[int]], total: int):
    want = tag_tokens([len(sequence) for sequence in sequences]).positions.tolist()
    if positions is None:
        return (
            "the model was given no `position_ids`, so it counts positions through the whole row.",
            f"Pass the positions from the tags, `tags.positions[None]`; here that is {short([want])}.",
        )
    got = positions.reshape(-1).tolist() if isinstance(positions, torch.Tensor) else positions
    if got == want:
        if list(positions.shape) == [1, total]:
            return None
        what = f"`position_ids` should have shape [1, {total}]; yours has {list(positions.shape)}."
        return what, "The model expects a batch axis in front: `tags.positions[None]`."
    idea = "Positions are counted within each sequence: `tags.positions`, with a batch axis in front."
    if got == list(range(total)):
        idea = (
            "They run on through the row, as if it were one text. In each sequence they start at 0 again, as in "
            "`tags.positions`."
        )
    shown = short(positions) if isinstance(positions, torch.Tensor) else kind(positions)
    return f"the positions should be {short([want])}; yours are {shown}.", idea


def _wrong_mask(mask, sequences: list[list[int]], total: int):
    tags = tag_tokens([len(sequence) for sequence in sequences])
    want = block_diagonal_mask(tags, tags)
    if mask is None:
        return (
            "the model was given no `attention_mask`.",
            "Without it the whole row is one text. Pass `mask(tags, tags)`, with two axes in front.",
        )
    if not isinstance(mask, torch.Tensor):
        return (
            f"`attention_mask` should be a tensor; yours is {kind(mask)}.",
            "Call `mask` with the tags of the queries and the keys: `mask(tags, tags)`.",
        )
    if list(mask.shape) != [1, 1, total, total]:
        idea = (
            "The mask has four axes here: batch, heads, queries, keys. Add two in front: `mask(tags, tags)[None, "
            "None]`."
        )
        if mask.dim() == 2:
            idea += " With two axes, the model takes it for the padding mask of lesson 01, [rows, tokens]."
        return f"`attention_mask` should have shape [1, 1, {total}, {total}]; yours has {list(mask.shape)}.", idea
    if mask.dtype not in (torch.bool, torch.float32):
        dtype = str(mask.dtype).removeprefix("torch.")
        return (
            f"the dtype of `attention_mask` should be bool, or float32 as from `additive_mask`; yours is {dtype}.",
            "Pass the result of `mask(tags, tags)` unchanged.",
        )
    got = mask[0, 0].cpu()
    if mask.dtype == torch.float32 and got.min() > _HIDES:
        what = (
            f"the first row of `attention_mask` is {short(got[0])}. None of these values is low enough to hide a key."
        )
        return what, (
            "A float mask is added to the scores, and 1 or 0 hardly changes them. The form of the mask must match the "
            "attention function: pass the bool mask unchanged, or convert it with `additive_mask`."
        )
    return _wrong_cells(_allowed(mask), want, tags)


def _wrong_cells(allowed, want, tags: Tags):
    if torch.equal(allowed, want):
        return None
    query = (allowed != want).any(dim=1).nonzero()[0].item()
    what = (
        f"the model was given the wrong mask. The row of query {query} should be `{drawn(want[query])}`; yours is "
        f"`{drawn(allowed[query])}` (# attends, . blocked)."
    )
    for wrong, idea in (
        (~want, "It is inverted. True means that the query may attend."),
        (want.T, "It is transposed. A row is a query and a column is a key, as in `mask(tags, tags)`."),
        (combine([not_in_the_future], tags, tags), "Sequences see each other. The sequence rule is missing."),
        (combine([same_sequence], tags, tags), "Tokens see later tokens. The causal rule is missing."),
        (
            torch.ones_like(want).tril(),
            "That is the causal mask of a single text. Build the mask from the tags: `mask(tags, tags)`.",
        ),
    ):
        if torch.equal(allowed, wrong):
            return what, idea
    return (
        what,
        "Pass the result of `mask(tags, tags)` unchanged. Queries and keys are the same tokens here, so both have "
        "the same tags.",
    )
