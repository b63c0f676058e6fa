"""Judges 08.2, `decode_groups_kernel`: dense attention on ragged cases, and every key and value loaded once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    LIMIT_32,
    cells,
    close,
    compiled_too,
    ranges,
    refuse_undecorated,
    refuse_wrong_tensors,
    run,
    touched,
    values_text,
)
from lessons_lib.kernels.ablations import with_functions
from lessons_lib.kernels.compile_check import rounded_products
from lessons_lib.kernels.paged_flash import LOG2_E, online_softmax

NOWHERE = -(10**6)  # the block table's entries past the blocks in use
SCALE = 0.4
PADDED = (
    "Positions past the last token have a score of 0, and a weight. Their score must be minus infinity: "
    '`tl.where(is_key[None, :], scores, float("-inf"))`.'
)
# Memory layouts of the caches.
PLAIN = "[num_blocks, block_size, Hkv, D]"
INTERLEAVED = "views of one tensor [num_blocks, 2, block_size, Hkv, D], in which blocks of keys and of values alternate"
HEADS_FIRST = "views of [num_blocks, Hkv, block_size, D]"


@dataclass
class Decodes:
    """One call.

    Attributes:
        q, out: [N, Hq, D]; k_cache, v_cache: [num_blocks, block_size, Hkv, D]; NaN in slots without a token.
        tables: of each sequence, its blocks and nothing past them.
        tile: keys per iteration.
        text: the case, for messages.
    """

    q: torch.Tensor
    out: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    contexts: list[int]
    tables: list[list[int]]
    tile: int
    text: str
    tolerance: float

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k_cache.shape[2]

    def heads(self, kv_head: int) -> list[int]:
        return list(range(kv_head * self.group, (kv_head + 1) * self.group))

    def own_cells(self, seq: int, kv_head: int) -> list[tuple[int, int, int]]:
        """(block, slot, KV head) of every token, in order."""
        size = self.k_cache.shape[1]
        return [(self.tables[seq][p // size], p % size, kv_head) for p in range(self.contexts[seq])]

    def elements(self, seq: int, kv_head: int) -> list[int]:
        """Offsets of the group's elements in q and out."""
        stride_seq, stride_head, _ = self.q.stride()
        starts = [seq * stride_seq + head * stride_head for head in self.heads(kv_head)]
        return [start + dim for start in starts for dim in range(self.q.shape[2])]

    def parts(self, seq: int, kv_head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries of the group, its keys and values, in float64."""
        places = self.own_cells(seq, kv_head)
        keys, values = (torch.stack([cache[p] for p in places]).double() for cache in (self.k_cache, self.v_cache))
        return self.q[seq, self.heads(kv_head)].double(), keys, values

    def want(self, seq: int, kv_head: int) -> torch.Tensor:
        queries, keys, values = self.parts(seq, kv_head)
        return (queries @ keys.T * SCALE).softmax(dim=1) @ values


def check_decode_groups_kernel(attempt) -> None:
    refuse_undecorated(attempt)
    if "online_softmax" in attempt.fn.__globals__:  # 08.1 is judged by itself
        attempt = with_functions(attempt, online_softmax=online_softmax)
    compiled_too(lambda: _check_results(attempt), attempt, _launch(torch.float32), _launch(torch.float16))
    _check_precision(attempt)


def _check_precision(attempt) -> None:
    """The interpreter multiplies float32 exactly; a GPU rounds the factors, unless told not to."""
    arguments, constants = _launch(torch.float32)
    if rounded := rounded_products(attempt, *arguments, **constants):
        what = (
            f"right in the interpreter, but on a GPU {rounded} `tl.dot` of float32 tiles "
            f"round{'s' if rounded == 1 else ''} the factors to 10 bits."
        )
        idea = 'Give every `tl.dot` `input_precision="ieee"`, that of the scores and that of the output.'
        raise Mistake(what, case="compiled for an NVIDIA GPU, which need not be there; float32.", idea=idea)


def _launch(dtype) -> tuple[tuple, dict]:
    q, cache = torch.zeros(2, 6, 16, dtype=dtype), torch.zeros(4, 8, 2, 16, dtype=dtype)
    tables, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    arguments = (q, cache, cache, tables, lens, q, SCALE, *q.stride()[:2], *cache.stride()[:3], tables.stride(0))
    return arguments, dict(GROUP=3, BLOCK_M=16, HEAD_DIM=16, BLOCK_SIZE=8, BLOCK_N=16)


def _check_results(attempt) -> None:
    half = torch.float16
    for made in (
        _make([1], 1, 1),
        _make([1], 2, 1),
        _make([1], 4, 2),
        _make([15], 2, 1),
        _make([16], 2, 1, block_size=8),
        _make([17], 2, 1, block_size=8, seed=3),
        _make([40], 1, 1, block_size=32),
        _make([4, 3], 2, 1, block_size=8),
        _make([3, 18], 2, 1, block_size=8),
        _make([18, 3], 2, 2, block_size=4, layout=INTERLEAVED),
        _make([5, 1], 6, 2, block_size=4, layout=HEADS_FIRST),
        _make([2, 3], 3, 1, q_gap=2),
        _make([33, 31, 32], 4, 1, block_size=16, tile=32, head_dim=64, dtype=half),
        _make([50], 2, 2, block_size=12, head_dim=32, dtype=half),
        _make([20], 7, 1, block_size=4, tile=64, head_dim=16),
    ):
        _check_case(attempt, made)
    _check_case(attempt, _far_below_zero())
    _check_large_pool(attempt)


def _make(
    contexts, q_heads, kv_heads, block_size=16, tile=16, head_dim=32, layout=PLAIN, q_gap=0, dtype=torch.float32, seed=1
) -> Decodes:
    """`q_gap`: unused elements after each query head, as if q and out were views of larger tensors."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    counts = [-(-context // block_size) for context in contexts]
    order = rng.sample(range(1, sum(counts) + 2), sum(counts))  # block 0 stays free
    tables = [[order.pop() for _ in range(count)] for count in counts]
    k_cache, v_cache = (_cache(sum(counts) + 2, block_size, kv_heads, head_dim, layout, dtype) for _ in range(2))
    for table, context in zip(tables, contexts):
        for token in range(context):
            for cache in (k_cache, v_cache):
                vectors = 2 * torch.randn(kv_heads, head_dim, generator=generator)
                cache[table[token // block_size], token % block_size] = vectors.to(dtype)
    q, out = (torch.full((len(contexts), q_heads, head_dim + q_gap), -7.0, dtype=dtype)[..., :head_dim] for _ in "qo")
    q.copy_(torch.randn(len(contexts), q_heads, head_dim, generator=generator))
    group = q_heads // kv_heads
    text = (
        f"{q_heads} query head{'s' * (q_heads > 1)} over {kv_heads} KV head{'s' * (kv_heads > 1)} (GROUP = {group}, "
        f"BLOCK_M = 16); context{'s' * (len(contexts) > 1)} {contexts}, block tables {tables}, BLOCK_SIZE = "
        f"{block_size}, BLOCK_N = {tile}, HEAD_DIM = {head_dim}"
    )
    text += f"; stride_q_head = {q.stride(1)}" if q_gap else ""
    text += f"; the caches are {layout}" if layout != PLAIN else ""
    text += "; float16." if dtype == torch.float16 else "."
    return Decodes(q, out, k_cache, v_cache, contexts, tables, tile, text, 5e-3 if dtype == torch.float16 else 1e-4)


def _far_below_zero() -> Decodes:
    """Scores near −100,000: a masked score of −10,000 would be larger than all of them."""
    made = _make([2], 1, 1)
    made.q.fill_(100.0)
    for token in range(2):
        made.k_cache[made.tables[0][0], token] = -80.0 - token / 1024
    made.text += " Scores near −100,000."
    made.tolerance = 3e-2
    return made


def _cache(num_blocks: int, block_size: int, kv_heads: int, head_dim: int, layout: str, dtype) -> torch.Tensor:
    if layout == INTERLEAVED:
        return torch.full((num_blocks, 2, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)[:, 0]
    if layout == HEADS_FIRST:
        return torch.full((num_blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype).transpose(1, 2)
    return torch.full((num_blocks, block_size, kv_heads, head_dim), float("nan"), dtype=dtype)


def _run(attempt, made: Decodes):
    width = max(map(len, made.tables)) + 1
    tables = torch.tensor([table + [NOWHERE] * (width - len(table)) for table in made.tables], dtype=torch.int32)
    lens = torch.tensor(made.contexts, dtype=torch.int32)
    try:
        return run(
            attempt, (made.k_cache.shape[2], len(made.contexts)), made.q, made.k_cache, made.v_cache, tables, lens,
            made.out, SCALE * LOG2_E.value, *made.q.stride()[:2], *made.k_cache.stride()[:3], tables.stride(0),
            GROUP=made.group, BLOCK_M=16, HEAD_DIM=made.q.shape[2], BLOCK_SIZE=made.k_cache.shape[1], BLOCK_N=made.tile,
            case=made.text, explain=lambda error: _out_of_bounds(error, made),
        )  # fmt: skip
    except AssertionError as error:
        if idea := _why_dot(str(error)):
            what = f"Triton refuses your code: {type(error).__name__}: {str(error)[:160]}"
            raise Mistake(what, case=made.text, idea=idea) from None
        raise


def _why_dot(message: str) -> str:
    if "same dtype" in message:
        return (
            "Both factors of `tl.dot` need the same dtype. The weights are float32; convert them to the dtype of the "
            "values: `weights.to(values.dtype)`."
        )
    if "shape" in message or "dimensions" in message:
        return (
            "`tl.dot` multiplies [rows, inner] by [inner, columns]. Scores: queries [BLOCK_M, HEAD_DIM] × keys "
            "[HEAD_DIM, BLOCK_N]; output: weights [BLOCK_M, BLOCK_N] × values [BLOCK_N, HEAD_DIM]. `tl.trans` swaps "
            "the axes of a tile."
        )
    return ""


def _check_case(attempt, made: Decodes) -> None:
    recording = _run(attempt, made)
    refuse_wrong_tensors(recording, "out", made.text)
    for program in recording.programs:
        _check_stores(recording, program, made)
    for program in recording.programs:
        _check_result(attempt, recording, program, made)
    for program in recording.programs:
        _check_loads(recording, program, made)


def _out_of_bounds(error, made: Decodes) -> str:
    kv_head, seq = error.ids
    if error.tensor == "block_tables":
        return (
            "Row i of block_tables starts at i × stride_table. Position p is in its entry p // BLOCK_SIZE; a tile may "
            "reach past the last token, so this load needs a mask too."
        )
    if error.tensor == "context_lens":
        return "context_lens has one entry per sequence. Axis 0 of the grid counts KV heads, axis 1 sequences."
    if error.tensor in ("q", "out"):
        return (
            f"Axis 0 of the grid counts KV heads, axis 1 sequences. Program ({kv_head}, {seq}) has the query heads "
            f"KV head × GROUP + row. The tile has BLOCK_M rows, and only GROUP = {made.group} of them are "
            "heads: mask the rest."
        )
    if error.number < 0 or error.number > abs(NOWHERE) // 2:
        return (
            "That comes from an entry of the block table that is not in use. Look up blocks only for positions below "
            "the context length, with `other=0`; and each sequence has its own row and length."
        )
    return (
        "A key is at block × stride_block + slot × stride_slot + KV head × stride_head. The slot of position p is "
        "p % BLOCK_SIZE: a tile of BLOCK_N positions may be longer or shorter than a block."
    )


def _check_stores(recording, program, made: Decodes) -> None:
    kv_head, seq = program.ids
    stored, want = cells(recording, program, "store", "out", 2), [(seq, head) for head in made.heads(kv_head)]
    if touched(recording, program, "store", "out") == made.elements(seq, kv_head):
        return
    text = ", ".join(f"out[{i}, {head}]" for i, head in stored[:6]) + (", …" if len(stored) > 6 else "")
    shown = ", ".join(f"out[{i}, {head}]" for i, head in want)
    what = f"program ({kv_head}, {seq}) should store {shown}; yours stores {text or 'nothing'}."
    if set(stored) == set(want):
        found = touched(recording, program, "store", "out")
        own = len(set(made.elements(seq, kv_head)) & set(found))
        what = (
            f"program ({kv_head}, {seq}) should store all {len(made.elements(seq, kv_head))} elements of {shown}, and "
            f"nothing else; yours stores {own} of them, and {len(found) - own} others."
        )
    raise Mistake(what, case=made.text, idea=_why_stored(recording, kv_head, seq, stored, want, made))


def _why_stored(recording, kv_head: int, seq: int, stored, want, made: Decodes) -> str:
    group, kv_heads = made.group, made.k_cache.shape[2]
    heads = [head for _, head in stored]
    if set(stored) == set(want):
        return (
            "Store whole heads of HEAD_DIM elements, `stride_q_head` apart: q and out may be views of larger tensors, "
            "with gaps between the heads."
        )
    if not stored:
        return "This program returned early, or its mask is False everywhere. The rows below GROUP are heads."
    if kv_head != seq and set(stored) == {(kv_head, head) for head in made.heads(seq)}:
        return "KV head and sequence are swapped. Axis 0 of the grid counts KV heads, axis 1 sequences."
    if set(want) < set(stored):
        return (
            f"Only GROUP = {group} of the BLOCK_M = 16 rows are query heads. The others are padding, and at their "
            "addresses are the heads of another program: mask them, `row < GROUP`."
        )
    if set(stored) < set(want):
        return (
            "One program computes all query heads of one KV head: GROUP rows. Rows are heads, `head[:, None] * "
            "stride_q_head`."
        )
    if kv_heads > 1 and sorted(heads) == [row * kv_heads + kv_head for row in range(group)]:
        return (
            "Those heads are round-robin. Neighbors share a KV head: the first GROUP query heads use KV head 0, the "
            "next GROUP KV head 1. So head = KV head × GROUP + row."
        )
    if kv_head and sorted(heads) == list(range(group)):
        return "Those are the heads of KV head 0. Head = KV head × GROUP + row."
    if kv_head and sorted(heads) == [kv_head + row for row in range(group)]:
        return "The group of KV head h starts at query head h × GROUP, not at h."
    return (
        "Query head h of sequence i starts at i × stride_seq + h × stride_q_head, in q and in out. The heads of this "
        "program are KV head × GROUP + row."
    )


def _check_result(attempt, recording, program, made: Decodes) -> None:
    kv_head, seq = program.ids
    got, want = made.out[seq, made.heads(kv_head)].double(), made.want(seq, kv_head)
    if close(got, want, made.tolerance):
        return
    row = next(r for r in range(made.group) if not close(got[r], want[r], made.tolerance))
    what = (
        f"out[{seq}, {made.heads(kv_head)[row]}] should be {values_text(want[row])}; yours is {values_text(got[row])}."
    )
    for idea in (
        _why_queries(recording, program, made),
        _why_length(recording, program, made),
        _why_table(recording, program, made),
        *(_why_cells(recording, program, tensor, made) for tensor in ("k_cache", "v_cache")),
        _why_values(got, want, seq, kv_head, made),
    ):
        if idea == PADDED and _is_column(attempt):
            idea = (
                "The mask of the scores is a column, `[:, None]`: it hides rows, which are query heads. Keys are along "
                "axis 1 of the scores: `tl.where(is_key[None, :], ...)`."
            )
        if idea:
            raise Mistake(what, case=made.text, idea=idea)
    idea = (
        "You loaded the right queries, keys and values. Per iteration: scores = queries · keys × scale, minus infinity "
        "past the context; then `online_softmax`, which returns weights, maximum, sum and acc in this order; then acc "
        "+= weights · values. Divide once, after the loop."
    )
    if not bool(got.isfinite().all()):
        idea = (
            "You loaded the right slots, and got NaN or infinity. Elements that a mask leaves out are undefined: give "
            "masked loads `other=0.0`, because 0 × NaN is NaN. And `row_max` starts at minus infinity, `row_sum` at 0."
        )
    elif made.q.dtype == torch.float32 and close(got, want, 5e-3):
        idea = (
            "Nearly right: the difference is as small as rounding to 16 bits, and everything is float32 here. Is "
            "something converted to float16 or bfloat16? Convert the weights to the dtype of the values, whichever "
            "that is: `weights.to(values.dtype)`."
        )
    raise Mistake(what, case=made.text, idea=idea)


def _why_queries(recording, program, made: Decodes) -> str:
    kv_head, seq = program.ids
    loaded, want = cells(recording, program, "load", "q", 2), {(seq, head) for head in made.heads(kv_head)}
    if not loaded:
        return "The queries weren't loaded: a tile [BLOCK_M, HEAD_DIM], one row per query head of the group."
    if not want <= set(loaded):
        shown = ", ".join(f"({i}, {head})" for i, head in sorted(loaded)[:6])
        return (
            f"The queries that you loaded are those of (sequence, head) {shown}. The heads of KV head {kv_head} are "
            f"{ranges(made.heads(kv_head))}: KV head × GROUP + row."
        )
    if not set(made.elements(seq, kv_head)) <= set(touched(recording, program, "load", "q")):
        return (
            "Only parts of the queries were loaded. A head has HEAD_DIM elements, and two heads are `stride_q_head` "
            "apart: q may be a view of a larger tensor."
        )
    return ""


def _why_length(recording, program, made: Decodes) -> str:
    looked_up = [index[0] for index in cells(recording, program, "load", "context_lens", 1)]
    if looked_up == [program.ids[1]]:
        return ""
    if not looked_up:
        return "The context length wasn't loaded: `tl.load(context_lens + seq)`."
    return f"The program used the context length of sequence {ranges(looked_up)}; its own is {program.ids[1]}."


def _why_table(recording, program, made: Decodes) -> str:
    _, seq = program.ids
    looked_up = cells(recording, program, "load", "block_tables", 2)
    rows, entries = {row for row, _ in looked_up}, {entry for _, entry in looked_up}
    size, context = made.k_cache.shape[1], made.contexts[seq]
    needed = set(range(-(-context // size)))
    if not looked_up and context == 1:
        return (
            "No entry of the block table was read: the loop isn't entered, or the mask is False everywhere. Position "
            "0 is below the context length of 1, which includes the new token."
        )
    if not looked_up:
        return "You read no entry of the block tables. The blocks of sequence i are in row i, at i × stride_table."
    if rows != {seq}:
        return (
            f"The program read the block table of sequence {ranges(sorted(rows))}; its own starts at seq × "
            "stride_table."
        )
    if needed - entries and made.tile > size and entries <= {first // size for first in range(0, context, made.tile)}:
        return (
            f"Each iteration looks up one block, and a tile of {made.tile} positions is in {made.tile // size} of "
            "them. Every position looks up its own: a tile of addresses, table + position // BLOCK_SIZE."
        )
    if needed - entries and context > made.tile and entries == set(range(-(-made.tile // size))):
        return "Only the first tile was read. Go on in steps of BLOCK_N until the context ends."
    if needed - entries:
        return (
            f"You read the entries {ranges(sorted(entries))} of the table; {context} tokens in blocks of {size} need "
            f"the entries {ranges(sorted(needed))}. Position p is in entry p // BLOCK_SIZE."
        )
    return ""


def _why_cells(recording, program, tensor: str, made: Decodes) -> str:
    kv_head, seq = program.ids
    name = "keys" if tensor == "k_cache" else "values"
    read, want = cells(recording, program, "load", tensor, 3), made.own_cells(seq, kv_head)
    size, head_dim = made.k_cache.shape[1], made.q.shape[2]
    if not read:
        return f"No {name} were loaded from `{tensor}`."
    if (idea := _why_stride_block(recording, program, tensor, name, want, made)) != "":
        return idea
    missing, extra = [cell for cell in want if cell not in set(read)], [cell for cell in read if cell not in set(want)]
    if not missing and not extra:
        count = len(touched(recording, program, "load", tensor))
        if count < len(want) * head_dim:
            return f"Only part of each of the {name} was loaded: {count} elements of {len(want)} × {head_dim}."
        times = Counter(offset for access in program.accesses if access.tensor == tensor for offset in access.offsets)
        if len(set(times.values())) > 1:
            return (
                f"Some {name} are loaded in one iteration, others in several: the tiles overlap. A tile has BLOCK_N "
                "positions, and so has a step of the loop."
            )
        return ""
    heads = {head for _, _, head in read}
    if heads != {kv_head}:
        own = {(block, slot) for block, slot, _ in read} == {(block, slot) for block, slot, _ in want}
        if own and len(heads) == 1:
            return (
                f"You read the {name} of KV head {heads.pop()}; this program's is {kv_head}, at KV head × stride_head."
            )
        return (
            f"You read {name} of the KV heads {ranges(sorted(heads))}; this program's is {kv_head}. It starts at "
            "KV head × stride_head, and slots are `stride_slot` apart."
        )
    places, own_blocks = [(block, slot) for block, slot, _ in read], {block for block, _, _ in want}
    if not missing and len(extra) == 1 and -len(want) % made.tile > 1:
        return (
            f"You load one position too many: slot {extra[0][1]} of block {extra[0][0]} holds no token. Positions "
            f"count from 0, and the context length of {len(want)} includes the new token: `position < context_len`, "
            "not `<=`."
        )
    if not missing and {block for block, _ in places} <= own_blocks | {0}:
        return (
            f"The mask of the tail is missing. The last tile has {-len(want) % made.tile} positions past the last "
            f"token; you load {name} for them, here from slot {extra[0][1]} of block {extra[0][0]}, which may be NaN. "
            "Load only where `position < context_len`, with `other=0.0`."
        )
    if missing == want[-1:] and not extra:
        return "The newest token is left out. `context_len` includes it: `position < context_len`."
    if not extra and len(want) > made.tile and len(missing) >= len(want) - made.tile:
        return f"Only the first tile of {name} was loaded. Go on in steps of BLOCK_N until the context ends."
    if not extra and made.tile > size and missing == [c for p, c in enumerate(want) if p % made.tile >= size]:
        return (
            f"Of each tile of {made.tile} positions you load {size} {name}, one block's. A tile is BLOCK_N positions "
            "long, whatever the block size is."
        )
    block, slot, _ = (missing or extra)[0]
    verb = f"you don't read slot {slot} of block {block}" if missing else f"you read slot {slot} of block {block}"
    return (
        f"The {name} come from other slots than the sequence's: {verb}. Position p is in the block of table entry "
        f"p // BLOCK_SIZE, in slot p % BLOCK_SIZE. A tile of {made.tile} positions and a block of {size} slots needn't "
        "begin together, nor be equally long."
    )


def _why_stride_block(recording, program, tensor: str, name: str, want, made: Decodes) -> str:
    """Offsets of a cache whose blocks follow each other without gaps, where they don't."""
    size, head_dim = made.k_cache.shape[1], made.q.shape[2]
    stride_block, stride_slot, stride_head, _ = made.k_cache.stride()
    starts = [(block * size + slot) * stride_slot + head * stride_head for block, slot, head in want]
    packed = {start + dim for start in starts for dim in range(head_dim)}
    if stride_block == size * stride_slot or set(touched(recording, program, "load", tensor)) != packed:
        return ""
    return (
        f"You read the {name} as if block b started at b × BLOCK_SIZE × stride_slot. Between two blocks of this cache "
        "there is something else: a block starts at b × stride_block."
    )


def _is_column(attempt) -> bool:
    """Whether a mask of keys hides query heads: of two heads over one key, the second sees nothing."""
    made = _make([1], 2, 1)
    try:
        _run(attempt, made)
    except Exception:  # noqa: BLE001 - it fails in another way there
        return False
    return bool(made.out[0, 0].isfinite().all()) and not bool(made.out[0, 1].isfinite().any())


def _why_values(got, want, seq: int, kv_head: int, made: Decodes) -> str:
    near = [
        (float((got - formed).abs().max()), idea)
        for idea, formed in _wrong_ideas(seq, kv_head, made)
        if close(got, formed, made.tolerance) and not close(formed, want, made.tolerance)
    ]
    return min(near, key=lambda pair: pair[0])[1] if near else ""


def _wrong_ideas(seq: int, kv_head: int, made: Decodes) -> Iterator[tuple[str, torch.Tensor]]:
    """(what is wrong, what it gives for the heads of the group)."""
    queries, keys, values = made.parts(seq, kv_head)
    scores = queries @ keys.T * SCALE
    log2_e = LOG2_E.value
    yield "The scores aren't multiplied by `scale`.", _base2(queries @ keys.T) @ values
    yield "The scores are multiplied by `scale` twice.", _base2(scores * SCALE * log2_e**2) @ values
    yield (
        "log2(e) counts twice: `scale` includes it, so the scores are in base 2. Do you take `tl.exp` of them instead "
        "of `tl.exp2`, or multiply by it again?",
        (scores * log2_e).softmax(dim=1) @ values,
    )
    yield "You used the keys as values.", scores.softmax(dim=1) @ keys
    yield "You used the values as keys.", (queries @ values.T * SCALE).softmax(dim=1) @ values
    yield "Keys and values are swapped.", (queries @ values.T * SCALE).softmax(dim=1) @ keys
    yield "This is the plain mean of the values: all weights are equal.", values.mean(dim=0).expand(made.group, -1)
    if made.group > 1:
        own = scores.softmax(dim=1) @ values
        yield (
            "All rows have the result of the group's first head. Each row needs its own query.",
            own[:1].expand_as(own),
        )
        yield "All rows share one sum. Each row has a maximum and a sum of its own: `axis=1`.", _shared(scores, values)
    if scores.max() < -1e4:  # an earlier case has shown that masked scores aren't 0
        yield (
            "The scores are all far below zero here, and those of masked positions outweigh them. A masked score must "
            "be lower than any other: minus infinity.",
            torch.zeros_like(queries),
        )
    yield (
        PADDED,
        _online(scores, values, made.tile, padded=True),
    )
    yield "The result isn't divided by `row_sum`.", _online(scores, values, made.tile, divide=False)
    for divide in (False, True):
        yield (
            "You divide by `row_sum` in every iteration. Divide once, after the loop.",
            _online(scores, values, made.tile, divide=divide, each=True),
        )
    if len(keys) > made.tile:
        both = "multiply it by exp2(old maximum − new maximum). `online_softmax` returns it rescaled."
        yield (
            f"`acc` isn't rescaled. It's relative to the old maximum: {both}",
            _online(scores, values, made.tile, acc=False),
        )
        yield (
            f"`row_sum` isn't rescaled. It's relative to the old maximum: {both}",
            _online(scores, values, made.tile, total=False),
        )
        yield (
            "Neither `acc` nor `row_sum` is rescaled to the new maximum.",
            _online(scores, values, made.tile, acc=False, total=False),
        )
        last = (len(keys) - 1) // made.tile * made.tile
        yield (
            "The sum of weight × value starts anew in each iteration: only the last tile is in `acc`. Add to it, "
            "`tl.dot(weights, values, acc)`.",
            _online(scores, values, made.tile, keep=False),
        )
        yield "Only the last tile counts in your result.", scores[:, last:].softmax(dim=1) @ values[last:]
        yield "Only the first tile counts in your result.", scores[:, : made.tile].softmax(dim=1) @ values[: made.tile]
        yield (
            "`acc` is counted twice: `tl.dot(weights, values, acc)` already adds it.",
            _online(scores, values, made.tile, twice=True),
        )


def _base2(scores: torch.Tensor) -> torch.Tensor:
    """The softmax with powers of 2."""
    return (scores * torch.tensor(2.0).double().log()).softmax(dim=1)


def _shared(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    weights = (scores - scores.max(dim=1, keepdim=True).values).exp()
    return weights @ values / weights.sum()


def _online(
    scores, values, tile: int, acc=True, total=True, keep=True, divide=True, padded=False, twice=False, each=False
):
    """The softmax tile by tile, with one step left out.

    Args:
        acc, total: whether it is rescaled. keep: whether `acc` is added to. divide: by the sum of weights.
        padded: the last tile's masked keys have a score of 0 and a value of 0.
        twice: whether `acc` is added to the product, which contains it. each: divide in every iteration.
    """
    rows = len(scores)
    if padded and len(values) % tile:
        missing = -len(values) % tile
        scores = torch.cat([scores, scores.new_zeros(rows, missing)], dim=1)
        values = torch.cat([values, values.new_zeros(missing, values.shape[1])])
    row_max, row_sum = scores.new_full((rows,), -torch.inf), scores.new_zeros(rows)
    sums = values.new_zeros(rows, values.shape[1])
    for first in range(0, len(values), tile):
        own, own_values = scores[:, first : first + tile], values[first : first + tile]
        new_max = torch.maximum(row_max, own.max(dim=1).values)
        weights, rescale = (own - new_max[:, None]).exp(), (row_max - new_max).exp()
        row_sum = row_sum * (rescale if total else 1) + weights.sum(dim=1)
        sums = sums * (rescale[:, None] if acc else 1) if keep else 0
        sums = (1 + twice) * sums + weights @ own_values
        sums = sums / row_sum[:, None] if each else sums
        row_max = new_max
    return sums / row_sum[:, None] if divide else sums


def _check_loads(recording, program, made: Decodes) -> None:
    """The result is right; every key and value must have been loaded once, a tile per iteration."""
    kv_head, seq = program.ids
    want, head_dim = made.own_cells(seq, kv_head), made.q.shape[2]
    for tensor, name in (("k_cache", "keys"), ("v_cache", "values")):
        loads = [access for access in program.accesses if (access.kind, access.tensor) == ("load", tensor)]
        loaded, necessary = sum(len(access.offsets) for access in loads), len(want) * head_dim
        times = Counter(offset for access in loads for offset in access.offsets)
        what = (
            f"the result is right, but program ({kv_head}, {seq}) loads {loaded} elements of {name}, {len(loads)} x "
            f"`tl.load`. Necessary: {necessary} elements, {-(-len(want) // made.tile)} x `tl.load`."
        )
        if idea := _why_cells(recording, program, tensor, made):
            raise Mistake(what, case=made.text, idea=idea)
        most = max(times.values())
        if most > 1:
            idea = (
                f"Each of the {name} is loaded {most} times"
                + (", once per query head" if most == made.group else ", once per row" if most == 16 else "")
                + ". One tile serves all query heads of the group: load it once per iteration, [BLOCK_N, HEAD_DIM], "
                "and let `tl.dot` multiply it with all rows."
            )
            raise Mistake(what, case=made.text, idea=idea)
        if len(loads) > -(-len(want) // made.tile):
            idea = (
                "An iteration has BLOCK_N positions, in as many blocks as it takes. Yours has fewer: do you still go "
                "block by block, or head by head?"
            )
            raise Mistake(what, case=made.text, idea=idea)
    stores = [access for access in program.accesses if access.kind == "store"]
    if sum(len(access.offsets) for access in stores) > made.group * head_dim:
        what = f"the result is right, but program ({kv_head}, {seq}) stores it {len(stores)} times."
        raise Mistake(what, case=made.text, idea="Store once, after the loop: bytes that are written count too.")


def _check_large_pool(attempt) -> None:
    """A block so far back in the cache that its offset doesn't fit into 32 bits; only this block is touched."""
    size, head_dim = 16, 16
    num_blocks = LIMIT_32 // (size * head_dim) + 3
    try:
        cache = torch.empty(num_blocks, size, 1, head_dim, dtype=torch.float16)
    except RuntimeError:
        return  # not enough address space on this machine
    generator = torch.Generator().manual_seed(0)
    block = num_blocks - 1
    cache[block] = torch.randn(size, 1, head_dim, generator=generator)
    q = torch.randn(1, 2, head_dim, generator=generator).half()
    case = (
        f"a cache with {cache.numel():,} elements; the sequence is in block {block:,}, stride_block = "
        f"{cache.stride(0)}, float16."
    )
    made = Decodes(q, torch.zeros_like(q), cache, cache, [size], [[block]], 16, case, 5e-3)
    idea = (
        f"Block × stride_block is {block * cache.stride(0):,} here, and a 32-bit integer goes up to {LIMIT_32 - 1:,}. "
        "Convert the block indices to 64 bits before you multiply: `.to(tl.int64)`."
    )
    try:
        _run(attempt, made)
    except Mistake as mistake:
        raise Mistake(mistake.what, case=case, idea=idea) from None
    got, want = made.out[0], made.want(0, 0)
    if not close(got, want, 5e-3):
        what = f"the attention should be {values_text(want)}; yours is {values_text(got)}."
        raise Mistake(what, case=case, idea=idea)
