"""Judges 05.1, `pack`: one row without padding, and the numbers that say whose each token is."""

from random import Random

import torch

from lessons_lib.attention.packing import PackedBatch, pack, unpack
from lessons_lib.checks.exercise import Mistake, call, short

# (new tokens of each sequence, how many each has in the cache), smallest first.
CASES = (
    ([[5, 6]], [0]),
    ([[7], [9]], [2, 4]),
    ([[5, 6, 8], [7]], [0, 0]),
    ([[7], [5, 6, 8], [9]], [2, 0, 4]),
    ([[5, 6], [8, 4, 3]], [3, 6]),
)
FIELDS = ("input_ids", "positions", "seq_ids", "cu_seqlens_q", "context_lens", "logits_index")


def check_pack(attempt) -> None:
    for new_tokens, cached_lens in CASES:
        _check_row(attempt, new_tokens, cached_lens)
    _check_nobody(attempt)
    _check_refusals(attempt)
    rng = Random(5)
    for _ in range(25):
        count = rng.randint(1, 9)
        new_tokens = [[rng.randrange(900) for _ in range(rng.choice((1, 1, 1, 2, 30)))] for _ in range(count)]
        _check_row(attempt, new_tokens, [rng.choice((0, 1, 5, 64)) for _ in new_tokens])


def _check_row(attempt, new_tokens, cached_lens) -> None:
    case = f"new tokens {short(new_tokens)}, cached_lens {cached_lens}."
    got = _packed(attempt, new_tokens, cached_lens, case)
    want = pack(new_tokens, cached_lens)
    for name in FIELDS:
        _check_field(name, getattr(got, name), getattr(want, name), want, case)
    pieces = [piece.tolist() for piece in unpack(got, got.input_ids)]
    if pieces != new_tokens:
        raise Mistake(
            f"taken apart again, the row should give {short(new_tokens)}; it gives {short(pieces)}.", case=case
        )


def _packed(attempt, new_tokens, cached_lens, case: str):
    try:
        # Copies: an attempt may change what it is given.
        got = call(attempt, [list(tokens) for tokens in new_tokens], list(cached_lens), case=case)
    except ValueError as error:
        if "negative dimensions" in str(error) or "expected" in str(error):
            raise
        raise Mistake(
            f"these lists can be packed; yours refused them with ValueError: {error}",
            case=case,
            idea="Refuse only lists of unequal length, a sequence without a new token, and a negative length. A cached length of 0 is a prefill.",
        ) from None
    if not all(hasattr(got, name) for name in FIELDS):
        idea = "Return one `PackedBatch(input_ids=..., positions=..., ...)`, with all six fields."
        raise Mistake(f"`pack` should return a PackedBatch; yours returned {type(got).__name__}.", case=case, idea=idea)
    return got


