"""Judges 07.3, `decode_heads_kernel`: each program with the table, head and length that are its own."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    cells,
    close,
    compiled_too,
    ranges,
    refuse_wrong_tensors,
    run,
    touched,
    values_text,
)
from lessons_lib.checks.lesson_07.single_head import NEWEST, NOWHERE, Reads, SingleHead

BLOCK_SIZE, HEAD_DIM = 4, 16
# Memory layouts of the caches.
PLAIN = "[num_blocks, block_size, Hkv, D]"
INTERLEAVED = "views of one tensor [num_blocks, 2, block_size, Hkv, D], in which blocks of keys and of values alternate"
HEADS_FIRST = "views of [num_blocks, Hkv, block_size, D]"


def check_decode_heads_kernel(attempt) -> None:
    compiled_too(lambda: _check_results(attempt), attempt, _launch(torch.float32), _launch(torch.float16))


def _launch(dtype) -> tuple[tuple, dict]:
    q, cache = torch.zeros(2, 4, HEAD_DIM, dtype=dtype), torch.zeros(4, BLOCK_SIZE, 2, HEAD_DIM, dtype=dtype)
    tables, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    arguments = (q, cache, cache, tables, lens, q, 0.3, *q.stride()[:2], *cache.stride()[:3], tables.stride(0))
    return arguments, dict(GROUP=2, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)


def _check_results(attempt) -> None:
    _check_case(attempt, [3], q_heads=1, kv_heads=1)
    _check_case(attempt, [3], q_heads=6, kv_heads=2)
    _check_case(attempt, [3, 4], q_heads=2, kv_heads=1)
    _check_case(attempt, [2, 4, 6], q_heads=2, kv_heads=1)
    _check_case(attempt, [5, 3], q_heads=2, kv_heads=2, layout=INTERLEAVED, seed=12)
    _check_case(attempt, [5, 1], q_heads=2, kv_heads=2, layout=HEADS_FIRST)
    _check_case(attempt, [2, 3], q_heads=2, kv_heads=1, q_gap=2)
    _check_case(attempt, [6], q_heads=2, kv_heads=1, alike=True, dtype=torch.float16)
    rng = Random(6)
    for seed, layout in enumerate((PLAIN, INTERLEAVED, HEADS_FIRST), start=1):
        kv_heads = rng.choice((1, 2))
        contexts = [rng.choice((1, BLOCK_SIZE, BLOCK_SIZE + 1, 11)) for _ in range(rng.randint(1, 3))]
        _check_case(
            attempt,
            contexts,
            kv_heads * rng.choice((1, 3)),
            kv_heads,
            layout,
            seed % 2,
            seed=seed,
            dtype=torch.float16 if seed == 3 else torch.float32,
        )


def _cache(num_blocks: int, kv_heads: int, layout: str, dtype) -> torch.Tensor:
    if layout == INTERLEAVED:
        return torch.full((num_blocks, 2, BLOCK_SIZE, kv_heads, HEAD_DIM), float("nan"), dtype=dtype)[:, 0]
    if layout == HEADS_FIRST:
        return torch.full((num_blocks, kv_heads, BLOCK_SIZE, HEAD_DIM), float("nan"), dtype=dtype).transpose(1, 2)
    return torch.full((num_blocks, BLOCK_SIZE, kv_heads, HEAD_DIM), float("nan"), dtype=dtype)


def _check_case(
    attempt, contexts, q_heads, kv_heads, layout=PLAIN, q_gap=0, seed=0, dtype=torch.float32, alike=False
) -> None:
    """`q_gap`: unused elements after each query head, as if q were a view of a larger tensor.

    `alike`: keys that differ little, with high scores.
    """
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    counts = [-(-context // BLOCK_SIZE) for context in contexts]
    order = rng.sample(range(1, sum(counts) + 2), sum(counts))  # block 0 stays free
    tables = [[order.pop() for _ in range(count)] for count in counts]
    k_cache, v_cache = (_cache(sum(counts) + 2, kv_heads, layout, dtype) for _ in range(2))
    for table, context in zip(tables, contexts):
        for token in range(context):
            for cache in (k_cache, v_cache):
                vector = 2 * torch.randn(kv_heads, HEAD_DIM, generator=generator)
                cache[table[token // BLOCK_SIZE], token % BLOCK_SIZE] = (
                    vector / 16 + 8 if alike and cache is k_cache else vector
                ).to(dtype)
    q = torch.full((len(contexts), q_heads, HEAD_DIM + q_gap), float("nan"), dtype=dtype)[..., :HEAD_DIM]
    q.copy_((8 if alike else 1) * torch.randn(len(contexts), q_heads, HEAD_DIM, generator=generator))
    out = torch.full((len(contexts), q_heads, HEAD_DIM + q_gap), -7.0, dtype=dtype)[..., :HEAD_DIM]
    width = max(counts) + 1
    block_tables = torch.tensor([table + [NOWHERE] * (width - len(table)) for table in tables], dtype=torch.int32)
    group, scale = q_heads // kv_heads, 0.4
    heads = (
        f"{q_heads} query head{'s' if q_heads > 1 else ''} over {kv_heads} KV head{'s' if kv_heads > 1 else ''} (GROUP "
        f"= {group})"
    )
    gap = f"; stride_q_head = {q.stride(1)}" if q_gap else ""
    where = f"; the caches are {layout}" if layout != PLAIN else ""
    where += "; float16, and keys that differ little" if alike else "; float16" if dtype == torch.float16 else ""
    case = (
        f"{heads}; contexts {contexts}, block tables {tables}, BLOCK_SIZE = {BLOCK_SIZE}, HEAD_DIM = "
        f"{HEAD_DIM}{gap}{where}."
    )
    arguments = (q, k_cache, v_cache, block_tables, torch.tensor(contexts, dtype=torch.int32), out, scale)
    strides = (*q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0))
    try:
        recording = run(
            attempt, (len(contexts), q_heads), *arguments, *strides, GROUP=group, HEAD_DIM=HEAD_DIM,
            BLOCK_SIZE=BLOCK_SIZE, case=case,
            explain=lambda error: _out_of_bounds(error, contexts, q_heads, kv_heads),
        )  # fmt: skip
    except Mistake as mistake:
        if "operands of type pointer<int32>" in mistake.what:
            idea = f"{mistake.idea} Or are the arguments of `attend_blocks` in another order?"
            raise Mistake(mistake.what, case=mistake.case, idea=idea) from None
        if "incompatible dimensions" not in mistake.what:
            raise
        idea = (
            "Two tiles have different lengths. If they meet in `attend_blocks`, look at the order of its arguments: "
            "query, keys, values, table, num_tokens, scale, stride_block, stride_slot, HEAD_DIM, BLOCK_SIZE."
        )
        raise Mistake(mistake.what, case=mistake.case, idea=idea) from None
    refuse_wrong_tensors(recording, "out", case)
    for program in recording.programs:
        stored = cells(recording, program, "store", "out", 2)
        if stored != [program.ids]:
            raise _wrong_output(recording, program, stored, case)
    for program in recording.programs:
        seq, head = program.ids
        keys, values = (cache[:, :, head // group] for cache in (k_cache, v_cache))
        single = SingleHead(q[seq, head].float(), keys.float(), values.float(), tables[seq], contexts[seq], scale)
        _check_program(
            recording, program, single, k_cache, tables, out, group, case, 2e-3 if dtype == torch.float16 else 1e-4
        )


def _out_of_bounds(error, contexts, q_heads: int, kv_heads: int) -> str:
    seq, head = error.ids
    if error.tensor == "block_tables":
        return (
            "Row i of block_tables starts at i × stride_table, and has one entry per block. Sequence i has row i: axis "
            "0 of the grid."
        )
    if error.tensor == "context_lens":
        return f"context_lens has one entry per sequence, {len(contexts)} here: `tl.load(context_lens + seq)`."
    if error.tensor in ("q", "out"):
        return (
            "Axis 0 of the grid counts sequences, axis 1 query heads: `seq * stride_seq + head * stride_q_head + dim`."
        )
    if abs(error.number) > abs(NOWHERE) // 2:
        return (
            "That comes from an entry of the block table that is not in use. Do the table, from seq × stride_table on, "
            "and the context length belong to this sequence?"
        )
    return (
        f"Program ({seq}, {head}) computes query head {head}. KV heads: {kv_heads}, query heads: {q_heads}; its own is "
        "head // GROUP, and starts at kv_head × stride_head in the cache. That's where the pointers go: "
        "`attend_blocks` adds blocks and slots, with their own strides."
    )


def _check_program(
    recording, program, single: SingleHead, k_cache, tables, out, group: int, case: str, tolerance: float
) -> None:
    seq, head = program.ids
    got, want = out[seq, head].float(), single.want()
    if close(got, want, tolerance):
        return
    what = f"out[{seq}, {head}] should be {values_text(want)}; yours is {values_text(got)}."
    if len(touched(recording, program, "store", "out")) < len(got):
        raise Mistake(
            what,
            case=case,
            idea="A head has HEAD_DIM elements: store the whole tile, with `tl.arange(0, HEAD_DIM)` in its offsets.",
        )
    first = _first_block(recording, program, tables[seq])
    for idea in (
        _query(recording, program),
        _length(recording, program),
        _table(recording, program),
        _stride_order(program, k_cache, head // group, first),
        _head_start(program, k_cache, head // group, first),
        _kv_head(recording, program, k_cache, group, first),
    ):
        if idea:
            raise Mistake(what, case=case, idea=idea)
    reads = _reads(recording, program)
    if reason := reads.explain(single):
        if reason == NEWEST:
            reason = (
                "The newest token is left out. `context_lens` includes it: pass the length to `attend_blocks` "
                "unchanged."
            )
        if reason.startswith("Only part of each key"):
            reason = (
                "Only part of each key was read. `attend_blocks` takes pointers to one element, the first of the KV "
                "head: it adds slots and dimensions itself."
            )
        raise Mistake(what, case=case, idea=reason)
    extra = [cell for cell in reads.keys if cell not in set(single.cells())]
    if extra and not bool(got.isfinite().all()):
        idea = (
            f"You read slot {extra[0][1]} of block {extra[0][0]}, which holds no token. `context_lens` already "
            "includes the new token: pass it on unchanged."
        )
        raise Mistake(what, case=case, idea=idea)
    if idea := _recognize_finite(single, got):
        raise Mistake(what, case=case, idea=idea)
    if k_cache.dtype == torch.float16 and close(got, want, 0.5):
        idea = (
            "Nearly right: in float32 it would pass. Query and keys are float16 here, and a product of two "
            "float16 values keeps only three digits. With a query in float32, `tl.load(...).to(tl.float32)`, "
            "everything computed with it is float32."
        )
        raise Mistake(what, case=case, idea=idea)
    if close(got, want, 5e-3):
        idea = (
            "Nearly right: the difference is as small as rounding to 16 bits, and everything is float32 here. Is "
            "something converted to another dtype?"
        )
        raise Mistake(what, case=case, idea=idea)
    idea = (
        "You read the right slots. Look at the arguments of `attend_blocks`: query, keys, values, table, num_tokens, "
        "scale, stride_block, stride_slot, and the two constants."
    )
    raise Mistake(what, case=case, idea=idea)


def _wrong_output(recording, program, stored, case: str) -> Mistake:
    seq, head = program.ids
    group = recording.grid[1] // recording.tensors["k_cache"].shape[2]
    shown = ", ".join(f"out[{i}, {h}]" for i, h in stored) or "nothing"
    what = f"program ({seq}, {head}) should store out[{seq}, {head}]; yours stores {shown}."
    idea = (
        "Axis 0 of the grid counts sequences, axis 1 query heads: "
        "`out + seq * stride_seq + head * stride_q_head + dim`, as for q."
    )
    if not stored:
        idea = (
            "This program stores nothing. Each query head has a program of its own, also the heads that share a KV "
            "head: does it return early, or is a mask False everywhere?"
        )
    elif stored == [(seq, head // group)] and any(
        cells(recording, other, "store", "out", 2) != stored for other in recording.programs
    ):
        idea = (
            "q and out have a row for each query head. `head // GROUP` is the KV head, and only the caches have that."
        )
    elif (
        len(stored) == 1
        and stored == cells(recording, recording.programs[0], "store", "out", 2)
        and _query(recording, program)
    ):
        idea = (
            "Every program stores to the same elements. `tl.program_id(0)` is the sequence, `tl.program_id(1)` the "
            "query head."
        )
    elif stored == [(head, seq)] and head:  # programs come in order, so the first one that is swapped is (0, 1)
        idea = "Sequence and head are swapped. Axis 0 of the grid counts sequences, axis 1 query heads."
    elif len(stored) == 1 and seq and not head:
        idea = "Two sequences are `stride_seq` apart, two query heads of one sequence `stride_q_head`."
    elif len(stored) > 1 and len(touched(recording, program, "store", "out")) == HEAD_DIM:
        idea = (
            "Two query heads are `stride_q_head` apart, and two sequences `stride_seq`: q and out may be views of "
            "larger tensors."
        )
    elif len(stored) > 1:
        idea = (
            "One program computes one query head of one sequence; the others do the rest. No loop over heads or "
            "sequences is needed."
        )
    return Mistake(what, case=case, idea=idea)


def _reads(recording, program) -> Reads:
    entries = [column for _, column in cells(recording, program, "load", "block_tables", 2)]
    keys, values = (cells(recording, program, "load", name, 2) for name in ("k_cache", "v_cache"))
    iterations = sum(access.tensor == "k_cache" for access in program.accesses)
    return Reads(keys, len(touched(recording, program, "load", "k_cache")), values, entries, iterations)


def _query(recording, program) -> str:
    seq, head = program.ids
    loaded = cells(recording, program, "load", "q", 2)
    elements = len(touched(recording, program, "load", "q"))
    if loaded == [(seq, head)] and elements < HEAD_DIM:
        return (
            f"A query has {HEAD_DIM} elements; you loaded {elements}. It is a tile: "
            "`q + seq * stride_seq + head * stride_q_head + dim`, with `dim = tl.arange(0, HEAD_DIM)`."
        )
    if loaded == [(seq, head)]:
        return ""
    if not loaded:
        return "The query wasn't loaded: `tl.load(q + offsets)`."
    if len(loaded) == 1:
        return (
            f"The program used the query of sequence {loaded[0][0]}, head {loaded[0][1]}. Its own is at "
            "seq × stride_seq + head × stride_q_head."
        )
    return (
        "The query was loaded from more than one head. Two heads are `stride_q_head` apart, two sequences `stride_seq`."
    )


def _length(recording, program) -> str:
    looked_up = [index[0] for index in cells(recording, program, "load", "context_lens", 1)]
    if looked_up == [program.ids[0]]:
        return ""
    if not looked_up:
        return "The context length wasn't loaded. `context_lens` is an address: `tl.load(context_lens + seq)`."
    return (
        f"The program used the context length of sequence {ranges(looked_up)}. Its own is "
        "`tl.load(context_lens + seq)`."
    )


def _table(recording, program) -> str:
    looked_up = cells(recording, program, "load", "block_tables", 2)
    rows = sorted({row for row, _ in looked_up})
    if rows == [program.ids[0]] and 0 in {entry for _, entry in looked_up}:
        return ""
    if not rows:
        return "You read no entry of the block tables. The table of sequence i starts at i × stride_table."
    if rows == [program.ids[0]]:
        return "You don't read the first entry of this sequence's table. The table starts at seq × stride_table."
    return f"The program read the block table of sequence {ranges(rows)}. Its own starts at seq × stride_table."


def _first_block(recording, program, table: list[int]) -> int:
    """The block of the table entry that a program read first: the sequence's last block if it goes backwards."""
    entries = [entry for _, entry in cells(recording, program, "load", "block_tables", 2)]
    return table[entries[0]] if entries and entries[0] < len(table) else table[0]


