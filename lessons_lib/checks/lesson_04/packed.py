"""Judges 04.3, `packed_logits`: one forward pass over one row, and for every sequence the logits that it gets alone."""

from random import Random

import torch

from lessons_lib.attention.masks import Tags
from lessons_lib.batching.packed_logits import packed_logits
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_01.words import count, kind
from lessons_lib.checks.lesson_04.earlier_calls import depends_on_earlier_calls
from lessons_lib.checks.lesson_04.packed_inputs import name_wrong_inputs, name_wrong_row, recorded
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

# Rounding changes the tiny models' logits by less than 1e-4, the smallest mistake by more than 0.1.
TOLERANCE = 1e-2

# (model family, sequences), smallest first. GPT-2 comes first: its positions are absolute, so wrong ones show.
PACKED_CASES = (
    ("gpt2", [[5, 6, 7]]),
    ("gpt2", [[5], [6]]),
    ("gpt2", [[5], [5]]),
    ("gpt2", [[5, 6, 7], [8, 9]]),
    ("gpt2", [[5, 6], [7, 8, 9]]),
    ("llama", [[1, 2], [3, 4, 5, 6], [7]]),
    ("qwen2", [[9, 9, 4], [4, 9, 9], [4]]),
)
# Pairs of lengths with the same sum, which no case has before the random ones.
EARLIER = (((6, 5), (5, 6)), ((6, 7), (7, 6)))


def check_packed_logits(attempt) -> None:
    for family, sequences in PACKED_CASES:
        _check_case(attempt, family, sequences)
    _check_own_mask(attempt)
    rng = Random(4)
    for family in ("gpt2", "llama", "qwen2"):
        _check_case(attempt, family, [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 12))] for _ in range(6)])


@torch.inference_mode()
def alone(model, sequence: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0]


def _check_case(attempt, family: str, sequences: list[list[int]]) -> None:
    model = tiny_model(family)
    shown = sequences if len(sequences) < 6 else f"six sequences with {[len(s) for s in sequences]} tokens"
    case = f"{shown} on a tiny {family} model."
    parts = _call(attempt, model, sequences, case)
    for index, (got, sequence) in enumerate(zip(parts, sequences)):
        want = alone(model, sequence)
        if not _close(got, want):
            _refuse_earlier_calls(attempt, family)
            raise _name_wrong_logits(attempt, model, sequences, index, parts, case)


def _refuse_earlier_calls(attempt, family: str) -> None:
    model = tiny_model(family)

    def is_right(lengths: tuple[int, int]) -> bool:
        sequences = [list(range(5, 5 + length)) for length in lengths]
        parts = attempt(model, [list(sequence) for sequence in sequences])
        return all(_close(got, alone(model, sequence)) for got, sequence in zip(parts, sequences))

    if depends_on_earlier_calls(is_right, EARLIER):
        raise Mistake(
            "the logits depend on an earlier call: those of the first call are right, and those of the second aren't.",
            case=f"two sequences with 6 and 5 tokens, then two with 5 and 6, on a tiny {family} model.",
            idea="Does your code keep a mask from one call to the next, by the length of the row? Rows of the same "
            "length can have other sequences. Build the mask anew in each call.",
        )


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got.detach().cpu().float() - want).abs().max() < TOLERANCE)


def _call(attempt, model, sequences: list[list[int]], case: str, **mask) -> list[torch.Tensor]:
    """What the attempt returns. Checks first that it made one pass and that the tensors have the right shapes."""
    with recorded(model) as seen:
        try:
            result = call(attempt, model, [list(sequence) for sequence in sequences], case=case, **mask)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError):
            name_wrong_inputs(seen, sequences, case)
            raise
    if seen.switched_to:
        raise Mistake(
            f"your code switched the model to the attention {seen.switched_to!r} and left it so.",
            case=case,
            idea="The caller goes on using the model. Leave its attention as it is: it takes the bool mask.",
        )
    if not seen.passes:
        raise Mistake("your code never called the model.", case=case, idea="Call `model(...)` once.")
    if len(seen.passes) != 1:
        raise Mistake(
            f"there should be one forward pass for all sequences; yours made {len(seen.passes)}.",
            case=case,
            idea="There is only one sequence here, so one call computes all that you need. Keep its result."
            if len(sequences) == 1
            else "Put the tokens of all sequences into one row and call the model once. A loop over the sequences "
            "reads all weights again for each of them.",
        )
    name_wrong_row(seen, sequences, case)
    _check_parts(result, sequences, case)
    return list(result)


def _check_parts(result, sequences: list[list[int]], case: str) -> None:
    lengths = [len(sequence) for sequence in sequences]
    if isinstance(result, torch.Tensor) or not isinstance(result, (list, tuple)):
        idea = (
            "Split the row's logits by sequence: `list(logits.split(lengths))`."
            if isinstance(result, torch.Tensor)
            else "Return a list with one tensor per sequence."
        )
        raise Mistake(
            f"it should return a list of {count(len(lengths), 'tensor')}; yours returned {kind(result)}.",
            case=case,
            idea=idea,
        )
    if len(result) != len(lengths) or not all(isinstance(part, torch.Tensor) for part in result):
        idea = "Return one tensor per sequence, in their order."
        if len(result) == sum(lengths) != len(lengths):
            idea = "You have one per token. `split` takes the list of lengths: `logits.split(lengths)`."
        elif not all(isinstance(part, torch.Tensor) for part in result):
            idea = "Keep them as tensors: the caller takes their argmax."
        raise Mistake(
            f"there should be {count(len(lengths), 'tensor')}, one per sequence; you returned {len(result)}: "
            f"{', '.join(map(kind, result[:3]))}.",
            case=case,
            idea=idea,
        )
    for index, (part, length) in enumerate(zip(result, lengths)):
        if list(part.shape) != [length, VOCAB_SIZE]:
            raise Mistake(
                f"the logits of sequence {index} should have shape [{length}, {VOCAB_SIZE}], tokens by vocabulary; "
                f"yours have {list(part.shape)}.",
                case=case,
                idea=_why_shape(list(part.shape), length, sum(lengths))
                if part.is_floating_point()
                else "These look like token ids. The caller picks tokens from the logits, so return the logits.",
            )


