"""The bench of the players: it finds them all, and times each of their pictures."""

import pytest

from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.stepper import Stepper
from tools.bench_players import ROOT, measure, order_of, players_of

COUNT = 5


def draw(i):
    drawing = Drawing(height=60)
    drawing.rect(20 * i, 10, 20, 20, "#009E73")
    return drawing.picture(f"cell {i}")


def test_it_finds_the_players_of_a_lesson_in_their_order():
    players = list(players_of(ROOT / "solutions" / "00_one_request.ipynb"))
    assert len(players) == 2 and all(player.startswith("<lessons-player ") for player in players)


def test_each_picture_is_shown_after_the_one_before_and_after_a_jump():
    order = order_of(COUNT)
    assert order[:COUNT] == list(range(COUNT)) and set(order[COUNT:]) == set(range(COUNT))
    assert any(abs(a - b) > 1 for a, b in zip(order[COUNT:], order[COUNT + 1 :]))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_every_picture_is_timed(chromium, tmp_path):
    html = Stepper(draw, COUNT)._repr_mimebundle_()["text/html"]
    found = measure(chromium, html.split("</lessons-player>")[0] + "</lessons-player>", repeats=1)
    assert (found["pictures"], found["elements"]) == (COUNT, 1)
    assert 0 <= found["script"] <= found["slowest"] and found["median"] <= found["slowest"]
