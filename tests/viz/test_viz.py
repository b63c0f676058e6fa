import base64
import json
import re
import sys
import xml.etree.ElementTree as ET
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_cases import CONTINUOUS, GROWTH, LONG_TRACE, ROWS, STATIC, WEIGHTS, wave
from svg_reading import SVG, box, elements, height, texts, titles

from lessons_lib.viz.cache import draw_attention, draw_cache_growth
from lessons_lib.viz.cache.growth import CacheStep
from lessons_lib.viz.drawing import palette
from lessons_lib.viz.drawing.night import colors_of, image_style, night_rules
from lessons_lib.viz.drawing.picture import LEAST_WIDTH, Picture
from lessons_lib.viz.drawing.svg import Drawing, show_token
from lessons_lib.viz.player import script
from lessons_lib.viz.player.frames import splices
from lessons_lib.viz.stepper import PLAYER, Stepper
from lessons_lib.viz.tables.table import Table
from lessons_lib.viz.timelines.timeline import draw_compare, draw_timeline


def test_any_name_has_a_stable_colour():
    """Python's own hash of a str differs in each process."""
    base = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00"]
    assert [palette.color_of(name) for name in "ABCDEF"] == base
    assert [palette.color_of(name) for name in ("story", "0", "G")] == ["#56B4E9", "#56B4E9", "#332288"]
    assert len({palette.color_of(str(n)) for n in range(18)}) == 18
    assert palette.color_of(None) == palette.NEUTRAL


def test_shapes_and_text_have_contrast_in_both_themes():
    fills = [palette.color_of(name) for name in [*"ABCDEFGHIJKLMNOPQR", None]]
    fills += [palette.tint(fill) for fill in fills]
    pairs = [(palette.outline(fill), palette.PAPER, 3) for fill in fills]
    pairs += [(palette.EDGE, palette.PAPER, 3), (palette.HATCH, palette.PAPER, 3)]
    pairs += [(ink, palette.PAPER, 4.5) for ink in (palette.INK, palette.SOFT_INK)]
    pairs += [(palette.text_on(fill), palette.halo_on(fill) or fill, 4.5) for fill in fills]
    for fill, text, _, dark, on_dark, _ in map(palette.in_both_themes, "ABCDEFGHIJKLMNOPQR"):
        assert min(palette.contrast(fill, text), palette.contrast(dark, on_dark)) >= 4.5, fill
    for one, other, least in pairs:
        assert palette.contrast(one, other) >= least, one
        assert palette.contrast(palette.in_the_dark(one), palette.in_the_dark(other)) >= least, one


def test_a_request_keeps_its_color_in_the_dark_and_others_turn_over():
    drawing = Drawing(height=40)
    drawing.request_chip(10, 10, "E")
    drawing.text(60, 20, "on the paper")
    svg = drawing.picture("E").svg
    yellow = palette.color_of("E")
    assert palette.in_the_dark(yellow) == yellow and yellow not in colors_of(svg)
    assert palette.INK in colors_of(svg) and palette.PAPER in colors_of(svg)
    for rules in (image_style(svg), night_rules(colors_of(svg))):
        assert palette.in_the_dark(palette.INK) in rules and yellow not in rules
    assert "filter" not in image_style(svg)


def test_a_picture_shows_itself_in_three_ways():
    picture = draw_timeline(STATIC)
    bundle = picture._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
    assert bundle["text/plain"] == picture.alt
    assert bundle["image/svg+xml"] == picture.svg
    html = bundle["text/html"]
    # No <svg>: an untrusted notebook would tear it apart.
    img = ET.fromstring(html.replace('auto">', 'auto"/>')).find("img")
    assert img.tag == "img" and img.get("alt") == picture.alt
    kind, data = img.get("src").split(",")
    assert kind == "data:image/svg+xml;base64"
    assert re.sub("<style>@media.*?</style>", "", base64.b64decode(data).decode()) == picture.svg


def test_labels_and_hover_texts_are_escaped():
    d = Drawing(100, 40)
    d.cell(0, 0, 90, 30, "#FFFFFF", label='<b>"&', title='<i> "url(#HATCH)" &')
    picture = d.picture('say "<hi>" & go')
    assert texts(picture) == ['<b>"&']
    assert titles(picture) == ['<i> "url(#HATCH)" &']
    assert ET.fromstring(picture.svg).get("aria-label") == 'say "<hi>" & go'


@pytest.mark.parametrize("share, height", [(0.25, "10"), (0.5, "20"), (1.0, "40")])
def test_the_hatched_share_of_a_cell_is_its_waste(share, height):
    d = Drawing(100, 40)
    d.cell(0, 0, 50, 40, "#FFFFFF", hatched=share)
    hatched = [e for e in ET.fromstring(d.picture("a cell").svg).iter(SVG + "rect") if "hatch" in e.get("fill")]
    assert [e.get("height") for e in hatched] == [height]


@pytest.mark.parametrize(
    "text, shown",
    [(" a", "·a"), ("\n\n", "\\n\\n"), ("\t", "\\t"), ("", "(empty)"), ("<b>", "<b>"), ("\x00", "\\x00"), ("é", "é")],
)
def test_tokens_are_made_visible(text, shown):
    assert show_token(text) == shown