def _why_shape(shape: list[int], length: int, total: int) -> str:
    if shape == [VOCAB_SIZE] or shape == [1, VOCAB_SIZE]:
        return "You keep only the last token's logits. Return those of every token; the caller picks what it needs."
    if shape == [1, length, VOCAB_SIZE]:
        return "The batch axis is still there. The batch has just one row: use `.logits[0]`."
    if shape == [total, VOCAB_SIZE]:
        return "Each tensor covers the whole row. Split it: `logits.split(lengths)`."
    if length == total and shape == [length - 1, VOCAB_SIZE]:
        return (
            "The logits of one token are missing. Does a slice such as `[:-1]` leave it out? Row i has the logits "
            "after token i, and the caller needs every row: the last one chooses the next token."
        )
    if len(shape) == 2 and shape[1] != VOCAB_SIZE:
        return "You split along the vocabulary. The tokens are the first axis of `.logits[0]`."
    return "Split by the lengths of the sequences, in their order: `logits.split(lengths)`."


def _name_wrong_logits(
    attempt, model, sequences: list[list[int]], index: int, parts: list[torch.Tensor], case: str
) -> Mistake:
    with recorded(model) as seen:
        attempt(model, [list(sequence) for sequence in sequences])
    name_wrong_inputs(seen, sequences, case)
    right = [alone(model, sequence) for sequence in sequences]
    got, want = parts[index].float(), right[index]
    difference = (got - want).abs().max().item()
    what = f"the logits of sequence {index} differ by up to {difference:.3g} from those it gets alone."
    idea = "The model's inputs are right. Check what you do with its logits."
    if _close(got, want.softmax(-1)) or _close(got, want.log_softmax(-1)):
        idea = "These are probabilities or log probabilities. Return the logits as the model gives them."
    elif any(part.shape == want.shape and _close(got, part) for part in right):
        idea = "These are the logits of another sequence. Tensor i of the list belongs to sequence i."
    elif len(want) > 1 and (_close(got[1:], want[:-1]) or _close(got[:-1], want[1:])):
        idea = "They are shifted by one token. Row i has the logits after token i; leave the rows where they are."
    elif (at := _index_in_row(got, right)) is not None:
        begins = sum(map(len, sequences[:index]))
        idea = (
            f"Yours begin at index {at} of the row, but sequence {index} begins at index {begins}, after all sequences "
            "before it."
        )
    return Mistake(what, case=case, idea=idea)


def _index_in_row(got: torch.Tensor, right: list[torch.Tensor]) -> int | None:
    """The index in the row at which these logits begin, if they are a part of it."""
    row = torch.cat(right)
    starts = range(len(row) - len(got) + 1)
    return next((at for at in starts if _close(got, row[at : at + len(got)])), None)


def _check_own_mask(attempt) -> None:
    """The attempt must use the mask function that is passed in."""
    sequences, model = [[5, 6, 7], [8, 9]], tiny_model("gpt2")
    case = (
        f"{sequences} with `mask=only_itself`, a function of queries and keys that lets every token attend only to "
        "itself."
    )
    calls = []

    def only_itself(queries: Tags, keys: Tags):
        calls.append((queries, keys))
        return (keys.positions == queries.positions[:, None]) & (keys.seq_ids == queries.seq_ids[:, None])

    with recorded(model) as seen:
        parts = _call(attempt, model, sequences, case, mask=only_itself)
    if not calls:
        idea = (
            "Make the mask with `mask(tags, tags)`, not with `block_diagonal_mask`, which is only the default. Later "
            "cells pass masks with a rule missing."
        )
        if seen.passes[0].get("attention_mask") is None:
            idea = (
                "You pass no mask at all. So far that worked because transformers, given neither a mask nor a cache, "
                "starts a new sequence wherever the positions restart. It can't do that with a cache, so pass the "
                "result of `mask(tags, tags)`."
            )
        raise Mistake("your code never calls the function `mask` that it was given.", case=case, idea=idea)
    _check_tags(calls, sequences, case)
    want = packed_logits(model, sequences, only_itself)
    if not all(_close(part, right) for part, right in zip(parts, want)):
        raise Mistake(
            "your code calls `mask`, but the logits don't match that mask.",
            case=case,
            idea="Pass the result of `mask(tags, tags)` to the model as `attention_mask`, with two axes in front: "
            "`[None, None]`.",
        )


def _check_tags(calls: list[tuple[Tags, Tags]], sequences: list[list[int]], case: str) -> None:
    """The mask function must get each token's own tags: without the sequence rule, a wrong position goes unnoticed."""
    want = [position for sequence in sequences for position in range(len(sequence))]
    idea = "A mask with a rule missing depends on them. Pass the tags of `tag_tokens`, for queries and keys."
    if [tags[0].positions.tolist() for tags in calls] == [list(range(len(sequence))) for sequence in sequences]:
        idea = "Do you call `mask` for each sequence by itself? Call it once, with the tags of the whole row."
    for tags in calls[0]:
        if tags.positions.tolist() != want:
            raise Mistake(
                f"the tags given to `mask` should have the positions {want}; yours are {tags.positions.tolist()}.",
                case=case,
                idea=idea,
            )
