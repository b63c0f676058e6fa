"""Judges 05.1, `pack`: one row without padding, and the indices that describe it."""

from itertools import combinations
from random import Random

import torch

from lessons_lib.attention.packing import PackedBatch, pack, unpack
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.viz.words import marked

# (new tokens of each sequence, how many each has in the cache), smallest first.
CASES = (
    ([[5, 6, 8]], [0]),
    ([[7], [9]], [2, 4]),
    ([[7], [7]], [2, 4]),
    ([[5, 6, 8], [7]], [0, 0]),
    ([[7], [5, 6, 8], [9]], [2, 0, 4]),
    ([[5, 6], [8, 4, 3]], [3, 6]),
    ([[6, 6, 5], [6, 6, 5]], [0, 0]),
    ([[0], [0, 7]], [3, 0]),
)
FIELDS = ("input_ids", "positions", "seq_ids", "cu_seqlens_q", "context_lens", "logits_index")
BY_VALUE = (
    "Two sequences with the same new tokens get the same cached length. Do you look it up by the tokens, with `index` "
    "or in a dict? `zip` pairs each sequence with its own."
)


def check_pack(attempt) -> None:
    for new_tokens, cached_lens in CASES:
        _check_row(attempt, new_tokens, cached_lens)
    _check_empty(attempt)
    rng = Random(5)
    for _ in range(25):
        num_seqs = rng.randint(1, 9)
        new_tokens = [[rng.randrange(900) for _ in range(rng.choice((1, 1, 1, 2, 30)))] for _ in range(num_seqs)]
        _check_row(attempt, new_tokens, [rng.choice((0, 1, 5, 64)) for _ in new_tokens])


def _check_row(attempt, new_tokens, cached_lens) -> None:
    case = f"new tokens {short(new_tokens)}, cached_lens {cached_lens}."
    got = _packed(attempt, new_tokens, cached_lens, case)
    want = pack(new_tokens, cached_lens)
    _check_swapped(got, want, case)
    for name in FIELDS:
        _check_field(name, getattr(got, name), getattr(want, name), want, case)
    parts = [part.tolist() for part in unpack(got, got.input_ids)]
    if parts != new_tokens:
        raise Mistake(f"`unpack` of the row should give {short(new_tokens)}; it gives {short(parts)}.", case=case)


def _packed(attempt, new_tokens, cached_lens, case: str):
    try:
        # Copies, because an attempt may change its arguments.
        got = call(attempt, [list(tokens) for tokens in new_tokens], list(cached_lens), case=case)
    except ValueError as error:
        if "negative dimensions" in str(error) or "expected" in str(error):
            raise
        idea = (
            "Reject only lists of unequal length, a sequence without a new token, and a negative length. A "
            "cached length of 0 is a prefill."
        )
        if any(0 in tokens for tokens in new_tokens):
            idea = "0 is a token id like any other. Check the number of tokens, `len(tokens)`, not the tokens."
        raise Mistake(
            f"these lists are valid, but your code raised ValueError: {error}", case=case, idea=idea
        ) from None
    if not all(hasattr(got, name) for name in FIELDS):
        idea = "Return a `PackedBatch(input_ids=..., positions=..., ...)` with all six fields."
        raise Mistake(f"`pack` should return a PackedBatch; yours returned {type(got).__name__}.", case=case, idea=idea)
    return got


def _check_swapped(got, want, case: str) -> None:
    for one, other in combinations(FIELDS, 2):
        given, right = ([getattr(packed, name) for name in (one, other)] for packed in (got, want))
        if not all(isinstance(tensor, torch.Tensor) for tensor in given) or torch.equal(*right):
            continue
        if given[0].tolist() == right[1].tolist() and given[1].tolist() == right[0].tolist():
            idea = f"`{one}` should be {short(right[0])}, and `{other}` {short(right[1])}."
            raise Mistake(f"`{one}` and `{other}` are swapped.", case=case, idea=idea)


