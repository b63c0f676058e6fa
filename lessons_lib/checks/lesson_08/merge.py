"""Judges 08.3, `merge_kernel`: the splits of each query head, merged by their log-sum-exps."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import cells, close, compiled_too, refuse_wrong_tensors, run, touched, values_text

UNTOUCHED = -7.0


@dataclass
class Splits:
    """What the decode kernel wrote for a packed batch.

    Attributes:
        lse: [T, heads, NUM_SPLITS], NaN for splits without keys.
        outputs: [T, heads, NUM_SPLITS, HEAD_DIM], NaN for splits without keys.
        contexts: keys of each sequence.
        split_size: keys per split.
        bounds: where each sequence starts in the packed batch; None if every sequence has one token.
    """

    lse: torch.Tensor
    outputs: torch.Tensor
    contexts: list[int]
    split_size: int
    bounds: list[int] | None = None

    def used(self, seq: int) -> int:
        return -(-self.contexts[seq] // self.split_size)

    def token(self, seq: int) -> int:
        return self.bounds[seq] if self.bounds else seq

    def is_decode(self, seq: int) -> bool:
        return self.bounds is None or self.bounds[seq + 1] - self.bounds[seq] == 1


def check_merge_kernel(attempt) -> None:
    compiled_too(lambda: _check_results(attempt), attempt, _launch(False), _launch(True))


def _launch(is_ragged: bool) -> tuple[tuple, dict]:
    outputs, lse, lens = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3), torch.ones(2, dtype=torch.int32)
    out = torch.zeros(2, 2, 4, dtype=torch.bfloat16)
    return (outputs, lse, lens, lens, out, *out.stride()[:2]), dict(
        HEAD_DIM=4, BLOCK_D=4, SPLIT_SIZE=4, NUM_SPLITS=3, BLOCK_SPLITS=4, RAGGED=is_ragged
    )


def _check_results(attempt) -> None:
    _check_case(attempt, _make([8], [[[0.0, 1.0]]], outputs=[[[[2.0, 4.0], [8.0, 1.0]]]]))
    _check_case(attempt, _make([8], [[[2.0, -1.0]]], head_dim=4))
    _check_case(attempt, _make([4], [[[1.0, 0.0, 2.0]]]))
    _check_case(attempt, _make([12], [[[1.0, 0.0, 2.0]]]))
    _check_case(attempt, _make([12], [[[1.0, 0.0, 2.0], [-2.0, 3.0, 1.0]]]))
    _check_case(attempt, _make([12, 11], [[[1.0, 0.0, 2.0]], [[0.0, 4.0, 1.0]]]))
    _check_case(attempt, _make([12, 5], [[[1.0, 0.0, 2.0], [2.0, 2.0, 0.0]], [[0.0, 1.0, 0.0], [3.0, 1.0, 0.0]]]))
    _check_case(attempt, _make([12, 4], [[[1.0, 0.0, 2.0]], [[3.0, 0.0, 0.0]]]))
    _check_case(attempt, _make([8], [[[300.0, 299.0]]]))
    _check_case(attempt, _make([8], [[[-300.0, -301.0]]]))
    _check_case(attempt, _make([8], [[[-300.0, -301.0, 0.0]]]))
    _check_case(attempt, _make([8, 8], [[[1.0, 0.0], [0.0, 3.0]], [[1.0, 2.0], [4.0, 2.0]]], head_dim=3, gap=2))
    _check_case(attempt, _make([8, 8], [[[1.0, 0.0]]] * 4, bounds=[0, 3, 4]))
    _check_case(attempt, _make([8, 8], [[[1.0, 0.0]]], bounds=[0, 0, 1]))
    rng = Random(8)
    for seed in range(4):
        _check_case(attempt, _random(rng, seed))


def _check_case(attempt, made: tuple[Splits, int]) -> None:
    splits, gap = made
    got, recording, case = _merge(attempt, splits, gap)
    decodes = [program for program in recording.programs if splits.is_decode(program.ids[1])]
    for program in decodes:
        _check_offsets(recording, program, splits, case)
    for program in recording.programs:
        seq = program.ids[1]
        if not splits.is_decode(seq) and cells(recording, program, "store", "out", 2):
            what = (
                f"program {program.ids} should store nothing: sequence {seq} has "
                f"{splits.bounds[seq + 1] - splits.bounds[seq]} new tokens."
            )
            idea = (
                "With RAGGED, the batch has prefills too, and another kernel handles those. Return if "
                "`cu_seqlens_q[seq + 1] - cu_seqlens_q[seq]` isn't 1."
            )
            if splits.bounds[seq + 1] == splits.bounds[seq]:
                idea = (
                    "A sequence without new tokens has nothing to store: its token would be the next sequence's. "
                    "Return unless there is exactly one, `!= 1` rather than `> 1`."
                )
            raise Mistake(what, case=case, idea=idea)
    for program in decodes:
        _check_result(attempt, recording, program, splits, got, case)
        _check_extent(recording, program, splits, case)


def _merge(attempt, splits: Splits, gap: int):
    tokens, heads, num_splits, head_dim = splits.outputs.shape
    pool = torch.full((tokens, heads, head_dim + gap), UNTOUCHED)
    out = pool[..., :head_dim]
    contexts = torch.tensor(splits.contexts, dtype=torch.int32)
    is_ragged = splits.bounds is not None
    starts = torch.tensor(splits.bounds, dtype=torch.int32) if is_ragged else contexts
    lse = [[[round(x, 2) for x in head] for head in token] for token in splits.lse.tolist()]
    shown = f"log-sum-exps {lse}" if splits.lse.numel() <= 16 else f"log-sum-exps of shape {list(splits.lse.shape)}"
    shown += (
        f", attentions {[[float(f'{x:g}') for x in output] for output in splits.outputs.flatten(0, 2).tolist()]}"
        if splits.outputs.numel() <= 16
        else ""
    )
    more = f", cu_seqlens_q {splits.bounds}" if is_ragged else ""
    case = (
        f"contexts {splits.contexts}, SPLIT_SIZE = {splits.split_size}, NUM_SPLITS = {num_splits}{more}; {heads} "
        f"head{'s' if heads > 1 else ''} of size {head_dim}; {shown}. Splits without keys hold NaN."
    )
    recording = run(
        attempt, (heads, len(splits.contexts)), splits.outputs, splits.lse, contexts, starts, out, *out.stride()[:2],
        HEAD_DIM=head_dim, BLOCK_D=_power(head_dim), SPLIT_SIZE=splits.split_size, NUM_SPLITS=num_splits,
        BLOCK_SPLITS=_power(num_splits), RAGGED=is_ragged,
        case=case, explain=lambda error: _out_of_bounds(error, splits),
    )  # fmt: skip
    refuse_wrong_tensors(recording, "out", case)
    return out.clone(), recording, case


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _check_result(attempt, recording, program, splits: Splits, got: torch.Tensor, case: str) -> None:
    head, seq = program.ids
    token, used = splits.token(seq), splits.used(seq)
    found, want = got[token, head], _merged(splits.lse[token, head, :used], splits.outputs[token, head, :used])
    if close(found, want):
        return
    what = f"out[{token}, {head}] should be {values_text(want)}; yours is {values_text(found)}."
    for tensor in ("partial_lse", "partial_out"):
        read = cells(recording, program, "load", tensor, 3)
        if idea := _why_read(read, tensor, seq, head, splits):
            raise Mistake(what, case=case, idea=idea)
    is_extreme = bool(splits.lse[token, head, :used].abs().max() > 100)  # and smaller log-sum-exps were merged right
    for idea, formed in _wrong_ideas(splits, token, head, used):
        if not is_extreme and close(found, formed) and not close(formed, want):
            is_best = idea == LINEAR and _is_best_only(attempt)
            raise Mistake(what, case=case, idea=BEST if is_best else idea)
    idea = (
        "weight of a split = exp2(its log-sum-exp − the largest one); result = sum of weight × attention, divided by "
        "the sum of the weights."
    )
    if not bool(found.isfinite().all()):
        idea = (
            "NaN or infinity comes from infinity / infinity, from 0 / 0, from infinity − infinity, or from masked "
            "elements: give masked loads an `other`."
        )
    if is_extreme:
        idea = (
            "exp2(300) overflows float32, and exp2(−300) is 0. Subtract the largest log-sum-exp first: then one "
            "weight is 1, and none is larger. Cutting the exponents off would change the weights."
        )
        if splits.lse.isnan().any():
            idea = (
                "exp2(−300) is 0. Subtract the largest log-sum-exp of the splits that have keys: with all splits full, "
                "an earlier case was right. A split without keys must not take part in the maximum, not even as 0."
            )
    raise Mistake(what, case=case, idea=idea)


LINEAR = "You used the log-sum-exps themselves as weights. The weight is exp2 of them."
BEST = "This is only the split with the largest log-sum-exp. The others count too: a split's weight is exp2 of its own."


def _is_best_only(attempt) -> bool:
    """Whether only the split with the largest log-sum-exp counts, where it isn't the only one that isn't 0."""
    splits, gap = _make([8], [[[3.0, 1.0]]])
    try:
        got = _merge(attempt, splits, gap)[0]
    except Exception:  # noqa: BLE001 - it fails in another way there
        return False
    return close(got[0, 0], splits.outputs[0, 0, 0])


def _merged(lse: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    weights = (lse.double() - lse.double().max()).exp2()
    return weights @ outputs.double() / weights.sum()


def _why_read(read, tensor: str, seq: int, head: int, splits: Splits) -> str:
    token, used = splits.token(seq), splits.used(seq)
    own = {(token, head, split) for split in range(used)}
    heads, num_splits = splits.lse.shape[1:]
    extra = set(read) - own
    if own <= set(read) and not extra:
        return ""
    if own <= set(read) and extra == {(token, head, used)} and used + 1 < num_splits:
        return (
            f"{splits.contexts[seq]} keys with {splits.split_size} per split fill {used} "
            f"split{'s' if used > 1 else ''}, and you load one more from `{tensor}`. Splits count from 0, so the "
            "last one with keys is tl.cdiv(context_len, SPLIT_SIZE) − 1: `<`, not `<=`."
        )
    if own <= set(read) and all(cell[:2] == (token, head) for cell in extra):
        return (
            f"Of {num_splits} splits, {used} {'has' if used == 1 else 'have'} keys: {splits.contexts[seq]} keys, "
            f"{splits.split_size} per split. The others were never written, but you load them from `{tensor}`. "
            "Load only where `split < tl.cdiv(context_len, SPLIT_SIZE)`, with "
            f"`other={'-inf' if tensor == 'partial_lse' else '0.0'}`."
        )
    if own <= set(read) and heads * num_splits > 1 and len(extra) <= 2 * num_splits:
        return (
            f"The tile has BLOCK_SPLITS = {_power(num_splits)} elements, but a head has only {num_splits} splits. The "
            "rest belong to the next head: mask them."
        )
    prefix = f"From `{tensor}`, a program of head {head} read {sorted(read)[:4]} as (token, head, split). "
    swapped = {_cell((token * num_splits + split) * heads + head, heads, num_splits) for split in range(used)}
    if set(read) < own:
        return prefix + f"{used} splits have keys, and all of them count: `split < tl.cdiv(context_len, SPLIT_SIZE)`."
    if used > 1 and heads > 1 and swapped <= set(read):
        return (
            prefix
            + "Head and split are swapped. The splits of one head are next to each other: (token × heads + head) × "
            "NUM_SPLITS + split."
        )
    if {cell[0] for cell in read} != {token}:
        return (
            prefix
            + f"The token of this sequence is {token}: with RAGGED `cu_seqlens_q[seq]`, else `seq`. Each token has "
            "heads × NUM_SPLITS entries, and there are `tl.num_programs(0)` heads."
        )
    return (
        prefix
        + "The index of a split is (token × heads + head) × NUM_SPLITS + split; its attention starts at HEAD_DIM times "
        "that."
    )


def _cell(index: int, heads: int, num_splits: int) -> tuple[int, int, int]:
    return index // (heads * num_splits), index // num_splits % heads, index % num_splits


def _wrong_ideas(splits: Splits, token: int, head: int, used: int) -> Iterator[tuple[str, torch.Tensor]]:
    lse, outputs = splits.lse[token, head, :used].double(), splits.outputs[token, head, :used].double()
    num_splits = splits.lse.shape[2]
    weights = (lse - lse.max()).exp2()
    natural = (lse - lse.max()).exp()
    yield (
        "This is the plain mean of the splits. A split's weight is its share of the total sum of exponentials, "
        "exp2(lse).",
        outputs.mean(dim=0),
    )
    yield (
        "The log-sum-exps are in base 2, like everything in the decode kernel: `tl.exp2`, not `tl.exp`.",
        natural @ outputs / natural.sum(),
    )
    yield "The weighted sum isn't divided by the sum of the weights.", weights @ outputs
    yield (
        "The weighted sum isn't divided by the sum of the weights, and you need `tl.exp2`, not `tl.exp`.",
        natural @ outputs,
    )
    yield "You divided by the number of splits. Divide by the sum of the weights.", weights @ outputs / used
    yield LINEAR, lse @ outputs / lse.sum()
    yield BEST, outputs[lse.argmax()]
    yield (
        "The attentions aren't multiplied by their weights before you add them. Each is divided by its own sum "
        "already: multiply it by its weight, add, and divide by the sum of the weights.",
        outputs.sum(dim=0) / weights.sum(),
    )
    yield "This is the unweighted sum of the splits.", outputs.sum(dim=0)
    flipped = (lse.min() - lse).exp2()
    yield "The exponent has the wrong sign: lse − largest lse.", flipped @ outputs / flipped.sum()
    top = max(lse.max().item(), 0.0)
    for reference in (lse.max().item(), top):  # the maximum taken over the used splits, and over all
        own, hidden = (lse - reference).exp2(), (_power(num_splits) - used) * 2.0 ** (0 - reference)
        yield (
            "Masked log-sum-exps count as 0 here, and exp2(0 − maximum) is a weight. Load them with "
            '`other=float("-inf")`: then their weight is 0.',
            own @ outputs / (own.sum() + hidden),
        )


def _check_extent(recording, program, splits: Splits, case: str) -> None:
    """The result is right; the loads must also stay within this head's splits, and within those with keys."""
    head, seq = program.ids
    token, used = splits.token(seq), splits.used(seq)
    for tensor in ("partial_lse", "partial_out"):
        read = set(cells(recording, program, "load", tensor, 3))
        extra = sorted(read - {(token, head, split) for split in range(used)})
        if extra and extra[0][:2] == (token, head):
            what = (
                f"the result is right, but program {program.ids} loads split {extra[0][2]} from `{tensor}`, which has "
                "no keys and was never written."
            )
            raise Mistake(what, case=case, idea=_why_read(read, tensor, seq, head, splits))
        if extra:
            what = (
                f"program {program.ids} read (token, head, split) {extra[0]} of `{tensor}`; its own token is {token}, "
                f"its head {head}."
            )
            raise Mistake(
                what,
                case=case,
                idea=f"The tile has BLOCK_SPLITS elements, but a head has only NUM_SPLITS splits, of which {used} "
                f"{'has' if used == 1 else 'have'} keys. Mask the rest.",
            )