def _check_field(name: str, got, want, packed: PackedBatch, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        idea = "The model and the mask compute with all six fields as tensors: `torch.tensor(...)`."
        raise Mistake(f"`{name}` should be a torch tensor; yours is {type(got).__name__}.", case=case, idea=idea)
    if got.dim() == 2:
        idea = "A PackedBatch is about one row and has no axis for rows. The axis that the model wants is put in before the forward pass."
        raise Mistake(
            f"`{name}` should have one axis, [{len(want)}]; yours has the shape {list(got.shape)}.",
            case=case,
            idea=idea,
        )
    if got.shape != want.shape or got.tolist() != want.tolist():
        what = f"`{name}` should be {short(want)}; yours is {short(got)}."
        raise Mistake(what, case=case, idea=_why_field(name, got.flatten().tolist(), packed))
    _check_integers(
        name,
        got,
        case,
        "These are token numbers, places and counts. Say `dtype=torch.int64` where PyTorch would guess.",
    )


def _check_integers(name: str, got: torch.Tensor, case: str, idea: str) -> None:
    if got.is_floating_point() or got.is_complex() or got.dtype == torch.bool:
        raise Mistake(
            f"`{name}` should hold integers; yours holds {str(got.dtype).removeprefix('torch.')}.", case=case, idea=idea
        )


def _why_field(name: str, got: list, packed: PackedBatch) -> str:
    """Recognise a wrong field by what it equals."""
    new, cached = packed.new_lens, packed.cached_lens
    ends = packed.cu_seqlens_q.tolist()[1:]
    starts = packed.cu_seqlens_q.tolist()[:-1]
    context = packed.context_lens.tolist()
    each = [(index, place, first) for index, (count, first) in enumerate(zip(new, cached)) for place in range(count)]
    seq_ids = packed.seq_ids.tolist()
    recognised = {
        "input_ids": (
            (
                sorted(packed.input_ids.tolist()),
                "The row keeps the order of the sequences and of their tokens. Nothing is sorted.",
            ),
            (
                [unpacked[-1] for unpacked in _pieces(packed)],
                "You took the last token of each sequence only. All new tokens go into the row.",
            ),
        ),
        "positions": (
            (
                [place for _, place, _ in each],
                "Positions count from the start of the sequence, not of its piece. With 2 tokens in the cache the first new token has position 2.",
            ),
            (
                list(range(len(each))),
                "You count through the row. Positions begin anew in every sequence, at its cached length.",
            ),
            (
                [first + place + 1 for _, place, first in each],
                "You are one too far. Positions count from 0, so behind 2 cached tokens comes position 2.",
            ),
            (
                [first for _, _, first in each],
                "The tokens of one sequence all got the same position. They count up from its cached length.",
            ),
            (
                [first + index for index, (_, _, first) in enumerate(each)],
                "You added the place in the row. Add the place within the sequence's own piece.",
            ),
        ),
        "seq_ids": (
            ([index + 1 for index in seq_ids], "Sequences are numbered from 0."),
            (
                list(range(len(new))),
                "One number for each *token*: a sequence with 3 new tokens has its number 3 times.",
            ),
            ([0] * len(each), "Every token has the same number, so the mask could not keep the sequences apart."),
        ),
        "cu_seqlens_q": (
            (ends, "The 0 in front is missing. With it, sequence i lies at `row[cu[i]:cu[i + 1]]`, the first one too."),
            (
                starts,
                "The end of the row is missing. With B sequences there are B + 1 numbers: where each begins, and at last T.",
            ),
            (new, "These are the lengths themselves. Add them up from the left, with a 0 in front."),
            ([0, *new], "These are the lengths themselves, with a 0 in front. Add them up from the left."),
            (_sums(context), "You added up all tokens of the sequences. In the row are the new ones only."),
        ),
        "context_lens": (
            (cached, "That is what is cached before the pass. The pass adds the new tokens."),
            (
                new,
                "Those are the new tokens only. Attention looks at the cached ones as well: cached and new together.",
            ),
            (_sums(context)[1:], "You added them up from sequence to sequence. Each sequence has its own length here."),
            (
                [length - 1 for length in context],
                "That is the position of the last token. Counted from 0, it is one less than the number of tokens.",
            ),
        ),
        "logits_index": (
            (
                ends,
                "You are one too far: sequence i ends *before* `cu_seqlens_q[i + 1]`, where the next one begins. Its last token lies one place earlier.",
            ),
            (starts, "Those are the first tokens. The next token comes from the logits of the last one."),
            ([count - 1 for count in new], "You counted within each sequence. The index is a place in the whole row."),
            (
                [length - 1 for length in context],
                "Those are positions in the sequences. The index is a place in the row, whatever lies in the cache.",
            ),
            ([len(each) - 1], "That is the last token of the row. Every sequence has a last token of its own."),
        ),
    }
    for wrong, idea in recognised[name]:
        if got == wrong:
            return idea
    return {
        "input_ids": "All new tokens of the first sequence, then all of the second, and so on.",
        "positions": "A sequence with c tokens in the cache and n new ones has the positions c to c + n - 1 in the row.",
        "seq_ids": "The number of the sequence, once for each of its new tokens.",
        "cu_seqlens_q": "0, then the sums of the numbers of new tokens from the left.",
        "context_lens": "For each sequence, its cached tokens and its new ones together.",
        "logits_index": "For each sequence, the place of its last new token in the row.",
    }[name]


def _pieces(packed: PackedBatch) -> list[list[int]]:
    return [piece.tolist() for piece in unpack(packed, packed.input_ids)]


def _sums(lengths: list[int]) -> list[int]:
    return [sum(lengths[:count]) for count in range(len(lengths) + 1)]


def _check_nobody(attempt) -> None:
    case = "no sequences: `pack([], [])`."
    got = _packed(attempt, [], [], case)
    for name in FIELDS:
        field, want = getattr(got, name), [0] if name == "cu_seqlens_q" else []
        if not isinstance(field, torch.Tensor) or field.tolist() != want:
            raise Mistake(
                f"without sequences `{name}` should be {want}; yours is {short(field)}.",
                case=case,
                idea="The row has no tokens, and it ends at 0.",
            )
        _check_integers(
            name,
            field,
            case,
            "`torch.tensor([])` holds floats: there is no number from which PyTorch could tell. Say `dtype=torch.int64`.",
        )


def _check_refusals(attempt) -> None:
    refused = (
        (
            [[7], [9]],
            [2],
            "two sequences, but one cached length",
            "Python's `zip` stops at the shorter list without a word, and a sequence would be lost.",
        ),
        (
            [[7], []],
            [2, 4],
            "a sequence without a new token",
            "It has no last token in the row, so its logits index would point into the piece before it.",
        ),
        (
            [[7], [9]],
            [2, -1],
            "a cached length of -1",
            "There is no position before 0. A later step would fail, far from the mistake.",
        ),
    )
    for new_tokens, cached_lens, what, idea in refused:
        case = f"new tokens {new_tokens}, cached_lens {cached_lens}."
        try:
            call(attempt, [list(tokens) for tokens in new_tokens], list(cached_lens), case=case)
        except ValueError:
            continue
        except NotImplementedError:
            raise
        except (LookupError, TypeError, AssertionError, RuntimeError) as error:
            said = f"yours raised {type(error).__name__}: {str(error)[:80]}."
            raise Mistake(
                f"{what} should be refused with a ValueError; {said}",
                case=case,
                idea="Look at the two lists before you compute anything.",
            ) from None
        raise Mistake(f"{what} should be refused with a ValueError; yours accepted it.", case=case, idea=idea)
