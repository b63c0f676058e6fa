"""The mask explorer: every slider and box changes what is shown, in Python and in a real JupyterLab."""

import html
import random
import re

import pytest

from lessons_lib.attention.masks import PADDING, RULES, block_diagonal_mask, combine, not_padding, same_sequence
from lessons_lib.recording.mask_text import mask_text, read_row
from lessons_lib.viz.drawing.picture import live_html
from lessons_lib.viz.masks import explorer as mask_explorer
from lessons_lib.viz.masks.explorer import MaskExplorer, row_tags
from lessons_lib.viz.masks.grid import draw_mask
from lessons_lib.viz.masks.token_axis import ends_of


def expected(lengths, cached, padding, rules, row, names="ABC"):
    queries, keys = row_tags(lengths, cached, padding)
    mask, ends = combine(rules, queries, keys), ends_of(lengths, cached, padding)
    return live_html(draw_mask(mask, queries, keys, list(names), row, rules, sentence=False, ends=ends))


def reading(explorer):
    return html.unescape(re.fullmatch(r'<span role="status">(.*)</span>', explorer.sentence.value)[1])


def message(explorer):
    return html.unescape(re.fullmatch(r"<p>(.*)</p>", explorer.picture.value)[1])


def test_keys_are_the_cached_tokens_of_all_and_then_the_queries():
    queries, keys = row_tags([2, 1], [1, 3], padding=2)
    assert queries.seq_ids.tolist() == [0, 0, 1, PADDING, PADDING]
    assert queries.positions.tolist() == [1, 2, 3, 0, 1]
    assert keys.seq_ids.tolist() == [0, 1, 1, 1, *queries.seq_ids.tolist()]
    assert keys.positions.tolist() == [0, 0, 1, 2, *queries.positions.tolist()]


@pytest.mark.parametrize("is_dragged", [False, True])
def test_every_slider_every_end_and_every_box_redraws(is_dragged):
    explorer = MaskExplorer()
    sliders = {f"new {n}": slider for n, slider in enumerate(explorer.new_tokens)}
    sliders |= {f"cached {n}": slider for n, slider in enumerate(explorer.cached_tokens)}
    sliders["padding"] = explorer.padding_tokens
    counts = {"new": [4, 3, 2], "cached": [0, 0, 0], "padding": [0]}

    def shown(rules=RULES, row=0):
        return expected(counts["new"], counts["cached"], counts["padding"][0], rules, row)

    assert explorer.picture.value == shown() and explorer.rules == RULES
    assert reading(explorer) == "A, position 0, attends to A 0."
    for name, count in zip(("new 0", "cached 0", "new 1", "cached 1", "new 2", "padding"), (5, 2, 0, 3, 1, 2)):
        if is_dragged:
            explorer.picture._handle_custom_msg({"end": name, "count": count}, [])
        else:
            sliders[name].value = count
        kind, _, index = name.partition(" ")
        counts[kind][int(index or 0)] = count
        assert sliders[name].value == count and explorer.picture.value == shown()
    rules = list(RULES)
    for box, rule in zip(explorer.rule_boxes, RULES):
        box.value = False
        rules.remove(rule)
        assert explorer.rules == tuple(rules) and explorer.picture.value == shown(tuple(rules))
    explorer.reading_row.value = 5
    assert explorer.picture.value == shown((), 5)


def test_ends_stand_where_the_colors_of_the_mask_change():
    rng = random.Random(11)
    for _ in range(50):
        lengths, cached = ([rng.randrange(4) for _ in range(3)] for _ in range(2))
        padding = rng.randrange(3)
        queries, keys = row_tags(lengths, cached, padding)
        ends = ends_of(lengths, cached, padding)
        for axis, tags, kinds in (("x", keys, 2), ("y", queries, 1)):
            places = [end for end in ends if end.axis == axis]
            assert len(places) == 3 * kinds + 1
            owners = [PADDING if end.name == "padding" else int(end.name.split()[1]) for end in places]
            ids = [owner for owner, end in zip(owners, places) for _ in range(end.count)]
            assert ids == tags.seq_ids.tolist()
            for end in places:
                assert end.at == len(ids[: end.at]) and (not end.count or ids[end.at - 1] == ids[end.at - end.count])


