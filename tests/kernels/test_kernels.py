"""Both attention kernels against a float32 reference that gathers the blocks.

Without a GPU, through Triton's interpreter.
"""

import sys
import types
from types import SimpleNamespace

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
import triton
from how_many import by_day
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import TINY_TOKENIZER, ragged_requests
from paged_cases import as_views, by_launching, error, make_case

from lessons_lib.attention.packing import pack
from lessons_lib.attention.score_terms import ScoreTerms
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.engine.warm_up import steps_to_warm_up
from lessons_lib.kernels import launch
from lessons_lib.kernels.launch import (
    MAX_KEYS_PER_SPLIT,
    MAX_SPLITS,
    MIN_KEYS_PER_SPLIT,
    MIN_SPLITS,
    Tiles,
    _use_int64,
    hopper_pays,
    launch_decode,
    launch_prefill,
    plan_triton,
    split_limits,
)
from lessons_lib.kernels.paged_flash import decode_kernel, prefill_kernel
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.kernel_accesses import Recorder

DEVICE = kernel_device()
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
EXAMPLES = by_day(20, 40) if DEVICE == "cpu" else 12  # on a GPU, nearly every example compiles kernels of its own

CASES = {
    "splits, and one that needs only the first": dict(q_lens=[1] * 3, context_lens=[1025, 3, 512], block_size=64),
    "prefills, chunks and decodes": dict(q_lens=[5, 1, 20, 1, 3], context_lens=[5, 17, 33, 1, 30]),
    "more query heads than rows": dict(q_lens=[2, 1], context_lens=[12, 9], q_heads=160, kv_heads=1),
}


def check(what, got, expected, dtype):
    assert got.shape == expected.shape and got.dtype == dtype
    assert error(got, expected) < TOLERANCE[dtype], f"{what}: {error(got, expected):.2g}"  # NaN is never less


@pytest.mark.parametrize("name", CASES)
def test_fixed_cases_equal_the_gathered_reference(name):
    case = make_case(**CASES[name], device=DEVICE)
    expected, dtype = case.reference(), case.q.dtype
    check("varlen", case.varlen(), expected, dtype)
    # The maxima are upper bounds: a caller with a captured graph gives those of the largest batch.
    check("varlen, maxima too large", case.varlen(max_seqlen_q=60, max_context_len=2000), expected, dtype)
    if set(CASES[name]["q_lens"]) == {1}:
        check("decode", case.decode(), expected, dtype)


@st.composite
def random_cases(draw):
    block_size = draw(st.sampled_from([8, 16, 24, 32, 64]))
    edges = st.sampled_from([1, block_size - 1, block_size, block_size + 1])
    cached = draw(st.lists(edges | st.integers(0, 100), min_size=1, max_size=4))
    new = [draw(st.just(1) | edges | st.integers(1, 30)) for _ in cached]
    q_heads, kv_heads = draw(st.sampled_from([(4, 2), (2, 2), (1, 1), (7, 1), (14, 2), (6, 2), (20, 1)]))
    return dict(
        q_lens=new,
        context_lens=[a + b for a, b in zip(cached, new)],
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 64, 80, 96, 128, 256])),
        block_size=block_size,
        dtype=draw(st.sampled_from(DTYPES)),
        shared=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=EXAMPLES)
@given(
    arguments=random_cases(),
    layout=st.sampled_from(["of their own", "keys beside values", "heads first", "one of several layers"]),
    chosen=st.booleans(),
    rows=st.sampled_from([16, 32, 64]),
    keys=st.sampled_from([16, 32, 64]),
    split=st.sampled_from([16, 40, 64, 1000]),
)
def test_random_cases_equal_the_gathered_reference(arguments, layout, chosen, rows, keys, split):
    case = as_views(make_case(**arguments, device=DEVICE), layout)
    expected, dtype = case.reference(), arguments["dtype"]
    if not chosen:
        check("launched", by_launching(case, None, rows, keys, split, use_int64=keys == 64), expected, dtype)
    elif set(arguments["q_lens"]) == {1}:
        check("decode", case.decode(), expected, dtype)
    else:
        check("varlen", case.varlen(), expected, dtype)


