"""What a kernel loads and stores, written down: compared with loops over plain numbers; wild addresses; and that Triton
is left as it was.
"""

import os
import subprocess
import sys
from pathlib import Path

import lessons_lib.kernels.triton_setup  # before Triton: decides whether kernels are compiled

# isort: split
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.kernels.basics import add_kernel
from lessons_lib.kernels.simple_paged import decode_heads_kernel
from lessons_lib.recording.kernel_accesses import OutOfBounds, TensorLayout, record_kernel

LIBRARY = Path(__file__).resolve().parents[2]


def told(recording):
    """program ids -> [(kind, tensor, offsets)]"""
    return {run.ids: [(a.kind, a.tensor, list(a.offsets)) for a in run.accesses] for run in recording.programs}


@pytest.mark.parametrize("length, block", [(10, 4), (8, 4), (1, 4), (3, 1)])
def test_add(length, block):
    x, y, out = torch.arange(float(length)), torch.ones(length), torch.empty(length)
    grid = (-(-length // block) + 1,)  # the last program has nothing to do
    recording = record_kernel(add_kernel, grid, x, y, out, length, BLOCK=block)
    expected = {}
    for i in range(grid[0]):
        numbers = [n for n in range(i * block, (i + 1) * block) if n < length]
        expected[i,] = [("load", "x", numbers), ("load", "y", numbers), ("store", "out", numbers)] if numbers else []
    assert told(recording) == expected
    assert recording.kernel == "add_kernel" and recording.grid == grid
    assert out.equal(x + y)
    assert recording.bytes_of(recording.programs[0], "load") == 2 * 4 * min(block, length)
    assert recording.bytes_of(recording.programs[-1], "store") == 0


def test_all_heads_of_all_sequences_in_a_cache_that_is_a_view():
    """Blocks lie twice as far apart as they are long."""
    q_heads, kv_heads, dims, block_size, lens, tables = 4, 2, 8, 2, [3, 4, 1], [[3, 1, 9], [0, 1, 9], [2, 9, 9]]
    keys, values = (torch.randn(8, block_size, kv_heads, dims)[::2] for _ in range(2))
    q = torch.randn(3, q_heads, dims)
    out = torch.empty_like(q)
    arguments = (q, keys, values, *(torch.tensor(ids, dtype=torch.int32) for ids in (tables, lens)), out, 0.4)
    strides = (q_heads * dims, dims, *keys.stride()[:3], 3)
    recording = record_kernel(
        decode_heads_kernel, (3, q_heads), *arguments, *strides, GROUP=2, HEAD_DIM=dims, BLOCK_SIZE=block_size
    )
    assert keys.stride(0) == 2 * block_size * kv_heads * dims
    for run, (seq, head) in zip(recording.programs, np.ndindex(3, q_heads)):
        found = {name: [a for a in run.accesses if a.tensor == name] for name in recording.tensors}
        slots = [(tables[seq][n // block_size], n % block_size) for n in range(lens[seq])]
        numbers = [(*slot, head // 2, dim) for slot in slots for dim in range(dims)]
        for name in ("k_cache", "v_cache"):
            assert [index for access in found[name] for index in recording.indices(access, 4)] == numbers
            assert len(found[name]) == len(found["block_tables"]) == -(-lens[seq] // block_size)
        assert [a.offsets for a in found["block_tables"]] == [(seq * 3 + n,) for n in range(len(found["k_cache"]))]
        own, first = tuple(range((seq * q_heads + head) * dims, (seq * q_heads + head + 1) * dims)), run.accesses[0]
        assert (first.tensor, found["context_lens"][0].offsets) == ("q", (seq,))
        assert [a.offsets for a in found["q"] + found["out"]] == [own, own] and run.accesses[-1].kind == "store"


@triton.jit
def shift_kernel(x, out, by_load, by_store, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place + by_store, tl.load(x + place + by_load))


@triton.jit
def grid_kernel(x, out):
    place = tl.program_id(0) * 2 + tl.program_id(1)
    tl.store(out + place, tl.load(x + place))


@triton.jit
def flag_kernel(x, out, LOAD: tl.constexpr, STORE: tl.constexpr):
    number = tl.load(x, mask=LOAD, other=5.0)
    tl.store(out, number, mask=STORE)


@triton.jit
def not_written_kernel(x, out):
    raise NotImplementedError()


@triton.jit
def fails_inside(x):
    number = tl.load(x)
    raise ValueError("inside")
    return number


@triton.jit
def calls_inside(x):
    return fails_inside(x)


@triton.jit
def failing_kernel(x, out):
    tl.store(out, calls_inside(x))


@triton.jit
def half(x):
    return tl.load(x) / 2


@triton.jit
def half_of_largest(x, BLOCK: tl.constexpr):
    return half(x) + tl.max(tl.load(x + tl.arange(0, BLOCK)), axis=0)


@triton.jit
def calling_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out, half_of_largest(x, BLOCK))


@triton.jit
def hidden_kernel(x, out, length, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + place, mask=place < length))


def test_programs_have_an_id_for_each_axis_and_stand_in_the_order_of_the_grid():
    recording = record_kernel(grid_kernel, (3, 2), torch.arange(6.0), torch.empty(6))
    assert [run.ids for run in recording.programs] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [run.accesses[0].offsets for run in recording.programs] == [(n,) for n in range(6)]
    deep = record_kernel(grid_kernel, (1, 2, 2), torch.arange(6.0), torch.empty(6))
    assert [run.ids for run in deep.programs] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert [run.accesses[0].offsets for run in deep.programs] == [(0,), (0,), (1,), (1,)]
    assert record_kernel(grid_kernel, (0, 2), torch.arange(6.0), torch.empty(6)).programs == ()


@pytest.mark.parametrize(
    "by_load, by_store, program, kind, tensor, number, done",
    [
        # Stores of the programs before it are done; its own are not.
        (-1, 0, 0, "load", "x", -1, [-1.0] * 8),
        (1, 0, 1, "load", "x", 8, [1.0, 2.0, 3.0, 4.0, -1.0, -1.0, -1.0, -1.0]),
        (0, -1, 0, "store", "out", -1, [-1.0] * 8),
        (0, 3, 1, "store", "out", 8, [-1.0, -1.0, -1.0, 0.0, 1.0, 2.0, 3.0, -1.0]),
        (-(10**9), 0, 0, "load", "x", -(10**9), [-1.0] * 8),
    ],
)
def test_a_wild_address_is_named_and_not_used(by_load, by_store, program, kind, tensor, number, done):
    x, out = torch.arange(8.0), torch.full((8,), -1.0)
    with pytest.raises(OutOfBounds) as caught:
        record_kernel(shift_kernel, (2,), x, out, by_load, by_store, BLOCK=4)
    error = caught.value
    assert (error.ids, error.kind, error.tensor, error.number, error.count) == ((program,), kind, tensor, number, 8)
    where = f"program {program} would {kind} element {number:,} of `{tensor}`, which has elements 0 to 7. "
    assert str(error).startswith(where) and out.tolist() == done and x.tolist() == list(range(8))


@pytest.mark.parametrize("far", [2**58, -(2**58), 2**40, -(2**40)])
def test_an_address_beyond_all_tensors_is_not_used(far):
    with pytest.raises(OutOfBounds, match=r"program 0 would load element .* of `(x|out)`, which has elements 0 to 7"):
        record_kernel(shift_kernel, (1,), torch.arange(8.0), torch.empty(8), far, 0, BLOCK=4)


BOTH = torch.arange(8.0)


@pytest.mark.parametrize(
    "kernel, grid, arguments, words",
    [
        (grid_kernel, (3, 2), (torch.ones(4), torch.ones(6)), r"program \(2, 0\) would load element 4 of `x`, which has elements 0 to 3\."),
        (grid_kernel, (3, 2), (torch.ones(4), torch.ones(0)), r"\(0, 0\) would store element 0 of `out`, which has no elements\."),
        (shift_kernel, (1,), (torch.empty(0, 5), torch.empty(4), 0, 0), "load element 0 of `x`, which has no elements"),
        # An address belongs to the tensor from which it was computed: one past the end of x is the first of out.
        (shift_kernel, (1,), (BOTH[:4], BOTH[4:], 1, 0), "load element 4 of `x`, which has elements 0 to 3"),
        (shift_kernel, (1,), (BOTH[:4], BOTH[4:], 0, -1), "store element -1 of `out`"),
    ],
)  # fmt: skip
def test_a_program_of_two_axes_an_empty_tensor_and_a_neighbor_are_named(kernel, grid, arguments, words):
    with pytest.raises(OutOfBounds, match=words):
        record_kernel(kernel, grid, *arguments, **({"BLOCK": 4} if kernel is shift_kernel else {}))
    assert BOTH.tolist() == list(range(8))


@pytest.mark.parametrize("load", [True, False])
@pytest.mark.parametrize("store", [True, False])
def test_a_mask_known_when_compiled(load, store):
    out = torch.zeros(1)
    recording = record_kernel(flag_kernel, (1,), torch.ones(1), out, LOAD=load, STORE=store)
    assert told(recording)[0,] == [("load", "x", [0])] * load + [("store", "out", [0])] * store
    assert out.item() == (0 if not store else 1 if load else 5)


def test_what_a_mask_hides_is_no_number():
    out = torch.zeros(4)
    record_kernel(hidden_kernel, (1,), torch.ones(3), out, 3, BLOCK=4)
    assert out[:3].tolist() == [1, 1, 1] and out[3].isnan()
    hidden = torch.ones(4, dtype=torch.int32)
    record_kernel(hidden_kernel, (1,), torch.ones(3, dtype=torch.int32), hidden, 3, BLOCK=4)
    assert hidden[:3].tolist() == [1, 1, 1]


def test_functions_that_a_kernel_calls_are_written_down_too():
    x, out = torch.tensor([3.0, 9.0, 1.0, 2.0]), torch.empty(1)
    recording = record_kernel(calling_kernel, (1,), x, out, BLOCK=4)
    assert told(recording)[0,] == [("load", "x", [0]), ("load", "x", [0, 1, 2, 3]), ("store", "out", [0])]
    assert out.item() == 10.5
    assert recording.bytes_of(recording.programs[0], "load") == 5 * 4  # the first number twice


def test_launch_options_and_constants_among_the_keywords():
    out = torch.empty(4)
    recording = record_kernel(
        shift_kernel, (1,), x=torch.arange(4.0), out=out, by_load=0, by_store=0, BLOCK=4, num_warps=4, num_stages=2
    )
    assert out.tolist() == [0, 1, 2, 3] and list(recording.tensors) == ["x", "out"]
    with pytest.raises(TypeError, match="BLOCK"):
        record_kernel(shift_kernel, (1,), torch.arange(4.0), out, 0, 0, num_warps=4)


def test_a_function_that_is_no_kernel_is_refused():
    def plain(x):
        pass

    with pytest.raises(TypeError, match=r"'plain' is not a kernel: put @triton\.jit above"):
        record_kernel(plain, (1,), torch.ones(1))


@triton.jit
def two_kernel(x, y, out, by_x, by_y, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(x + by_x + place) + tl.load(y + by_y + place))


def test_one_tensor_given_twice_has_both_names():
    x = torch.arange(4.0)
    twice = record_kernel(two_kernel, (1,), x, x, torch.empty(4), 0, 0, BLOCK=4)
    assert [access.tensor for access in twice.programs[0].accesses] == ["x", "y", "out"]


@triton.jit
def unnoted_kernel(x, out, count, BLOCK: tl.constexpr):
    row = tl.load(tl.make_block_ptr(x, (4,), (1,), (0,), (BLOCK,), (0,)))
    tl.atomic_add(out + tl.arange(0, BLOCK), row)
    tl.atomic_max(count, tl.program_id(0) + 7)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers_and_atomic_operations_work_and_are_not_written_down():
    out, number = torch.ones(4), torch.zeros(1, dtype=torch.int32)
    recording = record_kernel(unnoted_kernel, (2,), torch.arange(4.0), out, number, BLOCK=4)
    assert out.tolist() == [1, 3, 5, 7] and number.item() == 8
    assert told(recording) == {(0,): [], (1,): []}


@settings(max_examples=30)
@given(st.data())
def test_the_index_of_every_number_of_a_view(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape)
    for axis in range(len(shape)):
        start = data.draw(st.integers(0, shape[axis] - 1))
        tensor = tensor.narrow(axis, start, shape[axis] - start)
        tensor = tensor[(slice(None),) * axis + (slice(None, None, data.draw(st.integers(1, 2))),)]
    tensor = tensor.permute(data.draw(st.permutations(range(len(shape)))))
    layout = TensorLayout("x", tuple(tensor.shape), tensor.stride(), 8)
    # The tensor holds its own places in the storage.
    first, numbers = int(tensor.flatten()[0]), sorted(tensor.flatten().tolist())
    for offset in range(numbers[-1] - first + 1):
        is_own = first + offset in numbers
        assert layout.has((offset,)).tolist() == [is_own]
        if is_own:
            assert int(tensor[tuple(layout.indices_of((offset,))[0].tolist())]) == first + offset
    assert not layout.has((-1, numbers[-1] - first + 1)).any()


def language():
    owners = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
    return {
        (owner.__name__, name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name != "__annotations__"
    }


def run_plainly():
    out = torch.empty(1, device=lessons_lib.kernels.triton_setup.kernel_device())
    calling_kernel[(1,)](torch.tensor([3.0, 9.0, 1.0, 2.0], device=out.device), out, BLOCK=4)
    return out.item()


@pytest.mark.parametrize(
    "kernel, error, words",
    [
        (not_written_kernel, NotImplementedError, ""),
        (failing_kernel, ValueError, "^inside$"),
        (calling_kernel, OutOfBounds, "load element 3"),
        (None, None, ""),
    ],
)
def test_nothing_stays_changed(kernel, error, words):
    run_plainly()
    before = language()
    if kernel is None:
        record_kernel(calling_kernel, (1,), torch.ones(4), torch.ones(1), BLOCK=4)
    else:
        options = {"BLOCK": 4} if kernel is calling_kernel else {}
        with pytest.raises(error, match=words or None) as caught:
            record_kernel(kernel, (1,), torch.ones(3), torch.ones(1), **options)
        assert type(caught.value) is error and caught.value.__cause__ is None
    after = language()
    assert [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)] == []
    assert run_plainly() == 10.5


AS_ON_A_GPU = """
import torch, triton
import triton.language as tl
import test_kernel_recording as t
from triton.runtime.jit import JITFunction
from lessons_lib.kernels import simple_paged as paged_kernels
from lessons_lib.recording.kernel_accesses import record_kernel

def kernels():
    modules = (tl, tl.standard, t, paged_kernels)
    found = {name: value for module in modules for name, value in vars(module).items() if isinstance(value, JITFunction)}
    assert {"max", "sum", "half", "attend_blocks", "decode_heads_kernel"} <= found.keys(), found.keys()
    return found

before, language = kernels(), t.language()
t.test_functions_that_a_kernel_calls_are_written_down_too()
t.test_all_heads_of_all_sequences_in_a_cache_that_is_a_view()
for kernel in (t.not_written_kernel, t.failing_kernel):
    try:
        record_kernel(kernel, (1,), torch.ones(3), torch.ones(1))
    except (NotImplementedError, ValueError):
        pass
    else:
        raise AssertionError("no error")
assert kernels() == before
after = t.language()
assert [key for key in language.keys() | after.keys() if language.get(key) is not after.get(key)] == []
print("as before")
"""


def test_compiled_kernels_are_recorded_and_stay_compiled():
    """As on a machine with a GPU, in a process in which Triton compiles; nothing was compiled before the first
    recording.
    """
    paths = [LIBRARY, LIBRARY / "tests", LIBRARY / "tests" / "recording"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_A_GPU], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "as before", done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_on_a_gpu_are_recorded_with_their_strides_and_changed():
    both = torch.arange(24.0, device="cuda").reshape(3, 2, 4)
    keys, values, out = both[:, 0], both[:, 1], torch.zeros(2, 4, device="cuda")[1]
    recording = record_kernel(two_kernel, (1,), keys, values, out, 8, 16, BLOCK=4)
    assert recording.tensors["x"].strides == (8, 1)
    assert told(recording)[0,] == [
        ("load", "x", [8, 9, 10, 11]),
        ("load", "y", [16, 17, 18, 19]),
        ("store", "out", [0, 1, 2, 3]),
    ]
    assert out.tolist() == [28, 30, 32, 34]
    compiled = torch.zeros(4, device="cuda")
    two_kernel[(1,)](keys, values, compiled, 8, 16, BLOCK=4)
    assert compiled.tolist() == out.tolist()
    assert run_plainly() == 10.5  # with tl.max, compiled after a recording
