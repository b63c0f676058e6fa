"""Pictures of every kind, from small to as large as each can be, and the data that they show."""

import random
from dataclasses import replace

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import torch
from engine_cases import an_engine, greedy
from paged_cases import make_case
from scheduling_cases import a_scheduler

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine, tag_tokens
from lessons_lib.attention.packing import pack
from lessons_lib.kernels.basics import add_kernel
from lessons_lib.kernels.simple_paged import decode_heads, decode_heads_kernel
from lessons_lib.kv_cache.block_copies import COPY, SWAP_IN, SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.measuring.arrivals import Arrival, traffic
from lessons_lib.measuring.prefix_places import PrefixPlaces
from lessons_lib.measuring.roofline import Machine, Work
from lessons_lib.measuring.simulator import Simulation, StepCost, simulate
from lessons_lib.recording.all_reduce_steps import record_all_reduce
from lessons_lib.recording.cache_growth import CacheStep
from lessons_lib.recording.engine_moments import EngineMoment, Slot, Told
from lessons_lib.recording.kernel_accesses import Recorder, record_kernel
from lessons_lib.recording.memory_steps import MemoryStep
from lessons_lib.recording.packed_steps import PackedStep
from lessons_lib.recording.pool_states import PagedStep, PoolState, TableState, pool_state, queue_state
from lessons_lib.recording.replica_streams import StreamRecord
from lessons_lib.recording.server_turns import ServerMoment
from lessons_lib.recording.softmax_steps import record_blocks
from lessons_lib.recording.trace import RowWork, Step, Trace
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.viz.batches import draw_packed_step, draw_padded_batch, draw_slot_rows
from lessons_lib.viz.batches.verified_pass import VerifiedRow, draw_verified_pass
from lessons_lib.viz.cache import draw_attention, draw_cache_growth
from lessons_lib.viz.charts import RooflinePoint, draw_bars, draw_roofline, draw_token_bars, line_chart
from lessons_lib.viz.engine_run import draw_engine, watch_engine
from lessons_lib.viz.failed_step import AGAIN, ENDS, draw_failed_step
from lessons_lib.viz.launches import draw_launches, watch_launches
from lessons_lib.viz.masks import draw_mask, watch_rules
from lessons_lib.viz.pool import draw_kinds, draw_one_slot, draw_pool, draw_pool_access, draw_shelves, watch_paging
from lessons_lib.viz.pool.shelves import Shelves
from lessons_lib.viz.pressure import draw_free_queue, draw_pressure
from lessons_lib.viz.programs import draw_program, draw_strides, watch
from lessons_lib.viz.replicas import (
    draw_all_reduce,
    draw_cut_matrices,
    draw_prefix_places,
    draw_streams,
    watch_all_reduce,
    watch_streams,
)
from lessons_lib.viz.serving import LoadPoint, draw_endings, draw_load, draw_server, watch_server
from lessons_lib.viz.softmax import draw_rescaling, draw_softmax_step
from lessons_lib.viz.stale_graph import draw_stale_graph
from lessons_lib.viz.timelines import draw_compare, draw_gantts, draw_timeline

ODD = "<b> & 'c'"  # a name that must be escaped

# Timelines


def step(*rows, waiting=()):
    return Step(tuple(rows), 0.01, tuple(waiting), 1, 64, 10)


def wave(ends, padded=4):
    """A static wave: request -> number of its steps; the rows of ended requests are computed along."""
    steps = [step(*(RowWork(name, "prefill", padded, padded - n) for n, name in enumerate(ends)), waiting="E")]
    for t in range(1, max(ends.values())):
        works = (RowWork(n, "decode", 1, 1) if t < end else RowWork(n, "finished", 1, 0) for n, end in ends.items())
        steps.append(step(*works, waiting="E"))
    return Trace(steps)