# --- what the kernels read and write


def cells_read(recording, tensor, head, programs):
    """(block, slot) of every slot of one KV head that these programs read, as often as its first element was read."""
    read = []
    for program in programs:
        for access in program.accesses:
            if access.tensor == tensor:
                indices = recording.tensors[tensor].indices_of(access.offsets)
                assert (indices[:, 2] == head).all(), "another head's keys"
                read += map(tuple, indices[indices[:, 3] == 0][:, :2].tolist())
    return sorted(read)


def cells_of(case, seq, start, end):
    size = case.k_cache.shape[1]
    return sorted((int(case.block_tables[seq, position // size]), position % size) for position in range(start, end))


@pytest.mark.parametrize("window", [None, 10])
def test_a_decode_program_reads_each_key_of_its_split_and_window_once_and_nothing_else(window):
    case, terms = make_case([1, 1, 1], [1, 17, 40], q_heads=14, kv_heads=2), ScoreTerms(window=window)
    kernel, out, split = Recorder(decode_kernel), torch.full_like(case.q, float("nan")), 32 if window is None else 16
    options = dict(tiles=Tiles(16, 16, 4, 2), split_size=split, kernel=kernel)
    launch_decode(case.q, *case.cache, out, case.scale, 40, terms=terms, **options)
    check("recorded", out, case.reference(terms), case.q.dtype)
    for program in kernel.recording.programs:
        head, seq, number = program.ids
        context = int(case.context_lens[seq])
        first = max(0, context - (window or context))  # splits are counted from the first visible key
        start, end = first + number * split, min(context, first + (number + 1) * split)
        for cache in ("k_cache", "v_cache"):
            assert cells_read(kernel.recording, cache, head, [program]) == cells_of(case, seq, start, end)


def test_a_prefill_program_reads_no_key_that_none_of_its_tokens_sees():
    case = make_case([21, 1, 9], [30, 12, 9], q_heads=4, kv_heads=2)
    kernel, out = Recorder(prefill_kernel), torch.zeros_like(case.q)
    launch_prefill(case.q, *case.cache, out, case.scale, tiles=Tiles(16, 16, 4, 2), kernel=kernel)
    is_prefill = torch.tensor([index != 21 for index in range(31)])
    check("recorded", out[is_prefill], case.reference()[is_prefill], case.q.dtype)
    assert not out[21].any(), "the decode is left to the other kernel"
    seen = []
    for program in kernel.recording.programs:
        stored = [access for access in program.accesses if access.kind == "store"]
        if stored:
            head, lines = program.ids[0], sorted({line for line, _ in kernel.recording.indices(stored[0], 2)})
            seq, last = (0, 9 + lines[-1]) if lines[-1] < 21 else (2, lines[-1] - 22)
            assert cells_read(kernel.recording, "k_cache", head, [program]) == cells_of(case, seq, 0, last + 1)
            seen += [(line, head) for line in lines]
    assert sorted(seen) == [(line, head) for line in range(31) if line != 21 for head in (0, 1)]


# --- the kernel for Hopper GPUs: who gets it


@pytest.fixture
def launched(monkeypatch):
    """Calls of either kernel's launch, on a machine that passes for one with a Hopper GPU."""
    calls, stub = [], types.ModuleType("lessons_lib.kernels.hopper_prefill")
    stub.launch_hopper_prefill = lambda *args: calls.append("hopper")
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setattr(launch, "_is_hopper", lambda device: True)
    other = type("Kernel", (), {"__getitem__": lambda self, grid: lambda *args, **kwargs: calls.append("any")})()
    monkeypatch.setattr(launch, "prefill_kernel", other)
    return calls


def prefill_of(
    tokens=1024, num_seqs=1, q_heads=8, head_dim=128, block_size=16, dtype=torch.float16, value_dim=None,
    view=lambda cache: cache, **options,
):  # fmt: skip
    q = torch.zeros(tokens, q_heads, head_dim, dtype=dtype)
    caches = [view(torch.zeros(6, block_size, 2, dim, dtype=dtype)) for dim in (head_dim, value_dim or head_dim)]
    lens = torch.ones(num_seqs, dtype=torch.int32)
    launch_prefill(q, *caches, torch.zeros(num_seqs, 4, dtype=torch.int32), lens, lens, q, 1.0, **options)


LONG = dict(head_dim=64, tokens=4096)


@pytest.mark.parametrize(
    "kernel, given",
    [
        ("hopper", dict()),
        ("hopper", dict(num_seqs=50)),
        ("hopper", LONG),
        ("hopper", dict(**LONG, num_seqs=250, max_seqlen_q=1024)),
        ("hopper", dict(dtype=torch.bfloat16, block_size=64)),
        ("hopper", dict(view=lambda cache: torch.zeros(6, 16, 4, 128, dtype=cache.dtype)[:, :, :2])),
        ("any", dict(tokens=1023)),
        ("any", LONG | dict(tokens=4095)),
        ("any", dict(**LONG, max_seqlen_q=1023)),
        ("hopper", dict(head_dim=96)),
        ("any", dict(head_dim=72)),
        ("any", dict(head_dim=160)),
        ("any", dict(value_dim=64)),
        ("any", dict(block_size=24)),
        ("any", dict(block_size=128)),
        ("any", dict(q_heads=130)),
        ("any", dict(dtype=torch.float32)),
        ("any", dict(terms=ScoreTerms(window=9))),
        ("any", dict(tiles=Tiles(16, 16, 4, 2))),
        ("any", dict(use_int64=False)),
        ("any", dict(view=lambda cache: cache.transpose(1, 2).contiguous().transpose(1, 2))),
        ("any", dict(view=lambda cache: torch.zeros(6, 2, 16, 2, 128, dtype=cache.dtype)[:, 0])),
        ("any", dict(view=lambda cache: torch.zeros(6, 16, 2, 256, dtype=cache.dtype)[..., :128])),
    ],
)
def test_long_prefills_take_the_hopper_kernel_and_all_others_the_one_for_any_gpu(launched, kernel, given):
    prefill_of(**given)
    assert launched == [kernel]
    prefill_of(**given, kernel=launch.prefill_kernel)
    assert launched == [kernel, "any"], "a kernel that is named is the one that runs"


@pytest.mark.parametrize(
    "version, major, taken", [("3.6.0", 9, True), ("3.7.1", 9, True), ("3.8.0", 9, False), ("3.6.0", 10, False)]
)
def test_what_counts_as_a_hopper(monkeypatch, version, major, taken):
    monkeypatch.setattr(triton, "__version__", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    assert launch._is_hopper.__wrapped__(torch.device("cuda")) is taken
    assert not launch._is_hopper.__wrapped__(torch.device("cpu"))


@given(
    st.sampled_from([1, 2, 8, 256]),
    st.integers(1, 10_000),
    st.sampled_from([64, 96, 128]),
    st.lists(st.sampled_from([2, 100, 1023, 1024, 5000]), min_size=1, max_size=300),
)
def test_warming_up_meets_each_kernel_of_steps_that_are_not_captured(max_num_seqs, room, head_dim, lengths):
    tables, buffers = SimpleNamespace(max_num_seqs=max_num_seqs), SimpleNamespace(longest=room)
    no_graphs = dict(sizes=[2], token_counts=[], verifying=[], store=None, cache=SimpleNamespace(block_size=1))
    runner = SimpleNamespace(tables=tables, buffers=buffers, null_block=0, **no_graphs)
    planned = [list(step.num_scheduled_tokens.values()) for _, step in steps_to_warm_up(runner)]
    kernels = {hopper_pays(sum(each), head_dim, max(each)) for each in planned}
    assert all(len(each) <= max_num_seqs and max(each) <= max(room, 2) for each in planned)
    lengths = [min(length, room) for length in lengths[:max_num_seqs]]
    assert hopper_pays(sum(lengths), head_dim, max(lengths)) in kernels


# --- refusals


def broken(**changes):
    case = make_case([2, 1], [2, 9], device=DEVICE)
    for name, change in changes.items():
        setattr(case, name, change(getattr(case, name)))
    return case


TENSORS = ("q", "k_cache", "v_cache")


@pytest.fixture
def no_kernel(monkeypatch):
    """A refused call launches no kernel, so nothing is written."""
    for name in ("launch_decode", "launch_prefill"):
        monkeypatch.setattr(launch, name, lambda *args, **kwargs: pytest.fail("a kernel was launched"))


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(q=lambda t: t[0]), r"q has shape \[4, 32\]"),
        (dict(k_cache=lambda t: t[0]), r"k_cache \[8, 2, 32\]; they must be"),
        (dict(v_cache=lambda t: t[:1]), "both must be the same"),
        (dict(v_cache=lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)), "both must be the same"),
        (dict(q=lambda t: t[..., :16]), "4 heads of size 16, the cache 2 of size 32"),
        (dict(q=lambda t: t[:, :3]), "3 heads of size 32, the cache 2"),
        (dict.fromkeys(TENSORS, lambda t: t.repeat(*[1] * (t.dim() - 1), 9)), "the head size is 288; .* up to 256"),
        (dict.fromkeys(TENSORS, torch.Tensor.double), "the same dtype, float32"),
        (dict(q=lambda t: t.half()), "q is torch.float16, the caches torch.float32"),
        (dict(v_cache=lambda t: t.half()), "the caches torch.float32 and torch.float16"),
        (dict(q=lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)), "contiguous"),
        (dict(block_tables=lambda t: t[:1]), "block_tables has shape"),
        (dict(context_lens=lambda t: t[:, None]), r"context_lens \[2, 1\]"),
        (dict(block_tables=lambda t: t.long()), "block_tables is torch.int64"),
        (dict(block_tables=lambda t: t.T.contiguous().T), "tables contiguous"),
        (dict(context_lens=lambda t: t.long()), "context_lens torch.int64"),
        (dict(context_lens=lambda t: t.to("meta")), "the tensors are on cp?u?.*meta; move them to one device"),
        (dict(cu_seqlens_q=lambda t: t[:-1]), r"of shape \[2\] on .*; for 2 sequences it must be torch.int32 of shape"),
        (dict(cu_seqlens_q=lambda t: t.long()), "cu_seqlens_q is torch.int64"),
        (dict(cu_seqlens_q=lambda t: t.to("meta")), r"of shape \[3\] on meta"),
    ],
)
def test_what_the_kernels_do_not_support_is_refused(no_kernel, changes, says):
    with pytest.raises(ValueError, match=says):
        broken(**changes).varlen(max_seqlen_q=2, max_context_len=9)


