"""The mask explorer: every slider and box changes what is shown, in Python and in a real JupyterLab."""

import html
import re

from lessons_lib.attention.masks import PADDING, RULES, block_diagonal_mask, combine, same_sequence
from lessons_lib.recording.mask_text import read_row
from lessons_lib.viz.drawing.picture import live_html
from lessons_lib.viz.masks import explorer as mask_explorer
from lessons_lib.viz.masks.explorer import MaskExplorer, row_tags
from lessons_lib.viz.masks.grid import draw_mask


def expected(lengths, cached, padding, rules, row, names="ABC"):
    queries, keys = row_tags(lengths, cached, padding)
    mask = combine(rules, queries, keys)
    return live_html(draw_mask(mask, queries, keys, list(names), row, rules, sentence=False))


def reading(explorer):
    return html.unescape(re.fullmatch(r'<span role="status">(.*)</span>', explorer.sentence.value)[1])


def message(explorer):
    return html.unescape(re.fullmatch(r"<p>(.*)</p>", explorer.picture.value)[1])


# --- the row


def test_keys_are_the_cached_tokens_of_all_and_then_the_queries():
    queries, keys = row_tags([2, 1], [1, 3], padding=2)
    assert queries.seq_ids.tolist() == [0, 0, 1, PADDING, PADDING]
    assert queries.positions.tolist() == [1, 2, 3, 0, 1]
    assert keys.seq_ids.tolist() == [0, 1, 1, 1, *queries.seq_ids.tolist()]
    assert keys.positions.tolist() == [0, 0, 1, 2, *queries.positions.tolist()]


# --- what moves


def test_it_starts_with_the_whole_mask():
    explorer = MaskExplorer()
    assert explorer.picture.value == expected((4, 3, 2), (0, 0, 0), 0, RULES, 0)
    assert reading(explorer) == "A, position 0, attends to A 0."
    queries, keys = explorer.tags
    assert len(queries) == len(keys) == 9 and explorer.rules == RULES


def test_every_slider_and_box_redraws():
    explorer = MaskExplorer()
    lengths, cached, rules = [4, 3, 2], [0, 0, 0], list(RULES)
    for n, (new, old) in enumerate(((5, 2), (0, 3), (1, 0))):
        explorer.new_tokens[n].value = lengths[n] = new
        assert explorer.picture.value == expected(lengths, cached, 0, RULES, 0)
        explorer.cached_tokens[n].value = cached[n] = old
        assert explorer.picture.value == expected(lengths, cached, 0, RULES, 0)
    explorer.padding_tokens.value = 2
    assert explorer.picture.value == expected(lengths, cached, 2, RULES, 0)
    for box, rule in zip(explorer.rule_boxes, RULES):
        box.value = False
        rules.remove(rule)
        assert explorer.rules == tuple(rules)
        assert explorer.picture.value == expected(lengths, cached, 2, tuple(rules), 0)
    explorer.reading_row.value = 5
    assert explorer.picture.value == expected(lengths, cached, 2, (), 5)


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


# --- what cannot be drawn


def test_no_new_tokens_no_mask():
    explorer = MaskExplorer(lengths=(1, 0), cached=(2, 0))
    explorer.new_tokens[0].value = 0
    assert "no new tokens" in message(explorer) and reading(explorer) == ""
    explorer.new_tokens[1].value = 1
    assert explorer.picture.value.startswith("<div") and "<svg" in explorer.picture.value


def test_a_mask_too_large_is_counted_not_drawn():
    explorer = MaskExplorer(lengths=(20, 20, 11), cached=(20, 20, 9))
    assert explorer.picture.value.startswith("<div") and "<svg" in explorer.picture.value
    explorer.cached_tokens[2].value = 10
    assert message(explorer).startswith("101 keys, of which 50 are cached; at most 100 can be drawn.")
    assert reading(explorer) == "A, position 20, attends to A 0 to 20."
    explorer.cached_tokens[2].value = 9
    assert explorer.picture.value.startswith("<div") and "<svg" in explorer.picture.value


def test_only_the_still_picture_of_a_large_mask_has_hover_texts():
    explorer = MaskExplorer(lengths=(20, 13), cached=(0, 0))
    assert "<title>" not in explorer.picture.value and "<title>" in MaskExplorer().picture.value
    assert explorer._repr_mimebundle_()["image/svg+xml"].count("<title>") == 33 * 33


# --- what it leaves behind, and how it is found


def test_it_leaves_a_still_picture():
    explorer = MaskExplorer()
    explorer.reading_row.value = 5
    bundle = explorer._repr_mimebundle_()
    queries, keys = row_tags([4, 3, 2], [0, 0, 0])
    still = draw_mask(block_diagonal_mask(queries, keys), queries, keys, row=5)
    assert still._repr_mimebundle_().items() <= bundle.items()
    assert "B, position 1, attends to B 0 to 1." in bundle["image/svg+xml"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    nothing = MaskExplorer(lengths=(0,), cached=(0,))._repr_mimebundle_()
    assert "no new tokens" in nothing["text/plain"] and "image/svg+xml" not in nothing
