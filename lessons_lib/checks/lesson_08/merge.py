"""Judges 08.3, `merge_kernel`: the splits of each query head joined by their log-sum-exps."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import cells, close, compiled_too, numbers_text, refuse_wrong_tensors, run, touched

UNTOUCHED = -7.0


@dataclass
class Splits:
    """What the decode kernel left behind for a row of B sequences.

    Attributes:
        lse: [T, heads, NUM_SPLITS]; pieces: [T, heads, NUM_SPLITS, HEAD_DIM]; splits that are not used hold `unused`.
        contexts: keys of each sequence; split: keys of a split.
        bounds: where each sequence begins in the row; None if every sequence has one token.
    """

    lse: torch.Tensor
    pieces: torch.Tensor
    contexts: list[int]
    split: int
    bounds: list[int] | None = None

    def used(self, seq: int) -> int:
        return -(-self.contexts[seq] // self.split)

    def token(self, seq: int) -> int:
        return self.bounds[seq] if self.bounds else seq

    def is_decode(self, seq: int) -> bool:
        return self.bounds is None or self.bounds[seq + 1] - self.bounds[seq] == 1


def check_merge_kernel(attempt) -> None:
    compiled_too(lambda: _check_results(attempt), attempt, _launch(False), _launch(True))


def _launch(is_ragged: bool) -> tuple[tuple, dict]:
    pieces, lse, lens = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3), torch.ones(2, dtype=torch.int32)
    out = torch.zeros(2, 2, 4, dtype=torch.bfloat16)
    return (pieces, lse, lens, lens, out, *out.stride()[:2]), dict(
        HEAD_DIM=4, DIM=4, SPLIT=4, NUM_SPLITS=3, SPLITS=4, RAGGED=is_ragged
    )


def _check_results(attempt) -> None:
    _check_case(attempt, _make([8], [[[0.0, 1.0]]], pieces=[[[[2.0, 4.0], [8.0, 1.0]]]]))
    _check_case(attempt, _make([8], [[[2.0, -1.0]]], head_dim=4))
    _check_case(attempt, _make([4], [[[1.0, 0.0, 2.0]]]))
    _check_case(attempt, _make([12], [[[1.0, 0.0, 2.0]]]))
    _check_case(attempt, _make([12], [[[1.0, 0.0, 2.0], [-2.0, 3.0, 1.0]]]))
    _check_case(attempt, _make([12, 11], [[[1.0, 0.0, 2.0]], [[0.0, 4.0, 1.0]]]))
    _check_case(attempt, _make([12, 5], [[[1.0, 0.0, 2.0], [2.0, 2.0, 0.0]], [[0.0, 1.0, 0.0], [3.0, 1.0, 0.0]]]))
    _check_case(attempt, _make([12, 4], [[[1.0, 0.0, 2.0]], [[3.0, 0.0, 0.0]]]))
    _check_case(attempt, _make([8], [[[300.0, 299.0]]]))
    _check_case(attempt, _make([8], [[[-300.0, -301.0]]]))
    _check_case(attempt, _make([8, 8], [[[1.0, 0.0], [0.0, 3.0]], [[1.0, 2.0], [4.0, 2.0]]], head_dim=3, gap=2))
    _check_case(attempt, _make([8, 8], [[[1.0, 0.0]]] * 4, bounds=[0, 3, 4]))
    rng = Random(8)
    for seed in range(4):
        _check_case(attempt, _random(rng, seed))


def _check_case(attempt, made: tuple[Splits, int]) -> None:
    splits, gap = made
    got, recording, case = _merge(attempt, splits, gap)
    decodes = [program for program in recording.programs if splits.is_decode(program.ids[1])]
    for program in decodes:
        _check_place(recording, program, splits, case)
    for program in recording.programs:
        seq = program.ids[1]
        if not splits.is_decode(seq) and cells(recording, program, "store", "out", 2):
            what = f"program {program.ids} should store nothing: sequence {seq} has {splits.bounds[seq + 1] - splits.bounds[seq]} new tokens."
            idea = "With RAGGED, the row holds prefills too, and those are another kernel's. Return where `cu_seqlens_q[seq + 1] - cu_seqlens_q[seq]` is not 1."
            raise Mistake(what, case=case, idea=idea)
    for program in decodes:
        _check_result(recording, program, splits, got, case)
        _check_extent(recording, program, splits, case)


def _merge(attempt, splits: Splits, gap: int):
    tokens, heads, num_splits, head_dim = splits.pieces.shape
    pool = torch.full((tokens, heads, head_dim + gap), UNTOUCHED)
    out = pool[..., :head_dim]
    contexts = torch.tensor(splits.contexts, dtype=torch.int32)
    is_ragged = splits.bounds is not None
    starts = torch.tensor(splits.bounds, dtype=torch.int32) if is_ragged else contexts
    lse = [[[round(x, 2) for x in line] for line in of_token] for of_token in splits.lse.tolist()]
    shown = f"log-sum-exps {lse}" if splits.lse.numel() <= 16 else f"log-sum-exps of shape {list(splits.lse.shape)}"
    shown += (
        f", attentions {[[float(f'{x:g}') for x in piece] for piece in splits.pieces.flatten(0, 2).tolist()]}"
        if splits.pieces.numel() <= 16
        else ""
    )
    more = f", cu_seqlens_q {splits.bounds}" if is_ragged else ""
    case = (
        f"contexts {splits.contexts}, SPLIT = {splits.split}, NUM_SPLITS = {num_splits}{more}; {heads} head{'s' if heads > 1 else ''} of {head_dim} numbers; {shown}. "
        "Splits without keys hold NaN."
    )
    recording = run(
        attempt, (heads, len(splits.contexts)), splits.pieces, splits.lse, contexts, starts, out, *out.stride()[:2],
        HEAD_DIM=head_dim, DIM=_power(head_dim), SPLIT=splits.split, NUM_SPLITS=num_splits, SPLITS=_power(num_splits), RAGGED=is_ragged,
        case=case, wild=lambda error: _wild(error, splits),
    )  # fmt: skip
    refuse_wrong_tensors(recording, "out", case)
    return out.clone(), recording, case


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _check_result(recording, program, splits: Splits, got: torch.Tensor, case: str) -> None:
    head, seq = program.ids
    token, used = splits.token(seq), splits.used(seq)
    found, want = got[token, head], _joined(splits.lse[token, head, :used], splits.pieces[token, head, :used])
    if close(found, want):
        return
    what = f"out[{token}, {head}] should be {numbers_text(want)}; yours is {numbers_text(found)}."
    for tensor in ("partial_lse", "partial_out"):
        read = cells(recording, program, "load", tensor, 3)
        if idea := _why_read(read, tensor, seq, head, splits):
            raise Mistake(what, case=case, idea=idea)
    for idea, formed in _wrong_ideas(splits, token, head, used):
        if close(found, formed) and not close(formed, want):
            raise Mistake(what, case=case, idea=idea)
    idea = "weight of a split = exp2(its log-sum-exp − the largest one); result = sum of weight × piece, divided by the sum of the weights."
    if not bool(found.isfinite().all()):
        idea = "NaN or infinity comes from infinity / infinity, from 0 / 0, from infinity − infinity, or from what a mask hides: give loads of masked places an `other`."
        if splits.lse[token, head, :used].abs().max() > 100:
            idea = "exp2(300) is infinite in float32, and exp2(−300) is 0. Subtract the largest log-sum-exp first: then one weight is 1, and none is above."
    raise Mistake(what, case=case, idea=idea)


def _joined(lse: torch.Tensor, pieces: torch.Tensor) -> torch.Tensor:
    weights = (lse.double() - lse.double().max()).exp2()
    return weights @ pieces.double() / weights.sum()


def _why_read(read, tensor: str, seq: int, head: int, splits: Splits) -> str:
    token, used = splits.token(seq), splits.used(seq)
    own = {(token, head, split) for split in range(used)}
    heads, num_splits = splits.lse.shape[1:]
    extra = set(read) - own
    if own <= set(read) and not extra:
        return ""
    if own <= set(read) and extra == {(token, head, used)} and used + 1 < num_splits:
        return (
            f"{splits.contexts[seq]} keys at {splits.split} a split are {used} split{'s' if used > 1 else ''}, and you use one more, from `{tensor}`. Splits count from 0, so the last "
            "with keys has the number tl.cdiv(context_len, SPLIT) − 1: `<`, not `<=`."
        )
    if own <= set(read) and all(cell[:2] == (token, head) for cell in extra):
        return (
            f"Of {num_splits} splits, {used} {'has' if used == 1 else 'have'} keys: {splits.contexts[seq]} keys at {splits.split} a split. The others were never "
            f"written, and you use them, from `{tensor}`. Load only where `split < tl.cdiv(context_len, SPLIT)`, with `other={'-inf' if tensor == 'partial_lse' else '0.0'}`."
        )
    if own <= set(read) and heads * num_splits > 1 and len(extra) <= 2 * num_splits:
        return f"The tile has SPLITS = {_power(num_splits)} places, and a head {num_splits} splits. What lies behind them belongs to the next head: mask it."
    said = f"Of `{tensor}`, program ({head}, …) read {sorted(read)[:4]} as (token, head, split). "
    swapped = {_cell((token * num_splits + split) * heads + head, heads, num_splits) for split in range(used)}
    if set(read) < own:
        return said + f"{used} splits have keys, and all of them count: `split < tl.cdiv(context_len, SPLIT)`."
    if used > 1 and heads > 1 and swapped <= set(read):
        return (
            said
            + "Head and split are swapped. The splits of one head lie next to each other: (token × heads + head) × NUM_SPLITS + split."
        )
    if {cell[0] for cell in read} != {token}:
        return (
            said
            + f"The token of this sequence is {token}: with RAGGED `cu_seqlens_q[seq]`, else `seq`. Each token has heads × NUM_SPLITS entries, and `tl.num_programs(0)` heads."
        )
    return (
        said
        + "The line of a split is (token × heads + head) × NUM_SPLITS + split; a piece begins HEAD_DIM times that behind the first."
    )


def _cell(line: int, heads: int, num_splits: int) -> tuple[int, int, int]:
    return line // (heads * num_splits), line // num_splits % heads, line % num_splits


def _wrong_ideas(splits: Splits, token: int, head: int, used: int) -> Iterator[tuple[str, torch.Tensor]]:
    lse, pieces = splits.lse[token, head, :used].double(), splits.pieces[token, head, :used].double()
    num_splits = splits.lse.shape[2]
    weights = (lse - lse.max()).exp2()
    natural = (lse - lse.max()).exp()
    yield (
        "This is the plain mean of the splits. A split counts by its share of the whole sum of exponentials, exp2(lse).",
        pieces.mean(dim=0),
    )
    yield (
        "The log-sum-exps are in base 2, as everything in the decode kernel: `tl.exp2`, not `tl.exp`.",
        natural @ pieces / natural.sum(),
    )
    yield "The weighted sum is not divided by the sum of the weights.", weights @ pieces
    yield (
        "The weighted sum is not divided by the sum of the weights, and `tl.exp2` is wanted, not `tl.exp`.",
        natural @ pieces,
    )
    yield "You divided by the number of splits. Divide by the sum of the weights.", weights @ pieces / used
    yield "You took the log-sum-exps themselves for weights. The weight is exp2 of them.", lse @ pieces / lse.sum()
    yield "This is only the split that weighs most. The others have a share, too.", pieces[lse.argmax()]
    yield "This is the sum of the splits, without weights.", pieces.sum(dim=0)
    flipped = (lse.min() - lse).exp2()
    yield "The exponent is upside down: lse − largest lse.", flipped @ pieces / flipped.sum()
    top = max(lse.max().item(), 0.0)
    for reference in (lse.max().item(), top):  # the maximum taken over the used splits, and over all
        own, hidden = (lse - reference).exp2(), (_power(num_splits) - used) * 2.0 ** (0 - reference)
        yield (
            'Masked log-sum-exps count as 0 here, and exp2(0 − maximum) is a weight. Load them with `other=float("-inf")`: then their weight is 0.',
            own @ pieces / (own.sum() + hidden),
        )


def _check_extent(recording, program, splits: Splits, case: str) -> None:
    """The result is right; what was loaded must lie within what is this head's."""
    head, seq = program.ids
    token, used = splits.token(seq), splits.used(seq)
    for tensor in ("partial_lse", "partial_out"):
        read = {cell for cell in cells(recording, program, "load", tensor, 3)}
        foreign = sorted(read - {(token, head, split) for split in range(splits.lse.shape[2])})
        if foreign:
            what = f"program {program.ids} read (token, head, split) {foreign[0]} of `{tensor}`; it has token {token} and head {head}."
            raise Mistake(
                what,
                case=case,
                idea=f"The tile has SPLITS places, a head NUM_SPLITS splits, and {used} of them have keys. Mask what is too much.",
            )


