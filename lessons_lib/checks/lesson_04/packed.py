"""Judges 04.4, `packed_logits`: one forward pass over one row, and the logits of every sequence as if it were alone."""

from random import Random

import torch

from lessons_lib.attention.masks import Tags
from lessons_lib.batching.packed_logits import packed_logits
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_01.words import count, kind
from lessons_lib.checks.lesson_04.packed_inputs import name_wrong_inputs, name_wrong_row, recorded
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

# Rounding moves the tiny models' logits by less than 1e-4; the smallest mistake by more than 0.1.
TOLERANCE = 1e-2

# (model family, sequences), smallest first. GPT-2 first: its positions are absolute, so a wrong one shows.
PACKED_CASES = (
    ("gpt2", [[5, 6, 7]]),
    ("gpt2", [[5], [6]]),
    ("gpt2", [[5, 6, 7], [8, 9]]),
    ("llama", [[1, 2], [3, 4, 5, 6], [7]]),
    ("qwen2", [[9, 9, 4], [4, 9, 9], [4]]),
)


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
    shown = sequences if len(sequences) < 6 else f"six sequences of {[len(s) for s in sequences]} tokens"
    case = f"{shown} on a tiny {family} model."
    pieces = _pieces_of(attempt, model, sequences, case)
    for number, (got, sequence) in enumerate(zip(pieces, sequences)):
        want = alone(model, sequence)
        if not _close(got, want):
            raise _name_wrong_logits(attempt, model, sequences, number, pieces, case)


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got.detach().cpu().float() - want).abs().max() < TOLERANCE)


def _pieces_of(attempt, model, sequences: list[list[int]], case: str, **mask) -> list[torch.Tensor]:
    """What the attempt returns, after its one pass and the shapes of the pieces have been looked at."""
    with recorded(model) as seen:
        try:
            result = call(attempt, model, [list(sequence) for sequence in sequences], case=case, **mask)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError):
            name_wrong_inputs(seen, sequences, case)
            raise
    if len(seen.passes) != 1:
        raise Mistake(
            f"there should be one forward pass for all sequences; yours made {len(seen.passes)}.",
            case=case,
            idea="Lay the tokens of all sequences into one row, and call the model once. A loop over the sequences reads all weights anew each time.",
        )
    name_wrong_row(seen, sequences, case)
    _check_pieces(result, sequences, case)
    return list(result)


def _check_pieces(result, sequences: list[list[int]], case: str) -> None:
    lengths = [len(sequence) for sequence in sequences]
    if isinstance(result, torch.Tensor) or not isinstance(result, (list, tuple)):
        idea = (
            "Cut the row's logits into pieces: `list(logits.split(lengths))`."
            if isinstance(result, torch.Tensor)
            else "Return the pieces in a list."
        )
        raise Mistake(
            f"it should return a list of {count(len(lengths), 'tensor')}; yours returned {kind(result)}.",
            case=case,
            idea=idea,
        )
    if len(result) != len(lengths) or not all(isinstance(piece, torch.Tensor) for piece in result):
        idea = "One tensor for each sequence, in their order."
        if len(result) == sum(lengths) != len(lengths):
            idea = "You have one for each token. `split` takes the list of lengths: `logits.split(lengths)`."
        elif not all(isinstance(piece, torch.Tensor) for piece in result):
            idea = "Leave the pieces tensors: the caller takes the argmax of them."
        raise Mistake(
            f"there should be {count(len(lengths), 'tensor')}, one for each sequence; yours are {len(result)}: {', '.join(map(kind, result[:3]))}.",
            case=case,
            idea=idea,
        )
    for number, (piece, length) in enumerate(zip(result, lengths)):
        if list(piece.shape) != [length, VOCAB_SIZE]:
            raise Mistake(
                f"piece {number} should have shape [{length}, {VOCAB_SIZE}], its tokens by the vocabulary; yours has {list(piece.shape)}.",
                case=case,
                idea=_why_shape(list(piece.shape), length, sum(lengths)),
            )


def _why_shape(shape: list[int], length: int, total: int) -> str:
    if shape == [VOCAB_SIZE] or shape == [1, VOCAB_SIZE]:
        return "You keep the last token's logits alone. Here every token of the sequence has its own; the caller takes what it needs."
    if shape == [1, length, VOCAB_SIZE]:
        return "The batch axis is still there. The row is the only one of its batch: `.logits[0]`."
    if shape == [total, VOCAB_SIZE]:
        return "Each piece is the whole row. Cut it: `logits.split(lengths)`."
    if len(shape) == 2 and shape[1] != VOCAB_SIZE:
        return "You cut along the vocabulary. Tokens are the first axis of `.logits[0]`."
    return "The pieces are as long as the sequences, in their order: `logits.split(lengths)`."


def _name_wrong_logits(
    attempt, model, sequences: list[list[int]], number: int, pieces: list[torch.Tensor], case: str
) -> Mistake:
    with recorded(model) as seen:
        attempt(model, [list(sequence) for sequence in sequences])
    name_wrong_inputs(seen, sequences, case)
    right = [alone(model, sequence) for sequence in sequences]
    got, want = pieces[number].float(), right[number]
    difference = (got - want).abs().max().item()
    what = f"the logits of sequence {number} differ by up to {difference:.3g} from those it gets alone."
    idea = "What the model was given is right. Look at what you do with its logits."
    if _close(got, want.softmax(-1)) or _close(got, want.log_softmax(-1)):
        idea = "These are probabilities, or their logarithms. Return the logits as the model gives them."
    elif any(piece.shape == want.shape and _close(got, piece) for piece in right):
        idea = "These are the logits of another sequence. Piece i belongs to sequence i."
    elif len(want) > 1 and _close(got[1:], want[:-1]) or len(want) > 1 and _close(got[:-1], want[1:]):
        idea = "They are shifted by one token. Logits number i are those after token i; leave them as they are."
    return Mistake(what, case=case, idea=idea)


def _check_own_mask(attempt) -> None:
    """The mask that is passed in must be the one that counts."""
    sequences, model = [[5, 6, 7], [8, 9]], tiny_model("gpt2")
    case = f"{sequences} with `mask=only_itself`, a function of queries and keys that lets every token attend to itself alone."
    calls = []

    def only_itself(queries: Tags, keys: Tags):
        calls.append((queries, keys))
        return (keys.positions == queries.positions[:, None]) & (keys.seq_ids == queries.seq_ids[:, None])

    with recorded(model) as seen:
        pieces = _pieces_of(attempt, model, sequences, case, mask=only_itself)
    if not calls:
        idea = (
            "Make the mask with `mask(tags, tags)`, not with `block_diagonal_mask`, which is what `mask` is if nobody says otherwise. Later "
            "cells pass masks in which a rule is missing."
        )
        if seen.passes[0].get("attention_mask") is None:
            idea = (
                "You pass no mask at all. That went well because transformers, given neither mask nor cache, takes positions that begin anew "
                "for a new sequence. "
                "With a cache it can't, so pass what `mask(tags, tags)` gives."
            )
        raise Mistake("your code never calls the function `mask` that it is given.", case=case, idea=idea)
    want = packed_logits(model, sequences, only_itself)
    if not all(_close(piece, right) for piece, right in zip(pieces, want)):
        raise Mistake(
            "your code calls `mask`, but the logits are not those of that mask.",
            case=case,
            idea="What `mask(tags, tags)` returns goes to the model as `attention_mask`, with two axes in front: `[None, None]`.",
        )