def test_one_move_draws_once(monkeypatch):
    explorer = MaskExplorer()
    explorer.reading_row.value = 8
    drawn = []
    monkeypatch.setattr(
        mask_explorer, "draw_mask", lambda *args, **more: drawn.append(args) or draw_mask(*args, **more)
    )
    explorer.new_tokens[0].value = 1  # the row that is read goes with it
    assert len(drawn) == 1 and explorer.reading_row.value == 5


def test_rows_are_read_one_by_one():
    explorer = MaskExplorer(lengths=(2, 2), cached=(1, 0))
    queries, keys = row_tags([2, 2], [1, 0])
    mask = block_diagonal_mask(queries, keys)
    assert explorer.reading_row.max == 3
    for row in range(4):
        explorer.reading_row.value = row
        assert reading(explorer) == read_row(mask, queries, keys, row, ["A", "B"])
    explorer.rule_boxes[RULES.index(same_sequence)].value = False
    assert reading(explorer) == "B, position 1, attends to A 0 to 1, B 0 to 1."


def test_the_text_form():
    explorer = MaskExplorer(lengths=(2, 1), cached=(0, 2), names=("Fox", "<b>"))
    explorer.padding_tokens.value = 1
    picture = explorer.picture.value
    explorer.as_text.value = True
    queries, keys = row_tags([2, 1], [0, 2], 1)
    text = re.fullmatch(r"<pre[^>]*>(.*)</pre>", explorer.picture.value, re.DOTALL)[1]
    assert html.unescape(text) == mask_text(block_diagonal_mask(queries, keys), queries, keys, ["Fox", "<b>"])
    assert "&lt;" in text
    explorer.rule_boxes[RULES.index(not_padding)].value = False
    assert explorer.picture.value.count("#") == text.count("#") + 1  # a padding token sees itself
    explorer.rule_boxes[RULES.index(not_padding)].value = True
    explorer.as_text.value = False
    assert explorer.picture.value == picture


def test_what_can_not_be_drawn_is_said():
    explorer = MaskExplorer(lengths=(50, 1), cached=(30, 19), longest=60)
    assert "<svg" in explorer.picture.value and "<title>" not in explorer.picture.value, "too many for hover texts"
    explorer.cached_tokens[1].value = 20
    assert message(explorer).startswith("101 keys, of which 50 are cached; at most 100 can be drawn.")
    assert reading(explorer) == "A, position 30, attends to A 0 to 30."
    explorer.as_text.value = True
    assert explorer.picture.value.count("\n") == 51
    explorer.as_text.value = False
    explorer.cached_tokens[1].value = 19
    assert "<svg" in explorer.picture.value
    explorer.new_tokens[0].value = explorer.new_tokens[1].value = 0
    assert "no new tokens" in message(explorer) and reading(explorer) == ""
    nothing = explorer._repr_mimebundle_()
    assert "no new tokens" in nothing["text/plain"] and "image/svg+xml" not in nothing


@pytest.mark.parametrize(
    "settings, words",
    [
        (dict(lengths=(1, 2)), "2 lengths, 3 cached lengths and 2 names"),
        (dict(names="AB"), "3 lengths, 3 cached lengths and 2 names"),
        (dict(lengths=(21, 0, 0)), "21 tokens; the sliders go from 0 to 20"),
        (dict(cached=(0, -1, 0)), "-1 tokens; the sliders go from 0 to 20"),
    ],
)
def test_it_names_its_limits(settings, words):
    with pytest.raises(ValueError, match=words):
        MaskExplorer(**settings)


def test_it_leaves_a_still_picture():
    explorer = MaskExplorer()
    explorer.reading_row.value = 5
    explorer.as_text.value = True
    bundle = explorer._repr_mimebundle_()
    queries, keys = row_tags([4, 3, 2], [0, 0, 0])
    still = draw_mask(block_diagonal_mask(queries, keys), queries, keys, row=5)
    assert still._repr_mimebundle_().items() <= bundle.items()
    assert "B, position 1, attends to B 0 to 1." in bundle["image/svg+xml"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