def _check_place(recording, program, splits: Splits, case: str) -> None:
    (head, seq), stored = program.ids, cells(recording, program, "store", "out", 2)
    token = splits.token(seq)
    if stored == [(token, head)]:
        return
    shown = ", ".join(f"out[{i}, {h}]" for i, h in stored) or "nothing"
    what = f"program {program.ids} should store out[{token}, {head}]; yours stores {shown}."
    idea = "A head begins token × stride_out + head × stride_out_head behind the first number of `out`. Axis 0 of the grid counts heads, axis 1 sequences."
    heads, head_dim = splits.pieces.shape[1::2]
    begin = (seq * heads + head) * head_dim
    if touched(recording, program, "store", "out")[:1] == [begin] and recording.tensors["out"].strides[1] != head_dim:
        idea = "That would be right if the heads of `out` lay without gaps. They lie `stride_out_head` apart, and tokens `stride_out`."
    elif stored == [(head, seq)]:
        idea = "Axis 0 of the grid counts query heads, axis 1 sequences. You have them the other way round."
    elif splits.bounds and stored == [(seq, head)]:
        idea = "In a row with prefills, sequence i is not in line i. With RAGGED its token is `tl.load(cu_seqlens_q + seq)`."
    elif not stored:
        idea = "This program returned early, or its mask is False everywhere. Sequences with one new token are yours."
    elif len(stored) > 1:
        idea = "That is more than one head. A head has HEAD_DIM numbers; the tile has DIM, a power of two. Give `tl.store` the mask `dim < HEAD_DIM`, and use both strides of `out`."
    raise Mistake(what, case=case, idea=idea)


