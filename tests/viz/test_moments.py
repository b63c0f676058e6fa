"""The picture of one program's loads and stores in time."""

import pytest
from kernel_moments import recorded
from svg_reading import elements, texts

from lessons_lib.viz.programs import watch
from lessons_lib.viz.programs.cells import LOADED
from lessons_lib.viz.programs.moments import NOW


@pytest.fixture(scope="module")
def stepper():
    return watch(recorded()[0], ["sequence", "query head"])


def slots(picture, fill):
    """How many slots of both caches, of each block, have the color: they are drawn as paths of boxes."""
    paths = [path.get("d") for path in elements(picture, "path") if path.get("fill") == fill]
    return [path.count("v10h-5z") for path in paths if "v10h-5z" in path]  # those of the small multiples differ


def test_one_picture_for_each_access_of_the_program(stepper):
    assert stepper.count == 2 + 3 * 3 + 1
    names = stepper.recording()["names"]
    assert names[1] == "2 of 12: load context_lens" and names[-1] == "12 of 12: store out"


def test_the_next_line_is_marked_and_docstrings_are_left_out(stepper):
    picture = stepper.pictures[3]
    lines = texts(picture)
    assert not any("Attention of one query head" in line for line in lines if line)
    assert not any("###" in line for line in lines if line)
    assert "The line of attend_blocks: block_keys = tl.load(" in picture.alt


def test_what_is_touched_now_is_dark_and_what_was_touched_stays_pale(stepper):
    now, before = ([slots(picture, fill) for picture in stepper.pictures] for fill in (NOW, LOADED))
    assert (now[3], before[3]) == ([4], [])  # block 5, the first keys
    assert (now[4], before[4]) == ([4], [4])  # its values
    assert (now[9], before[9]) == ([2], [4, 4, 4, 4])  # block 3 holds two tokens
    assert now[11] == [] and sum(before[11]) == 20


def test_bytes_are_those_of_the_recording_and_of_each_number_once(stepper):
    shown = texts(stepper.pictures[-1])
    # A program: its query, a length, table entries; keys and values of its context, which two query heads share.
    own, other = 32 + 4 + 3 * 4 + 10 * 2 * 32, 32 + 4 + 4 + 2 * 2 * 32
    assert f"{own:,} bytes of {own:,}" in shown
    assert f"{2 * (own + other):,} bytes" in shown
    assert f"{2 * (own + other) - (own + other) + 2 * 32:,} bytes" in shown


def test_it_says_what_it_is_for_a_reader_who_does_not_see_it(stepper):
    alt = stepper.pictures[3].alt
    assert "loads 4 slots of k_cache, in block 5" in alt and "row_max -inf" in alt
