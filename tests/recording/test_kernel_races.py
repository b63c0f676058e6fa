"""Accesses whose order a GPU leaves open are found, and those that a barrier, a thread or an atomic operation orders
are not."""

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.recording.kernel_accesses import OutOfBounds, record_kernel

LANES = 4


@triton.jit
def steps_kernel(data, lists, kinds, num_steps, LANES: tl.constexpr):
    """Each step accesses `data` at its own list of elements; -1 leaves an element out."""
    program, lane = tl.program_id(0), tl.arange(0, LANES)
    for step in range(num_steps):
        row = program * num_steps + step
        kind = tl.load(kinds + row)
        element = tl.load(lists + row * LANES + lane)
        if kind == 0:
            tl.load(data + element, mask=element >= 0)
        if kind == 1:
            tl.store(data + element, lane + 1.0 + row, mask=element >= 0)
        if kind == 2:
            tl.atomic_add(data + element, lane + 1.0, mask=element >= 0)
        if kind == 3:
            tl.debug_barrier()


def race_of(programs, size=6):
    """`programs`: for each, its steps (kind, elements)."""
    kinds = torch.tensor([[kind for kind, _ in steps] for steps in programs], dtype=torch.int32)
    lists = torch.tensor([[elements for _, elements in steps] for steps in programs], dtype=torch.int32)
    arguments = (torch.zeros(size), lists, kinds, kinds.shape[1])
    return record_kernel(steps_kernel, (len(programs),), *arguments, LANES=LANES).race


def smallest_racing(programs):
    """By comparing every two accesses."""
    flat = []
    for program, steps in enumerate(programs):
        phase = 0
        for step, (kind, elements) in enumerate(steps):
            phase += kind == 3
            if kind != 3:
                flat += [(program, phase, step, kind, lane, e) for lane, e in enumerate(elements) if e >= 0]
    racing = set()
    for program, phase, step, kind, lane, element in flat:
        for other_program, other_phase, other_step, other_kind, other_lane, other in flat:
            if other != element or not (kind or other_kind) or kind == other_kind == 2:
                continue
            if program != other_program or (phase == other_phase and lane != other_lane):
                racing.add(element)
    return min(racing, default=None)


accesses = st.tuples(st.integers(0, 2), st.lists(st.integers(-1, 5), min_size=LANES, max_size=LANES))
barriers = st.just((3, [-1] * LANES))


@settings(max_examples=40)
@given(st.lists(st.lists(st.one_of(accesses, accesses, barriers), min_size=3, max_size=3), min_size=1, max_size=2))
def test_the_smallest_racing_element_is_found(programs):
    race = race_of(programs)
    assert (race and race.number) == smallest_racing(programs)


A, B, NONE = [0, 1, 2, 3], [3, 2, 1, 0], [-1] * LANES


@pytest.mark.parametrize(
    "programs, says",
    [
        ([[(1, A), (0, B)]], "program 0 stores element 0 of `data` in one place of a tile and loads it in another"),
        ([[(0, A), (1, B)]], "program 0 loads element 0 of `data` in one place of a tile and stores it in another"),
        ([[(1, A), (1, B)]], "stores element 0 of `data` in one place of a tile and stores it in another"),
        ([[(1, [2, 2, -1, -1])]], "stores several values to element 2 of `data` at once"),
        ([[(1, A)], [(1, [-1, 5, 3, 4])]], "program 0 stores element 3 of `data`, and program 1 stores it too"),
        ([[(1, A)], [(0, B)]], "program 0 stores element 0 of `data`, and program 1 loads it too"),
        ([[(0, A)], [(1, B)]], "program 0 loads element 0 of `data`, and program 1 stores it too"),
        ([[(2, A)], [(0, A)]], "program 0 updates element 0 of `data`, and program 1 loads it too"),
        ([[(1, A)], [(3, NONE)], [(2, [5, 4, 3, -1])]], "program 0 stores element 3 of `data`, and program 2 updates"),
    ],
)
def test_a_race_names_programs_element_and_lines(programs, says):
    race = race_of(programs)
    assert says in str(race)
    assert "element >= 0" in race.lines and race.lines.startswith("In your line")


@triton.jit
def last_one_kernel(x, parts, finished, out, LANES: tl.constexpr, WAITS: tl.constexpr, SEM: tl.constexpr):
    """The program that comes last adds what all have stored."""
    program, lane = tl.program_id(0), tl.arange(0, LANES)
    tl.store(parts + program * LANES + lane, tl.load(x + lane) * program)
    if WAITS:
        tl.debug_barrier()
    if tl.atomic_add(finished, 1, sem=SEM) == tl.num_programs(0) - 1:
        total = tl.zeros([LANES], tl.float32)
        for each in range(tl.num_programs(0)):
            total += tl.load(parts + each * LANES + lane)
        tl.store(out + lane, total)
        tl.store(finished, 0)


@pytest.mark.parametrize(
    "waits, sem, races", [(True, "acq_rel", False), (False, "acq_rel", True), (True, "relaxed", True)]
)
def test_an_atomic_counter_orders_programs(waits, sem, races):
    out, finished = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
    arguments = (torch.arange(4.0), torch.zeros(3, 4), finished, out)
    recording = record_kernel(last_one_kernel, (3,), *arguments, LANES=4, WAITS=waits, SEM=sem)
    assert out.tolist() == [0, 3, 6, 9] and finished.item() == 0
    assert bool(recording.race) == races
    if races:
        assert (recording.race.tensor, recording.race.number) == ("parts", 0)


@triton.jit
def updates_kernel(out, LANES: tl.constexpr):
    (out + tl.arange(0, LANES)).atomic_add(1.0)


@triton.jit
def methods_kernel(out, first, LANES: tl.constexpr):
    (out + first + tl.arange(0, LANES)).store(2.0)
    (out + tl.arange(0, LANES)).atomic_add(1.0)


def test_methods_of_pointers_are_seen_too():
    out = torch.zeros(8)
    assert record_kernel(methods_kernel, (1,), out, 0, LANES=4).race is None
    assert out.tolist() == [3, 3, 3, 3, 0, 0, 0, 0]
    assert record_kernel(methods_kernel, (1,), out, 1, LANES=4).race.number == 1
    with pytest.raises(OutOfBounds, match="store element 8 of `out`"):
        record_kernel(methods_kernel, (1,), out, 5, LANES=4)
    with pytest.raises(OutOfBounds, match="update element 3 of `out`"):
        record_kernel(updates_kernel, (1,), out[:3], LANES=4)


@triton.jit
def copy_kernel(x, out, LANES: tl.constexpr):
    offsets = tl.program_id(0) * LANES + tl.arange(0, LANES)
    tl.store(out + offsets, tl.load(x + offsets))


def test_two_views_of_one_memory():
    both = torch.arange(12.0)
    assert record_kernel(copy_kernel, (2,), both[:8], both[:8], LANES=4).race is None
    race = record_kernel(copy_kernel, (2,), both[4:], both[:8], LANES=4).race
    assert str(race) == "program 0 loads element 0 of `x`, and program 1 stores it too"
    assert np.isclose(both[0], 4)