def test_timeline_says_what_every_cell_did():
    hovers = titles(draw_timeline(STATIC))
    assert "slot 1, step 1: request B, prefill, 4 computed, 3 useful" in hovers
    assert "slot 0, steps 3 to 5: request A, finished, 1 computed, 0 useful in each" in hovers
    assert "slot 0, step 3: no request, idle, 1 computed, 0 useful" in titles(draw_timeline(CONTINUOUS))


def test_timeline_counts_up_to_the_step_shown():
    assert "9 useful of 10 computed, 1 wasted (10 %)" in texts(draw_timeline(STATIC, 1))
    assert "12 useful of 16 computed, 4 wasted (25 %)" in texts(draw_timeline(STATIC))
    assert len(titles(draw_timeline(STATIC, 1))) == 4


def test_the_picture_does_not_grow_while_stepping():
    assert len({height(draw_compare(STATIC, CONTINUOUS, i)) for i in range(5)}) == 1

    def first_cell(picture):
        return next(box(rect)[:3] for rect in elements(picture, "rect") if rect.find(SVG + "title") is not None)

    longer = wave({"A": 60, "B": 50})
    assert first_cell(draw_timeline(longer, 0)) == first_cell(draw_timeline(longer))


def test_compare_shows_a_finished_trace_whole():
    picture = draw_compare(STATIC, CONTINUOUS, 4)
    assert "Continuous batching: all done after 3 steps" in texts(picture)
    assert "Static batching: all done after 5 steps" in texts(picture)
    assert "Static batching" in texts(draw_compare(STATIC, CONTINUOUS, 3))
    assert draw_compare(STATIC, CONTINUOUS) == picture


def test_long_traces_stay_small():
    picture = draw_timeline(LONG_TRACE)
    assert len(picture.svg) < 100_000
    assert "slot 7, steps 1 to 60: request 7, decode, 1 computed, 1 useful in each" in titles(picture)
    assert "39" in texts(picture)  # a letter on its cells; the legend ends before it


def test_growth_shows_input_cache_and_output():
    before, now = (titles(draw_cache_growth(GROWTH, i)) for i in (0, 1))
    assert {
        "input at position 6: ·fox", "output: ·ran", 'position 2: key and value of ·"a"', "position 7: empty",
        "position 6: key and value of ·fox, written in this step",
    } <= set(now)  # fmt: skip
    assert [sum("written in this step" in title for title in each) for each in (before, now)] == [6, 1]
    assert "reads 6 positions" in texts(draw_cache_growth(GROWTH, 1))
    assert not any(t.startswith("reads") for t in texts(draw_cache_growth(GROWTH, 0)))


def test_attention_says_what_is_new_and_what_is_cached():
    picture = draw_attention(["Once", " upon", " a"], ROWS, ROWS, ROWS, WEIGHTS, ROWS)
    # Of q, k, v, output 2 numbers each and 3 weights; keys and values of two tokens; and the legend.
    assert picture.svg.count(f'fill="{palette.SERIES[3]}"') == 4 * 2 + 3 + 1
    assert picture.svg.count(f'fill="{palette.NEUTRAL}"') == 2 * 2 * 2 + 1
    assert "Once 1.00; upon 0.25, 0.75; a 0.10, 0.20, 0.70" in picture.alt
    assert ">0.00<" not in picture.svg  # a later token has no weight, rather than 0


def test_growth_without_a_cache():
    picture = draw_cache_growth([CacheStep(1, "prefill", ["a", "b"], 0, 0, "c")], 0)
    assert "nothing is kept: every step feeds the whole text again" in texts(picture)
    assert not any(
        word in text for word in ("prefill", "decode", "KV cache") for text in [*texts(picture), picture.alt]
    )


def test_table_in_text():
    table = Table(("idea", "tokens", "waste"), [("one", 1200, "0 %"), ("two", 12.3456, None)], "The ledger")
    assert str(table) == (
        "The ledger\nidea  tokens  waste\n----  ------  -----\none    1,200    0 %\ntwo     12.3      –"
    )


def test_table_in_html():
    html = Table(("idea", "tokens"), [("<one>", 1200)], 'a "caption" & <more>')._repr_mimebundle_()["text/html"]
    root = ET.fromstring(html)
    assert root.find("caption").text == 'a "caption" & <more>'
    assert [th.get("scope") for th in root.iter("th")] == ["col", "col", "row"]
    assert root.find("tbody/tr/th").text == "<one>"
    assert "right" in root.find("tbody/tr/td").get("style")
    assert "left" in root.find("tbody/tr/th").get("style")


def test_a_verdict_stands_below_the_rows():
    bundle = Table(("way", "steps"), [("yours", 3)], "Two ways", verdict="Yours: `3` of <4>.")._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[-1] == "Yours: `3` of <4>."
    html = bundle["text/html"]
    assert html.index("</table>") < html.index("Yours: <code>3</code> of &lt;4&gt;.")
    assert "<p>" not in Table(("n",), [(1,)])._repr_mimebundle_()["text/html"]


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells; the table has 2 columns"):
        Table(("a", "b"), [(1, 2), (3,)])
    assert "a" in str(Table(("a", "b"), []))