@pytest.mark.skipif(DEVICE == "cuda", reason="compiled, bfloat16 is taken")
def test_bfloat16_is_refused_where_kernels_are_interpreted(no_kernel):
    with pytest.raises(ValueError, match="interpreter reads bfloat16"):
        make_case([2, 1], [2, 9], dtype=torch.bfloat16).varlen()


# The row has 2 + 1 tokens, contexts of 2 and 9, tables of 3 blocks of 8, and a pool of 6 blocks.
@pytest.mark.parametrize(
    "name, where, value, says",
    [
        ("context_lens", 0, 1, "is 1; sequence 0 has 2 new tokens, .* room for 24, so it must be 2 to 24"),
        ("context_lens", 1, 0, "is 0; sequence 1 has 1 new tokens?, .* must be 1 to 24"),
        ("context_lens", 1, -9, "is -9"),
        ("context_lens", 1, 25, "is 25; .* room for 24"),
        ("context_lens", 1, 24, r"block_tables\[1, 2\] is -1000000; the cache has blocks 0 to 5"),
        ("block_tables", (1, 1), 6, "is 6; the cache has blocks 0 to 5"),
        ("block_tables", (0, 0), -1, "is -1; "),
        ("cu_seqlens_q", 0, 1, r"is \[1, 2, 3\]; it must rise from 0 to 3, the tokens in q"),
        ("cu_seqlens_q", 2, 4, r"is \[0, 2, 4\]"),
        ("cu_seqlens_q", 2, 2, r"is \[0, 2, 2\]"),
        ("cu_seqlens_q", 1, 0, r"is \[0, 0, 3\]"),
        ("cu_seqlens_q", 1, 3, r"is \[0, 3, 3\]"),
    ],
)
def test_lengths_and_blocks_out_of_bounds_are_refused(no_kernel, name, where, value, says):
    case = make_case([2, 1], [2, 9], device=DEVICE)
    getattr(case, name)[where] = value
    if not says.startswith("block_tables"):
        says = rf"{name}.* {says}"
    with pytest.raises(ValueError, match=says):
        case.varlen()
    if DEVICE == "cpu":  # on a GPU contents aren't checked once the maxima are given
        with pytest.raises(ValueError, match=says):
            case.varlen(max_seqlen_q=2, max_context_len=9)