def _check_offsets(recording, program, splits: Splits, case: str) -> None:
    (head, seq), stored = program.ids, cells(recording, program, "store", "out", 2)
    token = splits.token(seq)
    if stored == [(token, head)]:
        return
    shown = ", ".join(f"out[{i}, {h}]" for i, h in stored) or "nothing"
    what = f"program {program.ids} should store out[{token}, {head}]; yours stores {shown}."
    idea = (
        "A head starts at token × stride_out + head × stride_out_head in `out`. Axis 0 of the grid counts heads, axis "
        "1 sequences."
    )
    heads, head_dim = splits.outputs.shape[1::2]
    start = (seq * heads + head) * head_dim
    if touched(recording, program, "store", "out")[:1] == [start] and recording.tensors["out"].strides[1] != head_dim:
        idea = (
            "That would be right if there were no gaps between the heads of `out`. They are `stride_out_head` apart, "
            "and tokens `stride_out`."
        )
    elif stored == [(head, seq)]:
        idea = "Axis 0 of the grid counts query heads, axis 1 sequences. You swapped them."
    elif splits.bounds and stored == [(seq, head)]:
        idea = (
            "In a batch with prefills, sequence i isn't token i. With RAGGED its token is "
            "`tl.load(cu_seqlens_q + seq)`."
        )
    elif not stored:
        idea = (
            "This program returned early, or its mask is False everywhere. Sequences with one new token belong to this "
            "kernel."
        )
    elif len(stored) > 1:
        idea = (
            "That's more than one head. A head has HEAD_DIM elements; the tile has BLOCK_D, a power of two. Give "
            "`tl.store` the mask `dim < HEAD_DIM`, and use both strides of `out`."
        )
    raise Mistake(what, case=case, idea=idea)


