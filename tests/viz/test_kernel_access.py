"""The picture of one program of a recorded kernel: what it loads and stores of each tensor, and what it says in
words.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_cases import ADD, DECODE, DECODE_CASE
from svg_reading import assert_sound, elements, height, texts, titles

from lessons_lib.recording.kernel_accesses import Access, KernelRecording, ProgramRun, TensorLayout
from lessons_lib.viz.programs.access import draw_program
from lessons_lib.viz.programs.cells import LOADED, STORED
from lessons_lib.viz.programs.touched_cells import touched

TABLES = DECODE_CASE.block_tables.tolist()


def by_hand(accesses, shape=(4, 6), name="x", others=()):
    """A recording of two programs; the first does what is said, the second nothing."""
    tensors = {other: TensorLayout(other, (3,), (1,), 4) for other in others}
    tensors[name] = TensorLayout(name, shape, tuple(torch.empty(shape, device="meta").stride()), 4)
    first = tuple(Access(kind, name, tuple(elements)) for kind, elements in accesses)
    return KernelRecording("some_kernel", (2,), tensors, (ProgramRun((0,), first), ProgramRun((1,), ())))


def coloured(picture, colour):
    """How many boxes of a colour; those of the legend do not count."""
    of_the_legend = 1 + (colour == LOADED and "loaded more than once" in texts(picture))
    return sum(rect.get("fill") == colour for rect in elements(picture, "rect")) - of_the_legend


def test_add():
    picture = draw_program(ADD, 2)
    assert texts(picture)[:2] == ["add_kernel, program 2", "It loads 16 bytes and stores 8 bytes."]
    assert picture.alt == (
        "add_kernel, program 2. It loads 16 bytes and stores 8 bytes. It loads elements 8, 9 of x; loads elements 8, 9 of "
        "y; stores elements 8, 9 of out."
    )
    assert coloured(picture, LOADED) == 4 and coloured(picture, STORED) == 2


@pytest.mark.parametrize("seq, head", [(0, 1), (1, 2), (2, 3)])
def test_decode_says_which_blocks_in_which_turn_and_of_which_kv_head(seq, head):
    picture, slots = draw_program(DECODE, seq * 4 + head, ["sequence", "query head"]), (17, 5, 24)[seq]
    blocks = TABLES[seq][: -(-slots // 8)]
    where = f"in block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}, KV head {head // 2}"
    assert f"program ({seq}, {head}): sequence {seq}, query head {head}." in picture.alt
    assert {
        f"loads {slots} slots of k_cache, {where}, the same of v_cache", f"sequence {seq}, query head {head}",
        f"loads q[{seq}, {head}], 32 elements", f"stores out[{seq}, {head}], 32 elements",
        f"loads element {seq} of context_lens",
    } <= set(texts(picture))  # fmt: skip
    expected = [
        f"k_cache and v_cache: block {block}, "
        + (f"loaded in iteration {blocks.index(block) + 1}" if block in blocks else "not touched")
        for block in range(len(DECODE_CASE.k_cache))
    ]
    assert [title for title in titles(picture) if title.startswith("k_cache and v_cache")] == expected
    assert coloured(picture, LOADED) == 1 + len(blocks) + 1 + slots


def test_what_another_program_of_the_same_group_loads_is_in_the_same_places():
    """Two query heads of one KV head: the places of the caches are the same, only q and out differ."""
    first, second, third = (touched(DECODE, DECODE.programs[head], "k_cache") for head in (0, 1, 2))
    assert first.same_as(second) and not first.same_as(third)
    assert first.same_as(touched(DECODE, DECODE.programs[0], "v_cache"))


CACHE = [("load", range(16)), ("load", range(96, 112)), ("load", range(32, 48))]


@pytest.mark.parametrize(
    "accesses, options, said",
    [
        ([("load", [0, 1, 2]), ("load", [1]), ("load", [1, 7])], {},
         ["loads x[0, 0 to 2], x[1, 1], 4 elements, some of them 3 times", "loaded more than once",
          "It loads 24 bytes and stores 0 bytes."]),
        ([("load", [0, 1]), ("load", [0, 1])], {}, ["loads x[0, 0 to 1], 2 elements, each 2 times"]),
        ([("load", [0, 2, 3])], {}, ["loads x[0, 0 and 2 to 3], 3 elements"]),
        ([("load", range(6, 18))], {}, ["loads x[1 to 2], 12 elements"]),
        ([("load", [2] * 40)], {"shape": (5,)}, ["loads element 2 of x, each 40 times"]),
        ([("load", [2]), ("store", [2])], {"shape": (5,)}, ["loads element 2 of x; stores element 2 of x"]),
        (CACHE, {"shape": (2, 3, 2, 16), "name": "k_cache"},
         ["loads 3 slots of k_cache, in blocks 0, 1, KV head 0", "1, 3", "2"]),
        ([], {"others": ["y"]}, ["It loads 0 bytes and stores 0 bytes.", "touched by no program: y, x"]),
    ],
)  # fmt: skip
def test_what_is_loaded_and_stored_is_said(accesses, options, said):
    assert set(said) <= set(texts(draw_program(by_hand(accesses, **options), 0)))


def test_what_is_loaded_twice_is_framed_and_loaded_and_stored_are_two_halves():
    frames = lambda p: sum(r.get("fill") == "none" and r.get("stroke") is not None for r in elements(p, "rect"))
    assert frames(draw_program(by_hand([("load", [0, 1, 2]), ("load", [1])]), 0)) == 1 + 1  # and the legend's
    assert frames(draw_program(by_hand([("load", [0, 1, 2])]), 0)) == 0
    halves = draw_program(by_hand([("load", [2]), ("store", [2])], (5,)), 0)
    assert coloured(halves, LOADED) == coloured(halves, STORED) == 1


def test_a_program_with_nothing_to_do():
    picture = draw_program(by_hand([("load", [0])], others=["y"]), 1)
    assert "not touched by this program" in texts(picture)
    assert picture.alt.endswith("It touches nothing of x; no program touches y.")


@pytest.mark.parametrize("grid, dark", [((5,), 3), ((3, 4), 7), ((2, 3, 2), 9)])
def test_the_program_is_marked_among_all(grid, dark):
    ids = list(itertools.product(*map(range, grid)))
    runs = tuple(ProgramRun(index, (Access("load", "x", (0,)),)) for index in ids)
    recording = KernelRecording("some_kernel", grid, {"x": TensorLayout("x", (4,), (1,), 4)}, runs)
    shown = texts(draw_program(recording, dark))
    assert f"some_kernel, program {ids[dark] if len(grid) > 1 else ids[dark][0]}" in shown
    assert f"{len(runs):,} programs, this one marked" in shown


@pytest.mark.parametrize("recording", [ADD, DECODE], ids=["add", "decode"])
def test_pictures_of_all_programs_have_one_height_and_differ(recording):
    pictures = [draw_program(recording, i) for i in range(len(recording.programs))]
    assert len(set(map(height, pictures))) == 1
    assert len({picture.alt for picture in pictures}) == len(pictures)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(0, 40), max_size=5).filter(lambda shape: torch.Size(shape).numel() <= 20_000),
    name=st.sampled_from(["x", "k_cache"]),
    seed=st.integers(0, 999),
    share=st.sampled_from([0.01, 0.3, 1.0]),
)
def test_any_tensor_can_be_drawn(shape, name, seed, share):
    elements = torch.Size(shape).numel()
    shuffled = torch.randperm(elements, generator=torch.Generator().manual_seed(seed)).tolist()
    taken = shuffled[: max(1, int(elements * share))]
    half = len(taken) // 2
    accesses = [(kind, own) for kind, own in (("load", taken[half:]), ("store", taken[:half])) if own]
    recording = by_hand(accesses, tuple(shape), name, others=["y"])
    assert "nan" not in assert_sound(lambda: draw_program(recording, 0)).svg
    of = touched(recording, recording.programs[0], name)
    assert of.loaded.sum() + of.stored.sum() == len(taken) and of.astray == 0