def test_nothing_in_nothing_out():
    case = make_case([], [], device=DEVICE)
    assert case.varlen().shape == case.q.shape


# --- how the work is cut up


@given(st.integers(1, 300), st.integers(1, 32), st.integers(1, 200))
def test_the_more_sequences_the_fewer_splits(num_seqs, kv_heads, processors):
    keys, splits = split_limits(num_seqs, kv_heads, processors)
    assert MIN_KEYS_PER_SPLIT <= keys <= MAX_KEYS_PER_SPLIT and keys % MIN_KEYS_PER_SPLIT == 0
    assert MIN_SPLITS <= splits <= MAX_SPLITS
    more_keys, fewer_splits = split_limits(num_seqs + 1, kv_heads, processors)
    assert more_keys >= keys and fewer_splits <= splits


def splits_of(case, longest, **options):
    """For each sequence, the (start, end) of the keys that each program of its first KV head reads; and the result."""
    kernel, out = Recorder(decode_kernel), torch.full_like(case.q, float("nan"))
    launch_decode(case.q, *case.cache, out, case.scale, longest, kernel=kernel, **options)
    found = [[] for _ in case.context_lens]
    for program in kernel.recording.programs:
        head, seq, _ = program.ids
        cells = cells_read(kernel.recording, "k_cache", head, [program])
        if head == 0 and cells:
            size, table = case.k_cache.shape[1], case.block_tables[seq].tolist()
            positions = sorted(table.index(block) * size + slot for block, slot in cells)
            assert positions == list(range(positions[0], positions[-1] + 1))
            found[seq].append((positions[0], positions[-1] + 1))
    return found, out, kernel.recording.grid


