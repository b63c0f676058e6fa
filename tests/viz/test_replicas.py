"""Pictures of lessons 15 and 16: prefixes in replicas, streams through the loss of one, matrices that are cut, and a
sum that goes around a ring."""

import itertools

import pytest
from answers import lesson_16
from picture_cases import CUT, MOVED, PICTURES
from svg_reading import box, elements

from lessons_lib.recording.all_reduce_steps import record_all_reduce
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.viz.drawing.palette import color_of
from lessons_lib.viz.replicas import draw_all_reduce, draw_cut_matrices, draw_streams, watch_all_reduce, watch_streams


def test_a_cell_says_how_much_of_a_conversation_a_cache_holds():
    picture = PICTURES["places"]()
    assert all(words in picture.svg for words in ("5/7", "7/7", "0/4", "4/4", "42% of the prompt tokens found"))
    assert "A 5 and 7; B 0 and 4" in picture.alt


def test_a_stream_moves_to_the_band_of_the_other_replica():
    picture = draw_streams([MOVED, CUT], 2, lost=(0, 2))
    assert "A: 2 tokens by replica 0, then 1 token by replica 1, ends with 'length'" in picture.alt
    assert "B: 1 token by replica 0, ends with 'error'" in picture.alt
    assert picture.svg.count(color_of("A")) == 4  # three tokens and the sign at the end
    assert picture.svg.count("arrow-") == 2 and "replica 0 is lost" in picture.svg  # its definition, and one use
    assert "Replica" not in draw_streams([MOVED], 2).alt.split(".")[1]


def test_each_process_has_half_of_the_columns_and_rows():
    rects = elements(draw_cut_matrices(4, 12, 16, 12), "rect")
    first, second, upper, lower = [box(rect) for rect in rects if rect.get("stroke-width") == "2"]
    assert second[0] == first[0] + first[2] and second[2] == first[2], "the columns of W1"
    assert upper[0] == lower[0] and upper[3] == lower[3], "the rows of W2"


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ring_shows_who_holds_which_sum_after_each_step(world_size):
    steps = record_all_reduce(all_reduce, world_size)
    assert len(steps) == 1 + 2 * (world_size - 1)
    for number, step in enumerate(steps[:world_size]):
        for rank, part in itertools.product(range(world_size), repeat=2):
            # Part p starts at worker p, and has passed `number` workers after step `number`.
            distance = (rank - part) % world_size
            come = range(distance + 1) if 0 < distance <= number else range(1)
            assert step.holds[rank][part] == {(rank - back) % world_size for back in come}, (number, rank, part)
    done = [sum(len(one) == world_size for row in step.holds for one in row) for step in steps]
    assert done == [0] * (world_size - 1) + [world_size * n for n in range(1, world_size + 1)], "then it goes around"
    pictures = watch_all_reduce(steps).pictures
    assert "part 0 from worker 0 to worker 1, then of 2" in pictures[1].alt
    assert [picture.svg.count("✓") - 1 for picture in pictures] == done
    assert [picture.svg.count("marker-end") for picture in pictures] == [0] + [world_size] * (len(steps) - 1)
    for before, after in itertools.pairwise(pictures):  # what is sent next is what arrives
        sent, arrived = ([frame.get("data-moves") for frame in elements(each, "rect") if frame.get("data-moves")]
                         for each in (before, after))  # fmt: skip
        assert world_size == len(set(sent) & set(arrived))


def test_a_stream_is_drawn_up_to_a_round_with_where_it_is():
    pictures = watch_streams([MOVED], 2, lost=(0, 2)).pictures
    assert [picture.svg.count('data-moves="A"') for picture in pictures] == [1] * 5 + [0], "until it has ended"
    assert ["is lost" in picture.svg for picture in pictures] == [False] * 2 + [True] * 4
    assert "A: 2 tokens by replica 0." in pictures[3].alt and "then 1 token by replica 1." in pictures[4].alt


@pytest.mark.parametrize("way", lesson_16.RIGHT["16.2"], ids=lambda way: way.__name__)
def test_every_right_all_reduce_can_be_drawn(way):
    steps = record_all_reduce(way, 4)
    assert all(len(part) == 4 for holds in steps[-1].holds for part in holds)
    assert "Complete parts of each worker: 4, 4, 4, 4." in draw_all_reduce(steps, len(steps) - 1).alt


def test_sums_that_are_not_complete_are_not_recorded():
    with pytest.raises(ValueError, match="isn't complete"):
        record_all_reduce(lambda tensor, worker: tensor, 2)
    with pytest.raises(ValueError, match="8 workers"):
        record_all_reduce(all_reduce, 8)