def _check_field(name: str, got, want, packed: PackedBatch, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        idea = "The model and the mask need all six fields as tensors: `torch.tensor(...)`."
        raise Mistake(f"`{name}` should be a torch tensor; yours is {type(got).__name__}.", case=case, idea=idea)
    if got.dim() == 2:
        idea = (
            "A PackedBatch is a single row and has no batch axis. `packed_forward` adds that axis right before the "
            "pass."
        )
        raise Mistake(
            f"`{name}` should have shape [{len(want)}]; yours has {list(got.shape)}.",
            case=case,
            idea=idea,
        )
    if got.shape != want.shape or got.tolist() != want.tolist():
        yours = marked(want.tolist(), got.tolist()) if got.dim() == 1 else short(got)
        what = f"`{name}` should be {short(want)}; yours is {yours}."
        raise Mistake(what, case=case, idea=_why_field(name, got.flatten().tolist(), packed))
    _check_integers(
        name,
        got,
        case,
        "These are token ids, indices and counts. Pass `dtype=torch.int64`.",
    )


def _check_integers(name: str, got: torch.Tensor, case: str, idea: str) -> None:
    if got.dtype not in (torch.int64, torch.int32):
        if not (got.is_floating_point() or got.is_complex() or got.dtype == torch.bool):
            idea = "A long row or a long sequence overflows fewer bits. Pass `dtype=torch.int64`."
        raise Mistake(
            f"`{name}` should be int64 (or int32); yours is {str(got.dtype).removeprefix('torch.')}.",
            case=case,
            idea=idea,
        )


def _why_field(name: str, got: list, packed: PackedBatch) -> str:
    """Explain a wrong field by a known mistake that gives the same values."""
    new, cached = packed.new_lens, packed.cached_lens
    ends = packed.cu_seqlens_q.tolist()[1:]
    starts = packed.cu_seqlens_q.tolist()[:-1]
    context = packed.context_lens.tolist()
    each = [(offset, first) for count, first in zip(new, cached) for offset in range(count)]
    seq_ids = packed.seq_ids.tolist()
    parts = [part.tolist() for part in unpack(packed, packed.input_ids)]
    alike = [parts.index(part) for part in parts]  # the first sequence with the same new tokens
    known = {
        "input_ids": (
            (
                sorted(packed.input_ids.tolist()),
                "Don't sort. The row keeps the order of the sequences and of their tokens.",
            ),
            (
                [part[-1].item() for part in unpack(packed, packed.input_ids)],
                "You took only the last token of each sequence. All new tokens go into the row.",
            ),
            (
                [t for part in unpack(packed, packed.input_ids) for t in dict.fromkeys(part.tolist())],
                "A sequence may contain the same token more than once. All of its new tokens go into the row.",
            ),
            (
                list(dict.fromkeys(packed.input_ids.tolist())),
                "The same token may occur more than once. All new tokens go into the row.",
            ),
        ),
        "positions": (
            (
                [offset for offset, _ in each],
                "Count positions from the start of the sequence, not from the start of its part of the row. With 2 "
                "cached tokens, the first new token has position 2.",
            ),
            (
                list(range(len(each))),
                "You count through the row. Positions restart in every sequence, at its cached length.",
            ),
            (
                [first + offset + 1 for offset, first in each],
                "You are off by one. Positions count from 0, so after 2 cached tokens comes position 2.",
            ),
            (
                [first for _, first in each],
                "All tokens of a sequence have the same position. Count up from its cached length.",
            ),
            (
                [cached[alike[seq]] + offset for seq, (offset, _) in zip(seq_ids, each)],
                BY_VALUE,
            ),
            (
                [first + index for index, (_, first) in enumerate(each)],
                "You added the token's index in the row. Add its index within the sequence's own part.",
            ),
        ),
        "seq_ids": (
            ([index + 1 for index in seq_ids], "Sequence ids start at 0."),
            (
                list(range(len(new))),
                "There is one id per *token*: a sequence with 3 new tokens has its id 3 times.",
            ),
            (
                [alike[seq] for seq in seq_ids],
                "Two sequences with the same new tokens get the same id. Do you look the id up with `index`, which "
                "always finds the first? `enumerate` counts the sequences.",
            ),
            ([0] * len(each), "Every token has the same id, so the mask couldn't keep the sequences apart."),
        ),
        "cu_seqlens_q": (
            (ends, "The 0 in front is missing. With it, sequence i is `row[cu[i]:cu[i + 1]]`, even for i = 0."),
            (
                starts,
                "The end of the row is missing. With N sequences there are N + 1 entries: where each begins, and "
                "finally T.",
            ),
            (new, "These are the lengths themselves. Take their running sum, with a 0 in front."),
            ([0, *new], "These are the lengths themselves, with a 0 in front. Take their running sum."),
            (_sums(context), "You counted the cached tokens as well. The row has only the new ones."),
        ),
        "context_lens": (
            (cached, "That is the number of cached tokens before the pass. The pass adds the new ones."),
            (
                new,
                "Those are only the new tokens. Count the cached ones as well, because attention reads both.",
            ),
            ([cached[same] + count for same, count in zip(alike, new)], BY_VALUE),
            (_sums(context)[1:], "You took a running sum. Here each sequence has its own length."),
            (
                [length - 1 for length in context],
                "That is the position of the last token, which is one less than the number of tokens.",
            ),
            (
                [first + 1 for first in cached],
                "You count one new token for each sequence. A sequence may have more of them in the row: add all.",
            ),
        ),
        "logits_index": (
            (
                [packed.input_ids.tolist().index(part[-1]) for part in parts],
                "Do you look up the last token by its id, or its sequence by its tokens? Both may occur more than once "
                "in the row. The running sum of the lengths says where each sequence ends.",
            ),
            (
                ends,
                "You are off by one: sequence i ends *before* `cu_seqlens_q[i + 1]`, where the next one begins. Its "
                "last token is at the index before that.",
            ),
            (starts, "Those are the first tokens. The next token comes from the logits of the last token."),
            ([count - 1 for count in new], "You counted within each sequence. Count along the whole row."),
            (
                [length - 1 for length in context],
                "Those are positions in the sequences. Use indices in the row, which has no cached tokens.",
            ),
            ([len(each) - 1], "That is the last token of the row. Every sequence has its own last token."),
            ([-1] * len(new), "-1 is the end of the whole row. Every sequence has its own last token."),
        ),
    }
    for wrong, idea in known[name]:
        if got == wrong:
            return idea
    return {
        "input_ids": "Put all new tokens of the first sequence first, then all of the second, and so on.",
        "positions": "A sequence with c cached and n new tokens has the positions c to c + n - 1 in the row.",
        "seq_ids": "Repeat the id of the sequence once per new token.",
        "cu_seqlens_q": "It starts with 0, followed by the running sum of the numbers of new tokens.",
        "context_lens": "For each sequence, add its cached and its new tokens.",
        "logits_index": "For each sequence, it has the index of its last new token in the row.",
    }[name]


def _sums(lengths: list[int]) -> list[int]:
    return [sum(lengths[:count]) for count in range(len(lengths) + 1)]


def _check_empty(attempt) -> None:
    case = "no sequences: `pack([], [])`."
    try:
        got = _packed(attempt, [], [], case)
    except (RuntimeError, ValueError) as error:
        if "non-empty" not in str(error):
            raise
        idea = "Without sequences there is nothing to join: all fields are empty, but for `cu_seqlens_q`, which is [0]."
        raise Mistake(f"your code raised {type(error).__name__}: {error}", case=case, idea=idea) from None
    for name in FIELDS:
        field, want = getattr(got, name), [0] if name == "cu_seqlens_q" else []
        if not isinstance(field, torch.Tensor) or field.tolist() != want:
            raise Mistake(
                f"without sequences, `{name}` should be {want}; yours is {short(field)}.",
                case=case,
                idea="The row has no tokens, so it ends at 0.",
            )
        _check_integers(
            name,
            field,
            case,
            "`torch.tensor([])` has no element to infer the dtype from, so it is float32. Pass `dtype=torch.int64`.",
        )