STATIC = wave({"A": 2, "B": 5})
CONTINUOUS = Trace(
    [
        step(RowWork("A", "prefill", 4, 4), RowWork("B", "prefill", 0, 0)),
        step(RowWork("A", "decode", 1, 1), RowWork("B", "prefill", 3, 3)),
        step(RowWork(None, "idle", 1, 0), RowWork("B", "decode", 1, 1)),
    ]
)
LONG_TRACE = Trace([step(*(RowWork(str(s + 8 * (t // 60)), "decode", 1, 1) for s in range(8))) for t in range(300)])
GROWTH = [
    CacheStep(1, "prefill", ["Once", " upon", ' "a"', " <b>", " &", "\n"], 0, 6, " fox"),
    CacheStep(2, "decode", [" fox"], 6, 7, " ran"),
    CacheStep(3, "decode", [" ran"], 7, 8, "."),
]
COST = StepCost(8, 2, 1)


def simulated(*requests, **limits):
    return simulate(a_scheduler(**limits), [Arrival(*request) for request in requests], COST, keep_steps=True)


# B comes during A's first chunk, waits, and is done before A; C comes when both have gone.
SMALL_RUN = simulated(
    ("A", 0, 5, 3, 9), ("B", 1, 1, 1, 9), ("C", 100, 1, 2, 9), max_num_seqs=2, max_num_batched_tokens=4
)
LONG_NAMES = [replace(one, id=f"customer {n} with {ODD}") for n, one in enumerate(traffic(6, 0.05, most=40, seed=3))]
LONG_RUN = simulate(a_scheduler(), LONG_NAMES, COST, keep_steps=True)


# Batches and masks


def packed_step(new_lens, cached_lens, names="ABCDEFGHIJKLMNOPQRSTUVWXYZ", left=(), waiting=()):
    """A step whose row holds the tokens 10, 11, 12, ... and whose sequences get the tokens 500, 501, ..."""
    names, token, rows = tuple(names[: len(new_lens)]), 10, []
    for length in new_lens:
        rows.append(list(range(token, token + length)))
        token += length
    joined = tuple(name for name, cached in zip(names, cached_lens) if not cached)
    new = tuple(range(500, 500 + len(names)))
    return PackedStep(names, pack(rows, cached_lens), new, joined, tuple(left), tuple(waiting))


MIXED_ROW = packed_step([1, 1, 3], [4, 2, 0], left="B", waiting="DE")


def pass_of(lengths, cached=None, padded=0):
    """Tags of queries and keys: cached ones of all sequences first, then the new ones, then padding."""
    cached = cached or [0] * len(lengths)
    padding = Tags(torch.full((padded,), PADDING), torch.arange(padded))
    queries = tag_tokens(lengths, cached).followed_by(padding)
    return queries, tag_tokens(cached).followed_by(queries)


def mask_of(lengths, cached=None, padded=0, rules=RULES, **more):
    queries, keys = pass_of(lengths, cached, padded)
    return draw_mask(combine(rules, queries, keys), queries, keys, rules=rules, **more)


SCORES = torch.tensor([1.2, 4.1, -2.0, 0.3, 3.9, 0.5, -torch.inf, -1.0, 7.3, 2.0])
VALUES = torch.arange(30, dtype=torch.float32).reshape(10, 3) / 10 - 1.5
SOFTMAX = record_blocks(SCORES, VALUES, 4)

# Pools


def pool_of(num_blocks, block_size, held, event="", changed=()):
    pool = BlockPool(num_blocks, block_size)
    tables = {name: BlockTable(pool) for name in held}
    for name, tokens in held.items():
        tables[name].append(tokens)
    return pool_state(pool, tables, event, changed)


SMALL_POOL = PoolState(
    12, 4, (8, 9, 10, 11, 2, 1, 0), (TableState("B", (3, 4, 7, 6), 13), TableState("C", (5,), 2)),
    "B grows and takes block 6.", (6,),
)  # fmt: skip


def paged_step(num_blocks, block_size, sizes, seed=0):
    """A step with shuffled blocks. `sizes`: request -> (tokens cached before, new tokens)."""
    free, tables, written = list(range(num_blocks)), {}, {}
    random.Random(seed).shuffle(free)
    for name, (cached, new) in sizes.items():
        table = [free.pop() for _ in range(-(-(cached + new) // block_size))]
        tables[name] = tuple(table)
        written[name] = tuple(table[p // block_size] * block_size + p % block_size for p in range(cached, cached + new))
    return PagedStep(num_blocks, block_size, tables, written, {name: sum(size) for name, size in sizes.items()})


def large_paged_step(num_blocks, block_size):
    room = num_blocks * block_size // 8
    sizes = {"A": (room, 1), "B": (0, min(room, 99)), ODD: (room, 1), "D": (room, 2)}
    return paged_step(num_blocks, block_size, sizes)


# B's tokens 0 to 5 in blocks 4, 1; A's token 6 in its second block; C comes with three.
MIXED_ACCESS = PagedStep(
    8, 4, {"A": (2, 5), "B": (4, 1), "C": (7,)}, {"A": (22,), "B": (5,), "C": (28, 29, 30)}, {"A": 7, "B": 6, "C": 3}
)
QUIET = MemoryStep(
    index=0, num_blocks=0, block_size=4, owners={}, filled={}, cached=frozenset(), swapped={}, num_swap_blocks=0,
    counts={}, admitted=(), preempted=(), finished=(), swapped_out=(), swapped_in=(), waiting=(), block_copies=(),
    hits={}, evicted=0,
)  # fmt: skip
# A and B begin alike in block 2, and block 5 is full of C; D went out, E came back, F was dropped.
BUSY = replace(
    QUIET, index=8, num_blocks=10, owners={2: ("A", "B"), 3: ("A",), 4: ("B",), 5: ("C",), 6: ("E",), 9: ("B",)},
    filled={2: 4, 3: 1, 4: 3, 5: 4, 6: 4, 9: 2}, cached=frozenset({0, 7}), swapped={"D": (1, 2)}, num_swap_blocks=6,
    counts={"A": 1, "B": 1, "C": 3, "E": 1}, admitted=("C", "E"), preempted=("D", "F"), finished=("G",),
    swapped_out=("D",), swapped_in=("E",), waiting=("F", "D"), hits={"C": 4}, evicted=1,
    block_copies=(BlockCopy(SWAP_OUT, 5, 1), BlockCopy(SWAP_OUT, 6, 2), BlockCopy(SWAP_IN, 3, 6), BlockCopy(COPY, 4, 9)),
)  # fmt: skip


def under_pressure(num_blocks, num_swap_blocks):
    owners = {block: tuple("ABCDEF"[: 1 + block % 3]) for block in range(num_blocks // 2)}
    cached = frozenset(range(num_blocks // 2, num_blocks * 3 // 4))
    return replace(
        QUIET, num_blocks=num_blocks, owners=owners, filled=dict.fromkeys(owners, 4), cached=cached, waiting=(ODD,),
        num_swap_blocks=num_swap_blocks,
    )  # fmt: skip


def queue_moments():
    pool, names = PrefixCache(4, 16), {b"a": "a", b"b": "b"}
    blocks = pool.allocate(2)
    for block, one in zip(blocks, (b"a", b"b")):
        pool.cache_full_block(block, one)
    states = [queue_state(pool, "X has two full blocks", names)]
    pool.free(blocks)
    states.append(queue_state(pool, "X has ended", names))
    pool.touch([0])
    return [*states, queue_state(pool, "Y uses block 0", names)]


# Kernels

ADD = record_kernel(add_kernel, (3,), torch.ones(10), torch.ones(10), torch.ones(10), 10, BLOCK=4)
DECODE_CASE = make_case([1] * 3, [17, 5, 24])


def _recorded_decode(**options):
    kernel = Recorder(decode_heads_kernel, **options)
    decode_heads(*DECODE_CASE.decode_inputs, kernel=kernel)
    return kernel.recording


DECODE = _recorded_decode()

# Engines and servers

ENGINE_MOMENTS = [
    EngineMoment("A comes", (Slot("A", "prefill"),), (ODD,), 8, {2: ("A",)}, frozenset(), {"A": Told("")}),
    EngineMoment(
        "", (Slot("A", "decode"), None, Slot("B/1", "prefill")), (), 8, {2: ("A",), 5: ("A", "B/1")}, frozenset({0}),
        {"A": Told("a word " * 50), ODD: Told("", "error: no\nluck"), "B/1": Told("one", "length")},
    ),
]  # fmt: skip

SERVER_MOMENTS = [
    ServerMoment("A's client sends", ("add A", f"abort {ODD}"), False, (), {"A": (), ODD: ()}, {"A": (), ODD: ()}, {}),
    ServerMoment(
        "turn 1",
        (),
        True,
        ("A", ODD),
        {"A": ("x",) * 40, ODD: ("<b>",)},
        {"A": ("one ",) * 30, ODD: ()},
        {ODD: "has left"},
    ),
]

MOVED = StreamRecord("A", [(0, 0), (1, 0), (4, 1)], (5, "length"))
CUT = StreamRecord("B", [(0, 0)], (2, "error"))
LOAD = [LoadPoint(10, 10, 0.2), LoadPoint(30, 2, 9.0)]
MACHINE = Machine("a machine", 1e12, 1e14)  # ridge at 100
TWO_POINTS = [
    RooflinePoint("slow", Work(1000, 4000), 4000 / 2e12, "one"),
    RooflinePoint("fast", Work(10, 10000), 10000 / 5e13, "other"),
]
TOKENS = {"temperature 1": [0.5, 0.25, 0.125], "top_k 2": [0.75, 0.25, 0.0]}
THREE_TOKENS = [" was", " said", " and"]
ROWS = [[1.0, 0.0], [0.0, 1.0], [2.0, -1.0]]
WEIGHTS = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]]


def busy_engine():
    engine = an_engine()
    engine.add_request([1, 2, 3], greedy(2), request_id="A")
    return engine


def of_stepper(make):
    return lambda: make().pictures


PICTURES = {
    "timeline": lambda: draw_timeline(STATIC),
    "part of a timeline": lambda: draw_timeline(STATIC, 1, title="a < b"),
    "long timeline": lambda: draw_timeline(LONG_TRACE),
    "no timeline": lambda: draw_timeline(Trace()),
    "compare": lambda: draw_compare(STATIC, CONTINUOUS, 3),
    "growth": lambda: draw_cache_growth(GROWTH, 1),
    "attention": lambda: draw_attention(["Once", " upon", " a"], ROWS, ROWS, ROWS, WEIGHTS, ROWS),
    "lines": lambda: line_chart([1, 2], {"a": [1, 2], "b": [3, 2]}, xlabel="x", ylabel="y", alt="Two.", log="xy"),
    "bars": lambda: draw_bars({"a": 1.0, ODD: 900.0}, "µs", ODD, "a note", ["a"], ("least", 5.0), 8.0),
    "roofline": lambda: draw_roofline(MACHINE, TWO_POINTS, note="recorded"),
    "no points": lambda: draw_roofline(MACHINE, []),
    "token bars": lambda: draw_token_bars(THREE_TOKENS, TOKENS),
    "gantts": lambda: draw_gantts({"a": Simulation(), "b": SMALL_RUN, "a long name " * 9: LONG_RUN}),
    "padded batch": lambda: draw_padded_batch("AB", [["", "a"], ["b", "c"]], [[0, 1], [1, 1]], [[1, 0], [0, 1]]),
    "slot rows": lambda: draw_slot_rows(CONTINUOUS, 2, 16),
    "kinds": lambda: draw_kinds(
        {"A": 9, ODD: 1}, {"blocks": ["A", None, "A", None, ODD], "states": [None, "A", ODD]},
        {"blocks": ["A", "A", None, None, ODD], "states": [None, "A", None]}, 3,
    ),
    "no kinds": lambda: draw_kinds({}, {"blocks": [None]}),
    "shelves": lambda: draw_shelves(
        [Shelves("A, 3 blocks", {"pool": ("A0", "A1", None), "host": (None,) * 25}),
         Shelves("B, 2 blocks", {"pool": ("A0", "B0", "B1"), "host": ("A1", *[None] * 24)})], 1,
    ),
    "verified pass": lambda: draw_verified_pass(
        (VerifiedRow("A", 1, (2, 3, 4), (2, 9, 4, 5), 2, (0, 3), 1), VerifiedRow("B", 1, (), (7,), 1, (1,), 0)),
        2,
        lambda token: "<&\n\"'",
    ),
    **{
        f"packed row {name}": lambda row=row: draw_packed_step(row, lambda token: "<&\n\"'")
        for name, row in {
            "mixed": MIXED_ROW,
            "empty": packed_step([], []),
            "one": packed_step([1], [0]),
            "decodes": packed_step([1] * 26, [50] * 26),
            "long": packed_step([1] * 7 + [2, 40], [90] * 7 + [0, 0]),
            "prefills": packed_step([40] * 4, [0] * 4),
            "odd": packed_step([2], [1], names=[ODD]),
        }.items()
    },
    **{
        f"mask {name}": lambda size=size: mask_of(*size, row=0, title="a title")
        for name, size in {
            "1": ([1],),
            "9": ([4, 3, 2],),
            "99": ([40, 30, 29],),
            "100": ([1] * 100,),
            "of decodes": ([1] * 6, [16, 15, 14, 13, 12, 11]),
            "mixed": ([1] * 20 + [9], [3] * 20 + [10]),
            "padded": ([8, 7], [100 - 23, 0], 8),
        }.items()
    },
    "rules": of_stepper(lambda: watch_rules("CE", [["The"], ["It", " was"]], lambda mask: [" ran.", " dry."])),
    "softmax": lambda: [draw_softmax_step(SOFTMAX, i, list("abcdefghij")) for i in range(len(SOFTMAX))],
    "strides": lambda: draw_strides({ODD: torch.zeros(2, 4, 8), "a view": torch.zeros(2, 2, 4, 8)[:, 0]}),
    "rescaling": lambda: draw_rescaling([1, 2], [10, 20], 3, 30),
    "pool": lambda: draw_pool(SMALL_POOL),
    **{
        f"pool of {blocks} x {size}": lambda blocks=blocks, size=size: draw_pool(
            pool_of(blocks, size, {ODD: blocks * size // 2}, event="<script>" * 30)
        )
        for blocks, size in ((40, 1), (40, 64), (64, 16), (0, 1), (7, 5), (200, 16))
    },
    "access": lambda: draw_pool_access(MIXED_ACCESS),
    "no access": lambda: draw_pool_access(PagedStep(8, 4, {}, {}, {})),
    **{
        f"access to {blocks} x {size}": lambda blocks=blocks, size=size: draw_pool_access(large_paged_step(blocks, size))
        for blocks, size in ((8, 16), (37, 8), (60, 4), (97, 16))
    },
    "paging": of_stepper(lambda: watch_paging({"A": 5, "B": 1}, {"A": 9, "B": 2}, row=16, block_size=4)),
    "one slot": lambda: draw_one_slot("A", [0, 1, 5], 4, 9, 6),
    "pressure": lambda: draw_pressure(BUSY),
    **{
        f"pressure on {blocks} + {swap}": lambda blocks=blocks, swap=swap: draw_pressure(under_pressure(blocks, swap))
        for blocks, swap in ((0, 0), (1, 8), (40, 120), (250, 8))
    },
    "free queue": lambda: draw_free_queue(queue_moments()),
    "program": lambda: draw_program(ADD, 1),
    "decode": lambda: draw_program(DECODE, 6, ["sequence", "query head"]),
    "moments": of_stepper(lambda: watch(_recorded_decode(moments_of=(1, 1)), ["sequence", "query head"])),
    "engine": lambda: draw_engine(ENGINE_MOMENTS, 0),
    "engine later": lambda: draw_engine(ENGINE_MOMENTS, 1),
    "engine run": of_stepper(lambda: watch_engine(busy_engine())),
    "failed step": lambda: draw_failed_step({"forward": {"scheduled": ENDS, "waiting": AGAIN}}),
    "load": lambda: draw_load({"all are taken": LOAD}, target=0.5, knee=20),
    "places": lambda: draw_prefix_places([PrefixPlaces("round robin", {"A": [5, 7], "B": [0, 4]}, 0.42)], {"A": 7, "B": 4}),
    "streams": lambda: draw_streams([MOVED, CUT], 2, lost=(0, 2)),
    "cut matrices": lambda: draw_cut_matrices(4, 12, 16, 12),
    "ring": of_stepper(lambda: watch_all_reduce(record_all_reduce(all_reduce, 4))),
    "large ring": lambda: draw_all_reduce(record_all_reduce(all_reduce, 7), 1),
    "streams so far": of_stepper(lambda: watch_streams([MOVED, CUT], 2, lost=(0, 2))),
    "launches": lambda: draw_launches(310),
    "stale graph": lambda: draw_stale_graph(),
    "launches played": lambda: watch_launches().pictures[-1],
    "endings": lambda: draw_endings(),
    "server": of_stepper(lambda: watch_server(SERVER_MOMENTS)),
    "server alone": lambda: draw_server(SERVER_MOMENTS[:1], 0),
}  # fmt: skip