def _wild(error, splits: Splits) -> str:
    heads = splits.lse.shape[1]
    if error.tensor in ("partial_lse", "partial_out"):
        return (
            f"A line of `partial_lse` is (token × heads + head) × NUM_SPLITS + split, with {heads} head{'s' if heads > 1 else ''} here. The tile has SPLITS places, a power of two: "
            "mask those that are too much. A piece of `partial_out` begins HEAD_DIM times its line."
        )
    if error.tensor in ("context_lens", "cu_seqlens_q"):
        return "Axis 0 of the grid counts query heads, axis 1 sequences: `tl.program_id(1)` is the sequence. `cu_seqlens_q` has one entry more than there are sequences."
    return "A head begins token × stride_out + head × stride_out_head behind the first number of `out`, and has HEAD_DIM numbers; DIM may be more."


def _make(contexts, lse, head_dim=2, gap=0, bounds=None, split=4, seed=0, pieces=None) -> tuple[Splits, int]:
    """`lse`: [T][heads][splits], with any number where a split has no keys. `gap`: unused numbers behind each head of `out`."""
    lse = torch.tensor(lse)
    # Whole numbers, so that small cases can be computed by hand.
    whole = torch.randint(-20, 21, (*lse.shape, head_dim), generator=torch.Generator().manual_seed(seed)).float()
    pieces = whole if pieces is None else torch.tensor(pieces)
    made = Splits(lse, pieces, contexts, split, bounds)
    is_used = torch.zeros(lse.shape, dtype=torch.bool)
    for seq in range(len(contexts)):
        if made.is_decode(seq):
            is_used[made.token(seq), :, : made.used(seq)] = True
    made.lse[~is_used] = float("nan")
    made.pieces[~is_used] = float("nan")
    return made, gap


def _random(rng: Random, seed: int) -> tuple[Splits, int]:
    count, heads, split = rng.randint(1, 4), rng.randint(1, 5), rng.choice((2, 5))
    new = [rng.choice((1, 1, 3)) for _ in range(count)]
    is_ragged = seed % 2 == 1
    contexts = [rng.choice((1, split, split + 1, 5 * split)) for _ in range(count)]
    tokens = sum(new) if is_ragged else count
    bounds = [sum(new[:i]) for i in range(count + 1)] if is_ragged else None
    num_splits = rng.randint(-(-max(contexts) // split), 7)
    lse = 20 * torch.randn(tokens, heads, num_splits, generator=torch.Generator().manual_seed(seed))
    return _make(contexts, lse.tolist(), rng.choice((2, 5, 8)), rng.choice((0, 3)), bounds, split, seed)