@pytest.mark.parametrize("limits", [(16, 4), (48, 2), (16, 13)])
def test_splits_follow_from_a_sequence_alone(monkeypatch, limits):
    """Whatever room the block tables have, and however long its companions are."""
    monkeypatch.setattr(launch, "split_limits", lambda *sizes: limits)
    options, contexts = dict(tiles=Tiles(16, 16, 4, 2)), [1, 15, 16, 17, 64, 65, 200]
    case = make_case([1] * 7, contexts, q_heads=2, kv_heads=1)
    found, out, grid = splits_of(case, 200, **options)
    check("splits", out, case.reference(), case.q.dtype)
    for parts, context in zip(found, contexts):
        assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])] and parts[-1][1] == context
        assert len(parts) <= limits[1] and all(end - start >= limits[0] for start, end in parts[:-1])
        assert len({end - start for start, end in parts[:-1]}) <= 1 and all(end % 16 == 0 for _, end in parts[:-1])
    again, same, larger = splits_of(case, 5000, **options)
    assert again == found and torch.equal(same, out) and larger[2] >= grid[2]
    alone = make_case([1] * 7, contexts, q_heads=2, kv_heads=1)
    for seq in range(6):  # its companions become short, in the blocks of the longest
        alone.context_lens[seq], alone.block_tables[seq] = 9, alone.block_tables[6]
    found_alone, out_alone, _ = splits_of(alone, 200, **options)
    assert found_alone[6] == found[6] and torch.equal(out_alone[6], out[6])


