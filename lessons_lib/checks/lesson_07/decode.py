"""07.3, `decode_heads_kernel`: each program with the table, head and length that are its own."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.diagnosis.kernels import compiles, launch, near
from lessons_lib.checks.kernels import RACE_BETWEEN, RACE_WITHIN, cells, ranges, stored_anywhere, touched

BLOCK_SIZE, HEAD_DIM, SCALE = 4, 16, 0.4
NOWHERE = -(10**6)  # the block table's entries past the blocks in use
# Memory layouts of the caches.
PLAIN = "[num_blocks, block_size, Hkv, D]"
INTERLEAVED = "views of one tensor [num_blocks, 2, block_size, Hkv, D], in which blocks of keys and of values alternate"
HEADS_FIRST = "views of [num_blocks, Hkv, block_size, D]"


@dataclass(frozen=True)
class Case:
    """A step. `q_gap`: unused elements after each query head. `alike`: keys that differ little, with high scores."""

    contexts: tuple[int, ...]
    q_heads: int
    kv_heads: int
    layout: str = PLAIN
    q_gap: int = 0
    dtype: torch.dtype = torch.float32
    alike: bool = False

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @cached_property
    def tables(self) -> list[list[int]]:
        counts = [-(-context // BLOCK_SIZE) for context in self.contexts]
        order = Random(str(self.contexts)).sample(range(1, sum(counts) + 2), sum(counts))  # block 0 stays free
        return [[order.pop() for _ in range(count)] for count in counts]

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, both caches, NaN where no token is, and the right attention."""
        generator = torch.Generator().manual_seed(len(self.contexts))
        k_cache, v_cache = (self._cache(sum(map(len, self.tables)) + 2) for _ in range(2))
        for table, context in zip(self.tables, self.contexts):
            for token in range(context):
                for cache in (k_cache, v_cache):
                    vector = 2 * torch.randn(self.kv_heads, HEAD_DIM, generator=generator)
                    vector = vector / 16 + 8 if self.alike and cache is k_cache else vector
                    cache[table[token // BLOCK_SIZE], token % BLOCK_SIZE] = vector.to(self.dtype)
        q = self._rows(float("nan"))
        q.copy_((8 if self.alike else 1) * torch.randn(*q.shape, generator=generator))
        want = torch.empty(q.shape, dtype=torch.float64)
        for seq, (table, context) in enumerate(zip(self.tables, self.contexts)):
            for head in range(self.q_heads):
                keys, values = (
                    cache[table][..., head // self.group, :].reshape(-1, HEAD_DIM)[:context].double()
                    for cache in (k_cache, v_cache)
                )
                want[seq, head] = (keys @ q[seq, head].double() * SCALE).softmax(dim=0) @ values
        return q, k_cache, v_cache, want

    def _rows(self, filled: float) -> torch.Tensor:
        """As q and out: [N, Hq, D]."""
        shape = len(self.contexts), self.q_heads, HEAD_DIM + self.q_gap
        return torch.full(shape, filled, dtype=self.dtype)[..., :HEAD_DIM]

    def _cache(self, num_blocks: int) -> torch.Tensor:
        sides, nan = (BLOCK_SIZE, self.kv_heads, HEAD_DIM), float("nan")
        if self.layout == INTERLEAVED:
            return torch.full((num_blocks, 2, *sides), nan, dtype=self.dtype)[:, 0]
        if self.layout == HEADS_FIRST:
            return torch.full((num_blocks, self.kv_heads, BLOCK_SIZE, HEAD_DIM), nan, dtype=self.dtype).transpose(1, 2)
        return torch.full((num_blocks, *sides), nan, dtype=self.dtype)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    q, k_cache, v_cache, want = case.tensors()
    out = case._rows(-7.0)
    width = max(map(len, case.tables)) + 1
    tables = torch.tensor([[*table, *[NOWHERE] * (width - len(table))] for table in case.tables], dtype=torch.int32)
    lens = torch.tensor(case.contexts, dtype=torch.int32)

    def look(recording: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {"the tensors that are stored to": sorted(stored_anywhere(recording))}

        def each(what: str, tell: Any) -> None:
            for program in recording.programs:
                seen[f"{what} in program {program.ids}"] = Shown(tell(program))

        def rows(program: Any, kind: str, tensor: str) -> str:
            found = cells(recording, program, kind, tensor, 2)
            partly = len(touched(recording, program, kind, tensor)) < HEAD_DIM * len(found)
            return ", ".join(f"{tensor}[{i}, {h}]" for i, h in found) + " in part" * partly or "nothing"

        def entries(program: Any) -> str:
            found = cells(recording, program, "load", "block_tables", 2)
            return f"rows {ranges(sorted({row for row, _ in found}))}, entries {ranges(sorted({c for _, c in found}))}"

        def length(program: Any) -> str:
            found = cells(recording, program, "load", "context_lens", 1)
            return f"that of sequence {ranges([sequence for (sequence,) in found])}"

        def slots(program: Any, tensor: str) -> str:
            found = cells(recording, program, "load", tensor, 3)
            heads = ranges(sorted({head for *_, head in found}))
            blocks = sorted({block for block, *_ in found})
            return f"{len(found)} slot{'s' * (len(found) != 1)} of block {ranges(blocks)}, KV head {heads}"

        each("what is stored", lambda program: rows(program, "store", "out"))
        each("the query", lambda program: rows(program, "load", "q"))
        each("the context length", length)
        each("the block table", entries)
        each("the keys", lambda program: slots(program, "k_cache"))
        each("the values", lambda program: slots(program, "v_cache"))
        seen["out"] = near(out.float(), want.float(), 2e-3 if case.dtype == torch.float16 else 1e-4)
        if case.alike and 0 < (seen["out"] - want.float()).abs().max() < 0.5:
            seen["out"] = Shown("nearly that. In float32 it would pass: a product of two float16 loses digits")
        is_within = bool(recording.race and recording.race.is_within)
        seen["the race within a program"] = Shown(recording.race if is_within else "none")
        seen["the race between programs"] = Shown("none" if is_within or not recording.race else recording.race)
        return seen

    launch(
        watch, "`decode_heads_kernel`", attempt, attempt, (len(case.contexts), case.q_heads), q, k_cache, v_cache,
        tables, lens, out, SCALE, *q.stride()[:2], *k_cache.stride()[:3], tables.stride(0), GROUP=case.group,
        HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE, look=look, explain=outside,
    )  # fmt: skip


MOVED = "The pointers move by head // GROUP × stride_head. Blocks and slots are added by `attend_blocks`."
IDEAS = {  # what a program should use or store
    "what is stored": "Program (i, h) stores all of out[i, h], and nothing else. Axis 0 of the grid counts sequences, "
    "axis 1 query heads: `out + seq * stride_seq + head * stride_q_head + dim`.",
    "the query": "Its own query is at seq × stride_seq + head × stride_q_head, with HEAD_DIM elements.",
    "the context length": "It has one entry per sequence. Its own is `tl.load(context_lens + seq)`.",
    "the block table": "Its own starts at seq × stride_table, and has one entry per block.",
    "the keys": MOVED,
    "the values": MOVED,
}
OF = {
    "block_tables": "the block table",
    "context_lens": "the context length",
    "q": "the query",
    "out": "what is stored",
}


def outside(error: Any) -> str:
    if error.tensor not in OF and abs(error.number) > abs(NOWHERE) // 2:
        return (
            "That comes from an entry of the block table that is not in use. Do the table, from seq × stride_table on, "
            "and the context length belong to this sequence?"
        )
    return IDEAS[OF.get(error.tensor, "the keys")]


def tell(case: Case) -> str:
    heads = f"{case.q_heads} query head{'s' * (case.q_heads > 1)} over {case.kv_heads} KV head"
    heads += "s" * (case.kv_heads > 1)
    more = f"; stride_q_head = {HEAD_DIM + case.q_gap}" if case.q_gap else ""
    more += f"; the caches are {case.layout}" if case.layout != PLAIN else ""
    more += "; float16" * (case.dtype == torch.float16) + ", and keys that differ little" * case.alike
    return (
        f"{heads} (GROUP = {case.group}); contexts {list(case.contexts)}, block tables {case.tables}, BLOCK_SIZE = "
        f"{BLOCK_SIZE}, HEAD_DIM = {HEAD_DIM}{more}."
    )


def cases() -> Iterator[Case]:
    yield Case((3,), 1, 1)
    yield Case((3,), 6, 2)
    yield Case((3, 4), 2, 1)
    yield Case((2, 4, 6), 2, 1)
    yield Case((5, 3), 2, 2, INTERLEAVED)
    yield Case((5, 1), 2, 2, HEADS_FIRST)
    yield Case((2, 3), 2, 1, q_gap=2)
    yield Case((6,), 2, 1, dtype=torch.float16, alike=True)
    yield Case((11, 1), 4, 2, HEADS_FIRST, q_gap=1, dtype=torch.float16)


MISTAKES = """
q and out have a row for each query head. `head // GROUP` is the KV head, and only the caches have that.
~ head * stride_q_head => kv_head * stride_q_head
Axis 0 of the grid counts sequences, axis 1 query heads. You have swapped them, or used one of them twice.
~ tl.program_id(0), tl.program_id(1) => tl.program_id(1), tl.program_id(0)
or ~ tl.program_id(1) => tl.program_id(0)
In q and out, element d of query head h of sequence i is at i × stride_seq + h × stride_q_head + d.
~ seq * stride_seq => seq * stride_q_head
or ~ seq * stride_seq + head * stride_q_head => seq * stride_q_head + head * stride_seq
or ~ seq * stride_seq + head * stride_q_head => seq * stride_seq
or ~ seq * stride_seq + head * stride_q_head => head * stride_q_head
Two query heads are `stride_q_head` apart, which needn't be HEAD_DIM: q and out may be views of larger tensors.
~ head * stride_q_head => head * HEAD_DIM
Every program uses the same query. Its own is at seq × stride_seq + head × stride_q_head.
~ tl.load(q + offsets) => tl.load(q + dim)
or ~ tl.load(q + offsets) => tl.load(q + seq * stride_seq + dim)
Several heads store to the same elements: `out + seq * stride_seq + head * stride_q_head + dim`, as for q.
~ tl.store(out + offsets => tl.store(out + seq * stride_seq + dim
A head has HEAD_DIM elements, in q and in out. It is a tile: add `dim = tl.arange(0, HEAD_DIM)`.
~ tl.load(q + offsets) => tl.load(q + seq * stride_seq + head * stride_q_head)
or ~ head * stride_q_head + dim => head * stride_q_head
The query is an address until you load it: `tl.load(q + offsets)`.
~ tl.load(q + offsets).to(tl.float32) => q + offsets
Nearly right: in float32 it would pass. Query and keys are float16 here, and a product of two float16 values keeps only
three digits. Load the query as float32: `.to(tl.float32)`.
~ tl.load(q + offsets).to(tl.float32) => tl.load(q + offsets)
Everything is float32 here, and you round something to 16 bits.
~ out + offsets, result => out + offsets, result.to(tl.float16)
`head % number of KV heads` assigns heads round-robin. Neighbors share: the first GROUP query heads use KV head 0.
~ kv_head = head // GROUP => kv_head = head % (tl.num_programs(1) // GROUP)
`head % GROUP` is the index inside the group. The group, and so the KV head, is `head // GROUP`.
~ head // GROUP => head % GROUP
There are fewer KV heads than query heads; GROUP query heads share one: head // GROUP.
~ head // GROUP => head
or ~ head // GROUP => head * GROUP
GROUP needn't be 2, as in the example: head // GROUP.
~ head // GROUP => head // 2
KV head h starts at h × stride_head in the cache; move the pointers of both keys and values there.
~ head // GROUP => 0
or ~ v_cache + kv_head * stride_head => v_cache
or ~ k_cache + kv_head * stride_head => k_cache
KV heads are `stride_head` elements apart in the caches: move both pointers by that, not by another stride or HEAD_DIM.
~ cache + kv_head * stride_head => cache + kv_head * HEAD_DIM
or ~ cache + kv_head * stride_head => cache + kv_head * stride_slot
or ~ k_cache + kv_head * stride_head => k_cache + kv_head * stride_slot
or ~ cache + kv_head * stride_head => cache + kv_head * stride_q_head
or ~ cache + kv_head * stride_head => cache + kv_head
`attend_blocks` takes pointers to one element, the first of the KV head: it adds slots and dimensions itself.
~ cache + kv_head * stride_head => cache + kv_head * stride_head + dim
The table of sequence i starts at i × stride_table, which is the length of a row.
~ block_tables + seq * stride_table => block_tables
or ~ seq * stride_table => seq * BLOCK_SIZE
or ~ seq * stride_table => seq
Each sequence has one table, whichever head: row `seq`, not row `head`.
~ seq * stride_table => head * stride_table
After the values `attend_blocks` expects the address where the table begins. You pass a number: an entry, or the length.
~ table = block_tables + seq * stride_table => table = tl.load(block_tables + seq * stride_table)
Each sequence has a context length of its own: `tl.load(context_lens + seq)`.
~ tl.load(context_lens + seq) => tl.load(context_lens)
or ~ tl.load(context_lens + seq) => tl.load(context_lens + head)
`context_lens` is an address: `tl.load(context_lens + seq)`.
~ tl.load(context_lens + seq) => context_lens + seq
`context_lens` includes the newest token: pass the length to `attend_blocks` unchanged.
~ tl.load(context_lens + seq) => tl.load(context_lens + seq) + 1
or ~ tl.load(context_lens + seq) => tl.load(context_lens + seq) - 1
The scores aren't multiplied by `scale`: pass it on.
~ num_tokens, scale, => num_tokens, 1.0,
`attend_blocks` multiplies by `scale`. You do it a second time.
~ .to(tl.float32) => .to(tl.float32) * scale
or ~ offsets, result => offsets, result * scale
After `scale`, `attend_blocks` takes stride_block and stride_slot, as the kernel got them.
~ scale, stride_block, stride_slot => scale, stride_slot, stride_block
or ~ scale, stride_block, stride_slot => scale, BLOCK_SIZE * stride_slot, stride_slot
or ~ scale, stride_block, stride_slot => scale, stride_block, stride_head
In the call of `attend_blocks`, HEAD_DIM comes before BLOCK_SIZE.
~ stride_slot, HEAD_DIM, BLOCK_SIZE => stride_slot, BLOCK_SIZE, HEAD_DIM
Keys and values are swapped in the call of `attend_blocks`.
~ query, keys, values, => query, values, keys,
A kernel returns nothing: store the result, `tl.store(out + offsets, result)`.
- tl.store
Store into `out`. The caller still needs the queries.
~ tl.store(out => tl.store(q
Each query head has a program of its own, also those that share a KV head. Yours returns early.
- kv_head =
+ ...
+ if head % GROUP != 0:
+     return
"""


def for_the_compiler(dtype: torch.dtype) -> tuple[tuple, dict]:
    q, cache = torch.zeros(2, 4, HEAD_DIM, dtype=dtype), torch.zeros(4, BLOCK_SIZE, 2, HEAD_DIM, dtype=dtype)
    tables, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    arguments = (q, cache, cache, tables, lens, q, 0.3, *q.stride()[:2], *cache.stride()[:3], tables.stride(0))
    return arguments, dict(GROUP=2, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)


TASK = Task(
    reference="lessons_lib.kernels.simple_paged:decode_heads_kernel",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    enough=3,
    about={
        **{
            f"{what} in program {(seq, head)}": idea
            for what, idea in IDEAS.items()
            for seq in range(3)
            for head in range(6)
        },
        "the tensors that are stored to": "`tl.store(out + offsets, result)`: to `out`, and to nothing else.",
        "out": "You read the right slots. Look at the arguments of `attend_blocks`: query, keys, values, table, "
        "num_tokens, scale, stride_block, stride_slot, and the two constants.",
        "the race within a program": RACE_WITHIN,
        "the race between programs": RACE_BETWEEN,
    },
    probes=(compiles(*map(for_the_compiler, (torch.float32, torch.float16)), kernel=lambda attempt: attempt),),
)

EXERCISE = TASK.exercise(
    id="07.3",
    title="all sequences, all heads",
    points=3,
    time_limit=10.0,
    hints=(
        "`single_head_kernel`, with pointers moved for each program. Program (i, h) needs its query, its KV head, its "
        "row of the block tables, its context length, and the start of its output.",
        "Program id 0 is the sequence, program id 1 the query head. The KV head is head // GROUP; move the pointers of "
        "both caches to it. Move block_tables to the sequence's row. Load the length. Then call attend_blocks, and "
        "store.",
        "`offsets = seq * stride_seq + head * stride_q_head + dim` works for both q and out. "
        "`keys = k_cache + head // GROUP * stride_head`, the same for the values; "
        "`table = block_tables + seq * stride_table`; `num_tokens = tl.load(context_lens + seq)`.",
    ),
)