def _out_of_bounds(error, splits: Splits) -> str:
    if error.tensor == "partial_lse":
        return _lse_out_of_bounds(error, splits)
    if error.tensor == "partial_out":
        return _outputs_out_of_bounds(splits)
    if error.tensor == "context_lens" and splits.bounds and error.number == splits.token(error.ids[1]):
        return (
            f"`context_lens` has one entry per sequence, not per token: `tl.load(context_lens + seq)`. Sequence "
            f"{error.ids[1]} is token {error.number} of the batch."
        )
    if error.tensor == "cu_seqlens_q" and splits.bounds is None:
        return "Without RAGGED, sequence i is token i, and `cu_seqlens_q` may be anything: don't load it."
    if error.tensor in ("context_lens", "cu_seqlens_q"):
        return (
            "Axis 0 of the grid counts query heads, axis 1 sequences: `tl.program_id(1)` is the sequence. "
            "`cu_seqlens_q` has one more entry than there are sequences."
        )
    return (
        "A head starts at token × stride_out + head × stride_out_head in `out`, and has HEAD_DIM elements; BLOCK_D may "
        "be more."
    )


def _lse_out_of_bounds(error, splits: Splits) -> str:
    (head, seq), (tokens, heads, num_splits) = error.ids, splits.lse.shape
    entry = splits.token(seq) * heads + head
    block, token = _power(num_splits), error.number // (heads * num_splits)
    index = "The index of a split is (token × heads + head) × NUM_SPLITS + split"
    if splits.bounds is None and token >= tokens and token == splits.contexts[seq]:
        return (
            f"You read token {token}; sequence {seq} is token {seq} here. Without RAGGED, sequence i is token i, and "
            "`cu_seqlens_q` may be anything: don't load it."
        )
    if splits.bounds and token != splits.token(seq) and token == splits.bounds[seq + 1]:
        return (
            f"You read token {token}; sequence {seq} is token {splits.token(seq)}. `cu_seqlens_q[seq]` is where it "
            "starts; entry seq + 1 is where it ends, and the next one starts."
        )
    if not entry:
        return (
            f"The tile has BLOCK_SPLITS elements, a power of two, here {block}: mask those past the splits that have "
            f"keys. {index}."
        )
    by_sequences = (splits.token(seq) * len(splits.contexts) + head) * num_splits
    if len(splits.contexts) != heads and by_sequences <= error.number < by_sequences + num_splits:
        return (
            f"{index}, and there are `tl.num_programs(0)` heads, {heads} here. Do you multiply by the number of "
            "sequences, `tl.num_programs(1)`?"
        )
    if block != num_splits and entry * block <= error.number < (entry + 1) * block:
        return (
            f"{index}. Do you multiply by BLOCK_SPLITS = {block}? A head has room for NUM_SPLITS = {num_splits}; "
            "BLOCK_SPLITS is only the length of the tile, and what is past the splits with keys is masked."
        )
    return f"{index}, with {heads} head{'s' if heads > 1 else ''} here. Load only the splits that have keys."