def _kv_head(recording, program, k_cache, group: int, block: int) -> str:
    seq, head = program.ids
    kv_heads, q_heads = k_cache.shape[2], recording.grid[1]
    for tensor, name in (("k_cache", "keys"), ("v_cache", "values")):
        start = _first_offset(program, tensor) - block * k_cache.stride(0)
        if 0 <= start < kv_heads * k_cache.stride(2) and start % HEAD_DIM:
            return (
                f"Query head {head} reads {name} starting at element {start} of the slot, where no KV head starts. "
                "Divide first, then multiply: `head // GROUP * stride_head` is evaluated from left to right; "
                "`head * stride_head // GROUP` is something else."
            )
        used = [_first_head(other, k_cache, block, tensor) for other in recording.programs if other.ids[0] == seq]
        if used[head] in (head // group, None):
            continue
        if used[head] >= kv_heads:
            return (
                f"This program's {name} start {start} elements after the start of a block; those of KV head "
                f"{head // group} start {head // group * k_cache.stride(2)} after it. The pointers move by "
                "kv_head × stride_head only: which blocks are the sequence's, its table says."
            )
        prefix = (
            f"Query head {head} used the {name} of KV head {used[head]}; its own is {head} // {group} = "
            f"{head // group}. "
        )
        if used == [other % kv_heads for other in range(q_heads)] and kv_heads > 1:
            return (
                prefix
                + "`head % number of KV heads` assigns heads round-robin. Neighbors share: the first GROUP query heads "
                "use KV head 0, the next GROUP use KV head 1."
            )
        if used == [0] * q_heads:
            return (
                prefix
                + "KV head h starts at h × stride_head in the cache; move the pointers of both keys and values there."
            )
        if used == [other % group for other in range(q_heads)] and group < q_heads:
            return prefix + "`head % GROUP` is the index inside the group. The group is `head // GROUP`."
        if used == list(range(q_heads)):
            return prefix + "There are fewer KV heads than query heads; GROUP query heads share one: head // GROUP."
        return prefix + "GROUP query heads share one KV head, head // GROUP. It starts at head // GROUP × stride_head."
    return ""


def _stride_order(program, k_cache, kv_head: int, block: int) -> str:
    """What is wrong if a program's first block starts at block × stride_slot; else ""."""
    start = _first_offset(program, "k_cache") - kv_head * k_cache.stride(2)
    if start == block * k_cache.stride(1):
        return (
            f"Block {block} starts at {block} × stride_block; yours starts at {block} × stride_slot. In the call of "
            "`attend_blocks`, stride_block comes before stride_slot."
        )
    return ""


def _head_start(program, k_cache, kv_head: int, block: int) -> str:
    """What is wrong if a program moved its keys by another stride than that of the heads; else ""."""
    moved = _first_offset(program, "k_cache") - block * k_cache.stride(0)
    if kv_head and moved != kv_head * k_cache.stride(2) and moved in (kv_head * HEAD_DIM, kv_head * k_cache.stride(1)):
        return (
            f"KV head {kv_head} starts {kv_head * k_cache.stride(2)} elements after KV head 0, {kv_head} × "
            f"`stride_head`; yours starts {moved} after it. Slots and heads have their own strides, and HEAD_DIM is "
            "neither."
        )
    return ""


def _first_head(program, k_cache, block: int, tensor: str) -> int | None:
    """The KV head, existing or not, where a program started to read the first block; None if no head starts there."""
    head, rest = divmod(_first_offset(program, tensor) - block * k_cache.stride(0), k_cache.stride(2))
    return head if head >= 0 and not rest else None


def _first_offset(program, tensor: str) -> int:
    """The first offset of a cache that a program read; -1 if it read nothing."""
    return next((min(access.offsets) for access in program.accesses if access.tensor == tensor), -1)


def _recognize_finite(single: SingleHead, got) -> str:
    """The wrong idea that gives this result, if slots without a token don't count."""
    keys, values = (cache.nan_to_num(nan=0.0) for cache in (single.keys, single.values))
    return SingleHead(single.query, keys, values, single.table, single.num_tokens, single.scale).recognize(got)