@settings(max_examples=EXAMPLES)
@given(
    contexts=st.lists(st.integers(1, 40) | st.sampled_from([127, 128, 129, 300]), min_size=1, max_size=4),
    limits=st.sampled_from([(16, 3), (32, 64), (128, 16)]),
    window=st.sampled_from([None, 1, 16, 50]),
    dims=st.sampled_from([32, 64, 96]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_ragged_decodes_split_and_merge(contexts, limits, window, dims, dtype, seed):
    case = make_case([1] * len(contexts), contexts, 6, 2, head_dim=dims, dtype=dtype, device=DEVICE, seed=seed)
    terms = window and ScoreTerms(window=window)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launch, "split_limits", lambda *sizes: limits)
        check("decode", case.decode(terms), case.reference(terms), dtype)
    assert not launch._counters(case.q.device, triton.next_power_of_2(2 * len(contexts))).any()


@pytest.mark.parametrize(
    "blocks, gap, use_int64",
    [(2**31 // 2048, 1, False), (2**31 // 2048 + 1, 1, True), (2**30 // 2048, 2, False), (2**30 // 2048 + 2, 2, True)],
)
def test_offsets_beyond_32_bits_are_noticed_in_views_too(blocks, gap, use_int64):
    """Blocks of 2,048 elements; with a gap of 2, every other block of a tensor twice as large. Nothing is allocated."""
    cache = torch.empty_strided((blocks, 16, 2, 64), (2048 * gap, 128, 64, 1), device="meta")
    assert _use_int64(cache) == use_int64


# --- in a model


@pytest.mark.parametrize("q_lens, context_lens", [([1, 1], [3, 1100]), ([4, 1, 9], [600, 20, 9])])
def test_the_backend_covers_the_longest_of_a_row(q_lens, context_lens):
    case = make_case(q_lens, context_lens, q_heads=2, kv_heads=1, block_size=32, device=DEVICE)
    packed = pack([[0] * count for count in q_lens], [context - count for context, count in zip(context_lens, q_lens)])
    attend = plan_triton(packed.to(torch.device(DEVICE)), case.block_tables.long(), 32)
    of_a_model = case.q.transpose(0, 1).contiguous().transpose(0, 1)  # heads before tokens
    check("plan_triton", attend(of_a_model, case.k_cache, case.v_cache, case.scale), case.reference(), case.q.dtype)


@pytest.mark.skipif(DEVICE == "cuda", reason="test_gpu.py does it with the bundled model")
def test_greedy_tokens_through_the_kernels_equal_those_of_the_pytorch_backend():
    prompts, _ = ragged_requests(4, seed=4, prompt_lengths=(1, 7, 8, 9, 20))
    serve = dict(max_new_tokens=[5, 1, 4, 3], max_num_seqs=3, block_size=8)
    found, expected = (
        paged_generate(tiny_model("qwen2", seed=3), TINY_TOKENIZER, prompts, **serve, backend=backend)
        for backend in ("triton", "torch")
    )
    assert found == expected and all(expected)