def _outputs_out_of_bounds(splits: Splits) -> str:
    num_splits, head_dim = splits.outputs.shape[2:]
    start = "In `partial_out`, a split's attention starts at HEAD_DIM times its index"
    if _power(head_dim) != head_dim:
        return (
            f"{start}, and has HEAD_DIM = {head_dim} elements; BLOCK_D = {_power(head_dim)} is only the length of the "
            "tile. Do you multiply by BLOCK_D, or load without the mask `dim < HEAD_DIM`?"
        )
    return (
        f"{start}. The tile has BLOCK_SPLITS = {_power(num_splits)} rows: load only those of splits that have keys, "
        "with the mask as a column, `[:, None]`."
    )


def _make(contexts, lse, head_dim=2, gap=0, bounds=None, split_size=4, seed=0, outputs=None) -> tuple[Splits, int]:
    """`lse`: [T][heads][splits], with any value where a split has no keys.

    `gap`: unused elements after each head of `out`.
    """
    lse = torch.tensor(lse)
    # Integers, so that small cases can be computed by hand.
    whole = torch.randint(-20, 21, (*lse.shape, head_dim), generator=torch.Generator().manual_seed(seed)).float()
    outputs = whole if outputs is None else torch.tensor(outputs)
    made = Splits(lse, outputs, contexts, split_size, bounds)
    is_used = torch.zeros(lse.shape, dtype=torch.bool)
    for seq in range(len(contexts)):
        if made.is_decode(seq):
            is_used[made.token(seq), :, : made.used(seq)] = True
    made.lse[~is_used] = float("nan")
    made.outputs[~is_used] = float("nan")
    return made, gap


def _random(rng: Random, seed: int) -> tuple[Splits, int]:
    count, heads, split_size = rng.randint(1, 4), rng.randint(1, 5), rng.choice((2, 5))
    new = [rng.choice((1, 1, 3)) for _ in range(count)]
    is_ragged = seed % 2 == 1
    contexts = [rng.choice((1, split_size, split_size + 1, 5 * split_size)) for _ in range(count)]
    tokens = sum(new) if is_ragged else count
    bounds = [sum(new[:i]) for i in range(count + 1)] if is_ragged else None
    num_splits = rng.randint(-(-max(contexts) // split_size), 7)
    lse = 20 * torch.randn(tokens, heads, num_splits, generator=torch.Generator().manual_seed(seed))
    return _make(contexts, lse.tolist(), rng.choice((2, 5, 8)), rng.choice((0, 3)), bounds, split_size, seed)