def growth_stepper(**options):
    return Stepper(lambda i: draw_cache_growth(GROWTH, i), len(GROWTH), **options)


def played(bundle):
    """What the player in an output plays: its data, and the elements of each picture."""
    packed = re.search('<script type="application/zlib">(.*?)</script>', bundle["text/html"])[1]
    data = json.loads(zlib.decompress(base64.b64decode(packed)))
    now, pictures = [], []
    for change in data["changes"]:
        for where, gone, *come in change:
            now[where : where + gone] = come
        pictures.append("".join(data["elements"][number] for number in now))
    return data, pictures


def test_a_stepper_leaves_all_its_pictures_behind():
    data, pictures = played(growth_stepper(start=1)._repr_mimebundle_())
    assert played(growth_stepper(name=lambda i: f"<{i}>")._repr_mimebundle_())[0]["names"] == ["<0>", "<1>", "<2>"]
    drawn = [draw_cache_growth(GROWTH, i) for i in range(3)]
    assert data["names"] == ["step 1 of 3", "step 2 of 3", "step 3 of 3"] and data["start"] == 1
    assert data["alts"] == [picture.alt for picture in drawn]
    for played_, picture in zip(pictures, drawn):
        own = re.sub(r"\b(hatch|arrow)-[0-9a-f]{8}", "", picture.svg)
        assert re.sub(r"\b(hatch|arrow)-[0-9a-f]{8}", "", played_) in own


def test_where_no_script_runs_one_picture_is_left():
    bundle = growth_stepper()._repr_mimebundle_()
    still = draw_cache_growth(GROWTH, 2)._repr_mimebundle_()
    assert still["text/html"] in bundle["text/html"] and bundle["text/plain"] == still["text/plain"]
    chosen = growth_stepper(still=1)._repr_mimebundle_()
    assert draw_cache_growth(GROWTH, 1)._repr_mimebundle_()["text/html"] in chosen["text/html"]


def test_a_stepper_outlives_a_picture_that_fails():
    def draw(i):
        if i == 1:
            raise RuntimeError("bad <data>")
        return "not a picture" if i == 2 else draw_cache_growth(GROWTH, 0)

    data, pictures = played(Stepper(draw, 3)._repr_mimebundle_())
    assert "step 2 could not be drawn. RuntimeError: bad &lt;data&gt;" in pictures[1]
    assert "must return a Picture" in data["alts"][2]


def test_a_stepper_of_none_and_of_one():
    none = Stepper(lambda i: 1 / 0, 0)._repr_mimebundle_()
    assert "no steps" in none["text/plain"] and "empty" in none["text/html"]
    assert played(Stepper(lambda i: draw_cache_growth(GROWTH, i), 1)._repr_mimebundle_())[0]["names"] == ["step 1 of 1"]


def test_a_picture_drawn_otherwise_is_refused_with_a_remedy():
    stepper = Stepper(lambda i: Picture("<svg></svg>", "empty"), 2)
    with pytest.raises(ValueError, match="Display another picture by itself"):
        stepper.recording()


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=6))
def test_splices_make_each_list_of_the_one_before(lists):
    before: list[int] = []
    for wanted in lists:
        now = list(before)
        for where, gone, *come in splices(before, wanted):
            now[where : where + gone] = come
        assert now == wanted
        before = wanted


def test_the_module_is_in_one_output_of_a_notebook(monkeypatch):
    monkeypatch.setattr(script, "_shown_in", {})
    cell = []
    monkeypatch.setattr(script, "_running_cell", lambda: cell[-1])

    def has_module(name):
        cell.append(name)
        return "customElements.define" in growth_stepper()._repr_mimebundle_()["text/html"]

    assert [has_module(name) for name in ("first", "second", "first")] == [True, False, True]
    monkeypatch.setitem(sys.modules, "google.colab", script)
    assert has_module("second"), "in Colab, each output is a page"


def test_stepper_names_its_limits():
    for options in (dict(start=3), dict(still=3), dict(still=-1)):
        with pytest.raises(IndexError, match=f"no step {next(iter(options.values()))}; it may be from 0 to 2"):
            Stepper(lambda i: None, 3, **options)


def test_tokens_computed_before_are_pale_without_a_cache():
    steps = [
        CacheStep(1, "prefill", ("The", " dog"), 0, 0, " ran"),
        CacheStep(2, "decode", ("The", " dog", " ran"), 0, 0, "."),
    ]
    first, second = (draw_cache_growth(steps, i) for i in (0, 1))
    assert "computed before, and now again" in second.svg
    assert "2 computed before" in second.alt and "computed before" not in first.alt
    assert second.svg.count(", computed before") == 2


def test_a_widget_scrolls_where_a_player_does():
    assert f"const LEAST_WIDTH = {LEAST_WIDTH};" in PLAYER.read_text(encoding="utf-8")
