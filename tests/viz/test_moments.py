"""The picture of one program's loads and stores in time."""

import pytest
import torch
from svg_reading import elements, texts

from lessons_lib.kernels.simple_paged import decode_heads_kernel
from lessons_lib.recording import record_kernel
from lessons_lib.viz.programs import watch
from lessons_lib.viz.programs.cells import LOADED
from lessons_lib.viz.programs.moments import NOW

BLOCK_SIZE, HEAD_DIM, BLOCKS = 4, 8, 6


def recording_of(contexts, tables, moments_of, q_heads=2, blocks=BLOCKS):
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(len(contexts), q_heads, HEAD_DIM, generator=generator)
    keys, values = (torch.randn(blocks, BLOCK_SIZE, 1, HEAD_DIM, generator=generator) for _ in range(2))
    tables = torch.tensor(tables, dtype=torch.int32)
    lens = torch.tensor(contexts, dtype=torch.int32)
    strides = (*q.stride()[:2], *keys.stride()[:3], tables.stride(0))
    sizes = dict(GROUP=q_heads, HEAD_DIM=HEAD_DIM, BLOCK_SIZE=BLOCK_SIZE)
    arguments = (q, keys, values, tables, lens, torch.empty_like(q), 0.5, *strides)
    return record_kernel(decode_heads_kernel, (len(contexts), q_heads), *arguments, moments_of=moments_of, **sizes)


@pytest.fixture(scope="module")
def stepper():
    return watch(recording_of([2, 10], [[1, 0, 0], [5, 0, 3]], (1, 1)), ["sequence", "query head"])


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
