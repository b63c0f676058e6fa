"""Judges 07.6, `decode_heads_kernel`: every sequence and every query head its own program, each with the right table, head and length."""

from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    cells,
    close,
    compiled_too,
    numbers_text,
    places,
    refuse_wrong_tensors,
    run,
    touched,
)
from lessons_lib.checks.lesson_07.one_head import NOWHERE, OneHead, Reads

BLOCK_SIZE, HEAD_DIM = 4, 4
# How the caches lie in memory.
PLAIN = "[num_blocks, block_size, Hkv, D]"
INTERLEAVED = "a part of [num_blocks, 2, block_size, Hkv, D], in which blocks of keys and of values take turns"
HEADS_FIRST = "a view of [num_blocks, Hkv, block_size, D]"


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
    """`q_gap`: unused numbers behind each query head, as where q is a part of a larger tensor. `alike`: keys that differ little, with high scores."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    counts = [-(-context // BLOCK_SIZE) for context in contexts]
    order = rng.sample(range(1, sum(counts) + 2), sum(counts))  # block 0 stays free
    tables = [[order.pop() for _ in range(count)] for count in counts]
    k_cache, v_cache = (_cache(sum(counts) + 2, kv_heads, layout, dtype) for _ in range(2))
    for table, context in zip(tables, contexts):
        for token in range(context):
            for cache in (k_cache, v_cache):
                cell = 2 * torch.randn(kv_heads, HEAD_DIM, generator=generator)
                cache[table[token // BLOCK_SIZE], token % BLOCK_SIZE] = (
                    cell / 16 + 8 if alike and cache is k_cache else cell
                ).to(dtype)
    q = torch.full((len(contexts), q_heads, HEAD_DIM + q_gap), float("nan"), dtype=dtype)[..., :HEAD_DIM]
    q.copy_((8 if alike else 1) * torch.randn(len(contexts), q_heads, HEAD_DIM, generator=generator))
    out = torch.full((len(contexts), q_heads, HEAD_DIM + q_gap), -7.0, dtype=dtype)[..., :HEAD_DIM]
    width = max(counts) + 1
    block_tables = torch.tensor([table + [NOWHERE] * (width - len(table)) for table in tables], dtype=torch.int32)
    group, scale = q_heads // kv_heads, 0.4
    heads = f"{q_heads} query head{'s' if q_heads > 1 else ''} over {kv_heads} KV head{'s' if kv_heads > 1 else ''} (GROUP = {group})"
    gap = f"; stride_q_head = {q.stride(1)}" if q_gap else ""
    where = f"; the caches are {layout}" if layout != PLAIN else ""
    where += "; float16, and keys that differ little" if alike else "; float16" if dtype == torch.float16 else ""
    case = f"{heads}; contexts {contexts}, block tables {tables}, BLOCK_SIZE = {BLOCK_SIZE}, HEAD_DIM = {HEAD_DIM}{gap}{where}."
    arguments = (q, k_cache, v_cache, block_tables, torch.tensor(contexts, dtype=torch.int32), out, scale)
    strides = (*q.stride()[:2], *k_cache.stride()[:3], block_tables.stride(0))
    recording = run(
        attempt, (len(contexts), q_heads), *arguments, *strides, GROUP=group, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE, case=case,
        wild=lambda error: _wild(error, contexts, q_heads, kv_heads),
    )  # fmt: skip
    refuse_wrong_tensors(recording, "out", case)
    for program in recording.programs:
        stored = cells(recording, program, "store", "out", 2)
        if stored != [program.ids]:
            raise _wrong_place(recording, program, stored, case)
    for program in recording.programs:
        seq, head = program.ids
        keys, values = (cache[:, :, head // group] for cache in (k_cache, v_cache))
        one = OneHead(q[seq, head].float(), keys.float(), values.float(), tables[seq], contexts[seq], scale)
        _check_program(
            recording, program, one, k_cache, tables, out, group, case, 2e-3 if dtype == torch.float16 else 1e-4
        )


def _wild(error, contexts, q_heads: int, kv_heads: int) -> str:
    seq, head = error.ids
    if error.tensor == "block_tables":
        return "Row i of block_tables begins i × stride_table behind the first entry, and has one entry for each block."
    if error.tensor == "context_lens":
        return f"context_lens has one entry for each sequence, {len(contexts)} here: `tl.load(context_lens + seq)`."
    if error.tensor in ("q", "out"):
        return (
            "Axis 0 of the grid counts sequences, axis 1 query heads: `seq * stride_seq + head * stride_q_head + dim`."
        )
    if abs(error.number) > abs(NOWHERE) // 2:
        return "That comes of an entry of the block table that is not in use. Is it the table of this sequence, and are the tokens those of this sequence?"
    return (
        f"Program ({seq}, {head}) has query head {head}. There are {kv_heads} KV heads for {q_heads} query heads: its own is head // GROUP, and begins "
        "kv_head × stride_head behind the first number of the cache. Blocks and slots have their strides."
    )


def _check_program(
    recording, program, one: OneHead, k_cache, tables, out, group: int, case: str, tolerance: float
) -> None:
    seq, head = program.ids
    got, want = out[seq, head].float(), one.want()
    if close(got, want, tolerance):
        return
    what = f"out[{seq}, {head}] should be {numbers_text(want)}; yours is {numbers_text(got)}."
    if len(touched(recording, program, "store", "out")) < len(got):
        raise Mistake(
            what,
            case=case,
            idea="A head has HEAD_DIM numbers: store the whole tile, `out + place` with `tl.arange(0, HEAD_DIM)` in it.",
        )
    for idea in (
        _query(recording, program),
        _length(recording, program),
        _table(recording, program),
        _kv_head(recording, program, k_cache, group, tables),
    ):
        if idea:
            raise Mistake(what, case=case, idea=idea)
    reads = _reads(recording, program)
    if reason := reads.explain(one):
        raise Mistake(what, case=case, idea=reason)
    extra = [cell for cell in reads.keys if cell not in set(one.cells())]
    if extra and not bool(got.isfinite().all()):
        idea = f"Offset {extra[0][1]} of block {extra[0][0]} was read, which holds no token. `context_lens` counts the new token already: hand it on as it is."
        raise Mistake(what, case=case, idea=idea)
    if idea := _recognise_finite(one, got):
        raise Mistake(what, case=case, idea=idea)
    if k_cache.dtype == torch.float16 and close(got, want, 0.5):
        idea = (
            "Nearly right: in float32 it is. Query and keys are float16 here, and a product of two float16 numbers has three digits. With a query in float32, "
            "`tl.load(...).to(tl.float32)`, all that is computed with it is float32."
        )
        raise Mistake(what, case=case, idea=idea)
    idea = "The right cells were read. Look at what is handed to `attend_blocks`: query, keys, values, table, num_tokens, scale, stride_block, stride_slot, and the two constants."
    raise Mistake(what, case=case, idea=idea)


def _wrong_place(recording, program, stored, case: str) -> Mistake:
    seq, head = program.ids
    shown = ", ".join(f"out[{i}, {h}]" for i, h in stored) or "nothing"
    what = f"program ({seq}, {head}) should store out[{seq}, {head}]; yours stores {shown}."
    idea = "Axis 0 of the grid counts sequences, axis 1 query heads: `out + seq * stride_seq + head * stride_q_head + dim`, as for q."
    if stored == cells(recording, recording.programs[0], "store", "out", 2):
        idea = "Every program stores to the same place. `tl.program_id(0)` is the number of the sequence, `tl.program_id(1)` that of the query head."
    elif stored == [(head, seq)]:
        idea = "Sequence and head are exchanged. Axis 0 of the grid counts sequences, axis 1 query heads."
    elif len(stored) > 1 and len(touched(recording, program, "store", "out")) == HEAD_DIM:
        idea = "Two query heads lie `stride_q_head` apart, and two sequences `stride_seq`: q and out may be parts of larger tensors."
    elif len(stored) > 1:
        idea = "One program has one query head of one sequence; the others do the rest. No loop over heads or sequences is needed."
    return Mistake(what, case=case, idea=idea)


def _reads(recording, program) -> Reads:
    entries = [column for _, column in cells(recording, program, "load", "block_tables", 2)]
    keys, values = (cells(recording, program, "load", name, 2) for name in ("k_cache", "v_cache"))
    turns = sum(access.tensor == "k_cache" for access in program.accesses)
    return Reads(keys, len(touched(recording, program, "load", "k_cache")), values, entries, turns)


def _query(recording, program) -> str:
    seq, head = program.ids
    loaded = cells(recording, program, "load", "q", 2)
    numbers = len(touched(recording, program, "load", "q"))
    if loaded == [(seq, head)] and numbers < HEAD_DIM:
        return f"A query has {HEAD_DIM} numbers; loaded: {numbers}. It is a tile: `q + seq * stride_seq + head * stride_q_head + dim`, with `dim = tl.arange(0, HEAD_DIM)`."
    if loaded == [(seq, head)]:
        return ""
    if not loaded:
        return "The query was not loaded: `tl.load(q + place)`."
    if len(loaded) == 1:
        return f"It used the query of sequence {loaded[0][0]}, head {loaded[0][1]}. Its own is at seq × stride_seq + head × stride_q_head."
    return (
        "The query was loaded from more than one head. Two heads lie `stride_q_head` apart, two sequences `stride_seq`."
    )


def _length(recording, program) -> str:
    looked_up = [index[0] for index in cells(recording, program, "load", "context_lens", 1)]
    if looked_up == [program.ids[0]]:
        return ""
    if not looked_up:
        return "The context length was not loaded. `context_lens` is an address: `tl.load(context_lens + seq)`."
    return f"It used the context length of sequence {places(looked_up)}. Its own is `tl.load(context_lens + seq)`."


def _table(recording, program) -> str:
    looked_up = cells(recording, program, "load", "block_tables", 2)
    rows = sorted({row for row, _ in looked_up})
    if rows == [program.ids[0]] and looked_up[0][1] == 0:
        return ""
    if not rows:
        return (
            "No entry of the block tables was read. The table of sequence i begins i × stride_table behind the first."
        )
    if rows == [program.ids[0]]:
        return "The table of this sequence is not read from its first entry on. It begins seq × stride_table behind the first of all."
    return f"It read the block table of sequence {places(rows)}. Its own begins seq × stride_table behind the first entry of all."


def _kv_head(recording, program, k_cache, group: int, tables: list[list[int]]) -> str:
    seq, head = program.ids
    kv_heads, q_heads = k_cache.shape[2], recording.grid[1]
    for tensor, name in (("k_cache", "keys"), ("v_cache", "values")):
        behind = _first_number(program, tensor) - tables[seq][0] * k_cache.stride(0)
        if 0 <= behind < kv_heads * k_cache.stride(2) and behind % HEAD_DIM:
            return (
                f"Query head {head} began to read {name} at number {behind} of the slot, where no KV head begins. Divide first, then multiply: "
                "`head // GROUP * stride_head` goes from left to right; `head * stride_head // GROUP` is something else."
            )
        used = [
            _first_head(other, k_cache, tables[seq][0], tensor) for other in recording.programs if other.ids[0] == seq
        ]
        if used[head] in (head // group, None):
            continue
        said = f"Query head {head} used the {name} of KV head {used[head]}; its own is {head} // {group} = {head // group}. "
        if used == [other % kv_heads for other in range(q_heads)] and kv_heads > 1:
            return (
                said
                + "`head % number of KV heads` deals heads out in turns. Neighbours share: the first GROUP query heads have KV head 0, the next KV head 1."
            )
        if used == [0] * q_heads:
            return (
                said
                + "KV head h begins h × stride_head behind the first number of the cache; keys and values both begin there."
            )
        if used == [other % group for other in range(q_heads)] and group < q_heads:
            return said + "`head % GROUP` counts inside a group. Which group it is says `head // GROUP`."
        if used == list(range(q_heads)):
            return said + "There are fewer KV heads than query heads; GROUP of these share one: head // GROUP."
        return (
            said
            + "GROUP query heads share one KV head, head // GROUP, and it begins that many × stride_head behind the first number."
        )
    return ""


def _first_head(program, k_cache, block: int, tensor: str) -> int | None:
    """How many KV heads behind head 0 of the first block a program began to read: more than there are, if it went astray; None if it is no head."""
    head, rest = divmod(_first_number(program, tensor) - block * k_cache.stride(0), k_cache.stride(2))
    return head if head >= 0 and not rest else None


def _first_number(program, tensor: str) -> int:
    """The first number of a cache that a program read; -1 if it read nothing."""
    return next((min(access.offsets) for access in program.accesses if access.tensor == tensor), -1)


def _recognise_finite(one: OneHead, got) -> str:
    """The wrong idea that gives this result where no cell without a token is used."""
    keys, values = (cache.nan_to_num(nan=0.0) for cache in (one.keys, one.values))
    return OneHead(one.query, keys, values, one.table, one.num_tokens, one.scale).recognise(got)
