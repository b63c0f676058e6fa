"""Gantt charts: who did what when, read off the steps of a run; and every rectangle where its times are."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import pytest
from scheduling_cases import POLICIES, a_scheduler
from svg_reading import SVG, elements, texts, titles

from lessons_lib.scheduling.arrivals import Arrival, traffic
from lessons_lib.scheduling.scheduler import optimistic
from lessons_lib.scheduling.simulator import (
    SequenceTimes,
    SimulatedStep,
    Simulation,
    StepCost,
    simulate,
    simulate_static,
)
from lessons_lib.viz.charts.time_axis import round_ticks, say_seconds
from lessons_lib.viz.drawing.palette import INK, ON_COLOR, SERIES, color_of, tint
from lessons_lib.viz.timelines.gantt import draw_gantt, draw_gantts
from lessons_lib.viz.timelines.gantt_rows import DECODE, HELD, PREFILL, STALLED, WAITING, Span, gantt_rows

COST = StepCost(8, 2, 1)


def run_of(*requests, **limits):
    return simulate(a_scheduler(**limits), [Arrival(*request) for request in requests], COST, keep_steps=True)


# B comes during A's first chunk, waits, and is done before A; C comes when both have gone.
SMALL = run_of(("A", 0, 5, 3, 9), ("B", 1, 1, 1, 9), ("C", 100, 1, 2, 9), max_num_seqs=2, max_num_batched_tokens=4)
STALLED_RUN = run_of(("A", 0, 8, 3, 9), ("B", 0, 8, 3, 9), blocks=5, admission=optimistic)
HELD_RUN = Simulation(
    times={"A": SequenceTimes(0, 0, 3, 4, 2)},
    seconds=4,
    steps=[
        SimulatedStep(0, 1, {"A": 2}, {}),
        SimulatedStep(1, 1, {}, {"B": 1}),
        SimulatedStep(2, 1, {"A": 2}, {}, waiting=("B",)),
        SimulatedStep(3, 1, {}, {"A": 1, "B": 1}),
    ],
)


def small_traffic(count, seed=3):
    return [
        replace(request, id=chr(65 + n) if n < 26 else request.id)
        for n, request in enumerate(traffic(count, 0.05, most=40, seed=seed))
    ]


def spans_of(run, name):
    (row,) = [row for row in gantt_rows(run) if row.name == name]
    return [(span.state, span.start, span.end, span.tokens) for span in row.spans]


# --- what the steps say


def test_waits_chunks_and_decodes_are_read_off_the_steps():
    starts = [step.start for step in SMALL.steps]
    assert [(step.prefill, step.decode) for step in SMALL.steps[:3]] == [
        ({"A": 4}, {}),
        ({"A": 1, "B": 1}, {}),
        ({}, {"A": 1}),
    ]
    assert spans_of(SMALL, "A") == [
        (PREFILL, 0, 20, 4),
        (PREFILL, 20, starts[2], 1),
        (DECODE, starts[2], SMALL.times["A"].finished, 2),
    ]
    assert spans_of(SMALL, "B") == [(WAITING, 1, 20, 0), (PREFILL, 20, starts[2], 1)]
    assert [span[0] for span in spans_of(SMALL, "C")] == [PREFILL, DECODE]


def test_a_stall_is_no_wait():
    assert [(span[0], span[3]) for span in spans_of(STALLED_RUN, "B")] == [(PREFILL, 8), (STALLED, 0), (DECODE, 2)]
    assert [(span[0], span[3]) for span in spans_of(STALLED_RUN, "A")] == [(PREFILL, 8), (DECODE, 2)]


def test_who_runs_and_gets_nothing_is_held_and_who_lost_its_place_waits_again():
    assert spans_of(HELD_RUN, "A") == [(PREFILL, 0, 1, 2), (HELD, 1, 2, 0), (PREFILL, 2, 3, 2), (DECODE, 3, 4, 1)]
    assert spans_of(HELD_RUN, "B") == [(DECODE, 1, 2, 1), (WAITING, 2, 3, 0), (DECODE, 3, 4, 1)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_from_arrival_to_end_there_is_no_gap_and_no_token_too_many(policy):
    requests = small_traffic(25)
    scheduler = a_scheduler(max_num_seqs=3, max_num_batched_tokens=16, policy=policy, admission=optimistic, watermark=2)
    run = simulate(scheduler, requests, COST, keep_steps=True)
    rows = gantt_rows(run)
    assert [row.name for row in rows] == [request.id for request in requests]
    for row, request in zip(rows, requests):
        times = run.times[row.name]
        assert (row.arrival, row.finished) == (times.arrival, times.finished)
        assert row.spans[0].start == times.arrival and row.spans[-1].end == times.finished
        assert all(one.end == other.start for one, other in pairwise(row.spans))
        assert sum(span.end - span.start for span in row.spans if span.state == WAITING) == pytest.approx(
            times.queue_time
        )
        assert sum(span.tokens for span in row.spans if span.state == PREFILL) == request.prompt_tokens
        assert sum(span.tokens for span in row.spans if span.state == DECODE) == request.answer_tokens - 1


def test_without_steps_the_times_say_enough():
    run = simulate_static([Arrival("A", 0, 3, 2, 9), Arrival("B", 5, 2, 1, 9)], COST, batch_size=2)
    a, b = run.times["A"], run.times["B"]
    assert spans_of(run, "A") == [(PREFILL, 0, a.first_token, 0), (DECODE, a.first_token, a.finished, 0)]
    assert spans_of(run, "B") == [(WAITING, 5, b.admitted, 0), (PREFILL, b.admitted, b.first_token, 0)]


def test_a_run_that_was_cut_off_shows_who_has_not_finished():
    requests = [Arrival("A", 0, 3, 2, 9), Arrival("B", 0, 3, 9, 9), Arrival("C", 1, 3, 9, 9)]
    run = simulate(a_scheduler(max_num_seqs=2), requests, COST, keep_steps=True, until=60)
    assert [(row.name, row.finished is None) for row in gantt_rows(run)] == [("A", False), ("B", True), ("C", True)]
    assert draw_gantt(run).alt.endswith("Finished in this order: A. Not finished: B, C.")
    assert "Gantt: 1 of 3 finished" in texts(draw_gantt(run))


# --- what is drawn


def bars(picture):
    """name, what is said of it, x and width of everything drawn for a stretch of time."""
    found = []
    for rect in elements(picture, "rect"):
        said = re.fullmatch(r"(\w+): (.*)", rect.findtext(SVG + "title") or "")
        if said:
            found.append((said[1], said[2], float(rect.get("x")), float(rect.get("width")), rect.get("fill")))
    return found


def scale_of(picture, run):
    """x as a function of seconds, from where the whole picture begins A's first stretch and ends the last one."""
    drawn = [bar for bar in bars(picture) if bar[1] != "finished"]
    left, right = min(bar[2] for bar in drawn), max(bar[2] + bar[3] for bar in drawn)
    return lambda seconds: left + (right - left) * seconds / run.seconds


def test_every_stretch_lies_where_its_times_are():
    picture = draw_gantt(SMALL)
    x = scale_of(picture, SMALL)
    drawn = [bar for bar in bars(picture) if bar[1] != "finished"]
    expected = [(row.name, span) for row in gantt_rows(SMALL) for span in row.spans]
    assert len(drawn) == len(expected) == 7
    for (name, said, left, width, fill), (owner, span) in zip(drawn, expected):
        assert (
            name == owner
            and left == pytest.approx(x(span.start), abs=0.1)
            and left + width == pytest.approx(x(span.end), abs=0.1)
        )
        assert said.startswith(span.state) and said.endswith(f"{say_seconds(span.start)} to {say_seconds(span.end)}")
        assert fill == (tint(color_of(name)) if span.state == WAITING else color_of(name))
    ends = {name: left + width / 2 for name, said, left, width, _ in bars(picture) if said == "finished"}
    assert ends == pytest.approx({name: x(times.finished) for name, times in SMALL.times.items()}, abs=0.1)


def test_signs_do_not_hang_on_colour_alone():
    body = draw_gantt(SMALL).svg
    waits = [bar for bar in bars(draw_gantt(SMALL)) if bar[1].startswith("waiting")]
    for _, _, left, width, _ in waits:
        assert re.search(rf'<rect x="{left:g}" y="[\d.]+" width="{width:g}" height="[\d.]+" fill="url\(#hatch', body)
    framed = [
        rect
        for rect in elements(draw_gantt(SMALL), "rect")
        if rect.get("fill") == "none" and rect.get("stroke-width") == "2"
    ]
    assert len(framed) == 4 + 1  # chunks of A, prompts of B and C, and the legend
    thick = [path for path in elements(draw_gantt(STALLED_RUN), "path") if path.get("stroke-width") == "3"]
    assert len(thick) == 1 + 1 and "stalled: no block is free" in texts(draw_gantt(STALLED_RUN))
    assert "stalled: no block is free" not in texts(draw_gantt(SMALL))
    assert "no token: no budget left" in texts(draw_gantt(HELD_RUN))


def test_the_legend_shows_a_frame_for_each_look_that_it_has_on_a_dark_page():
    run = run_of(*((name, 0, 3, 2, 9) for name in "ABGH"))
    inks = [rect.get("stroke") for rect in elements(draw_gantt(run), "rect") if rect.get("stroke-width") == "2"]
    assert inks[:-2].count(INK) == inks[:-2].count(ON_COLOR) == 2 and inks[-2:] == [ON_COLOR, INK]


def test_narrow_chunks_share_a_frame():
    run = run_of(("A", 0, 300, 2, 9), ("B", 0, 2, 200, 200), max_num_seqs=2, max_num_batched_tokens=2)
    assert len(next(row for row in gantt_rows(run) if row.name == "A").spans) > 100
    (together,) = [bar[1] for bar in bars(draw_gantt(run)) if bar[0] == "A" and bar[1].startswith("prefill")]
    assert re.match(r"prefill of 300 tokens in \d{3} steps, ", together)


@pytest.mark.parametrize("upto", [0, 1, 19, 20, 50, 100, 105])
def test_nothing_later_is_drawn_and_the_axis_stays(upto):
    whole, part = draw_gantt(SMALL), draw_gantt(SMALL, upto=upto)
    x = scale_of(whole, SMALL)
    for name, said, left, width, _ in bars(part):
        assert left + (width / 2 if said == "finished" else width) <= x(upto) + 0.1
    assert {bar[:3] for bar in bars(part)} <= {bar[:3] for bar in bars(whole)}
    began = [(row.name, span) for row in gantt_rows(SMALL) for span in row.spans if span.start < upto]
    assert len([bar for bar in bars(part) if bar[1] != "finished"]) == len(began)
    assert {bar[0] for bar in bars(part) if bar[1] == "finished"} == {
        name for name, times in SMALL.times.items() if times.finished <= upto
    }
    ticks = lambda picture: [text for text in texts(picture) if re.fullmatch(r"\d+( s)?", text)]
    assert ticks(part) == ticks(whole) and elements(part, "svg")[0].get("viewBox") == elements(whole, "svg")[0].get(
        "viewBox"
    )


def test_the_moment_is_a_line_with_a_head_and_no_mark_of_an_end():
    x = scale_of(draw_gantt(SMALL), SMALL)(50)
    blue = [path for path in elements(draw_gantt(SMALL, upto=50), "path") if SERIES[0] in path.attrib.values()]
    line, head = (path.get("d") for path in blue)
    assert re.match(r"M([\d.]+) ", line)[1] == re.match(r"M([\d.]+) ", head)[1] and head.endswith("z")
    assert float(re.match(r"M([\d.]+) ", line)[1]) == pytest.approx(x, abs=0.1)


def test_the_words_say_who_does_what():
    assert "At 10 s: in prefill: A; waiting: B." in draw_gantt(SMALL, upto=10).alt
    assert "At 30 s: in prefill: A, B." in draw_gantt(SMALL, upto=30).alt
    assert "At 90 s: finished: A, B." in draw_gantt(SMALL, upto=90).alt
    assert "running without a token: A." in draw_gantt(HELD_RUN, upto=1.5).alt
    alt = draw_gantt(SMALL, "One run").alt
    assert (
        alt.startswith("One run. 3 sequences. A arrives at 0 ms: prefill ")
        and "B arrives at 1 s: waiting 19 s; prefill" in alt
    )
    assert alt.endswith("Finished in this order: B, A, C.")
    assert "At 0 ms: in prefill: A." in draw_gantt(SMALL, upto=0).alt


def test_several_runs_share_their_axis_and_their_rows():
    requests = small_traffic(8)
    runs = {
        p.name: simulate(
            a_scheduler(max_num_seqs=2, max_num_batched_tokens=16, policy=p), requests, COST, keep_steps=True
        )
        for p in POLICIES[:4]
    }
    for shown in (dict(list(runs.items())[:2]), runs):
        picture = draw_gantts(shown)
        for name, run in shown.items():
            mean = sum(times.latency for times in run.times.values()) / 8
            assert (
                f"{name}: mean latency {say_seconds(mean)}" in texts(picture)
                and f"{name}: mean latency {say_seconds(mean)}." in picture.alt
            )
        # From one first arrival to one last end, in as many charts as there are runs.
        finished = [bar for bar in bars(picture) if bar[1] == "finished"]
        assert [bar[0] for bar in finished] == [chr(65 + n) for n in range(8)] * len(shown)
        assert picture.alt.count("Finished in this order") == len(shown)
    early = draw_gantts(runs, upto=next(iter(runs.values())).seconds / 2)
    assert (
        all(re.search(rf"{name}: \d of 8 finished\. At ", early.alt) for name in runs)
        and early.alt != draw_gantts(runs).alt
    )


def test_a_shorter_run_ends_earlier_on_the_shared_axis():
    short, long = run_of(("A", 0, 1, 2, 9)), run_of(("A", 0, 1, 9, 9))
    ends = [
        left + width / 2
        for _, said, left, width, _ in bars(draw_gantts({"short": short, "long": long}))
        if said == "finished"
    ]
    starts = [
        left for _, said, left, _, _ in bars(draw_gantts({"short": short, "long": long})) if said.startswith("prefill")
    ]
    assert starts[0] == starts[1] and (ends[0] - starts[0]) / (ends[1] - starts[1]) == pytest.approx(
        short.seconds / long.seconds, rel=0.01
    )


def test_tiers_and_readers_stand_beside_the_names():
    requests = [
        Arrival("A", 0, 5, 3, 9, tier=1),
        Arrival("B", 1, 1, 1, 9, tier=0, is_interactive=True),
        Arrival("C", 100, 1, 2, 9, tier=2),
    ]
    picture = draw_gantts({"small": SMALL}, requests=requests)
    assert picture.alt.startswith(
        "Gantt charts on one time axis. Tier 0: B. Tier 1: A. Tier 2: C. Interactive: B. small: "
    )
    assert {"A, tier 1", "B, tier 0, interactive", "C, tier 2"} <= set(titles(picture))
    placed = {
        (text.text, text.get("font-size")): (float(text.get("x")), float(text.get("y")))
        for text in elements(picture, "text")
    }
    dots = [
        (float(dot.get("x")), float(dot.get("y")))
        for dot in elements(picture, "rect")
        if (dot.get("width"), dot.get("rx")) == ("6", "3")
    ]
    chips = {name: placed[name, "12"] for name in "ABC"}
    for name, tier in zip("ABC", "102"):
        assert placed[tier, "12"][0] > chips[name][0] and placed[tier, "12"][1] == chips[name][1]
    (dot, in_legend) = dots
    assert (
        placed["0", "12"][0] < dot[0]
        and dot[1] + 3 == pytest.approx(chips["B"][1], abs=5)
        and in_legend[1] > chips["C"][1]
    )
    first = min(left for _, said, left, _, _ in bars(picture) if said.startswith("prefill"))
    assert dot[0] + 6 < first
    plain = draw_gantts({"small": SMALL})
    legend = "interactive; the number next to a name is its tier"
    assert "reads along" not in plain.alt and legend not in texts(plain) and legend in texts(picture)


LONG_NAMES = [replace(request, id=f"customer {n} with <a long> & name") for n, request in enumerate(small_traffic(6))]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_gantt(Simulation()),
        lambda: draw_gantts({}),
        lambda: draw_gantts({"a": Simulation(), "b": SMALL, "c": STALLED_RUN}),
        lambda: draw_gantt(run_of(("A", 0, 1, 1, 1))),
        lambda: draw_gantt(simulate(a_scheduler(), small_traffic(40), COST, keep_steps=True), "Forty"),
        lambda: draw_gantts(
            {str(n): simulate(a_scheduler(), LONG_NAMES, COST, keep_steps=True) for n in range(3)}, upto=60
        ),
        lambda: draw_gantts(
            {str(n): simulate(a_scheduler(), LONG_NAMES, COST, keep_steps=True) for n in range(3)}, requests=LONG_NAMES
        ),
        lambda: draw_gantts({"a policy with a very long name " * 5: SMALL, "other": SMALL, "third": SMALL}),
        lambda: draw_gantt(HELD_RUN, upto=-1),
        lambda: draw_gantt(SMALL, upto=1e9),
    ],
    ids=[
        "empty",
        "no runs",
        "one empty",
        "one",
        "forty",
        "long names",
        "long names and tiers",
        "long title",
        "before",
        "after",
    ],
)
def test_every_run_can_be_drawn_and_nothing_lies_outside_the_sheet(draw):
    picture = draw()
    assert picture == draw()
    root = ET.fromstring(picture.svg)
    assert root.get("aria-label") == picture.alt
    width, height = map(float, root.get("viewBox").split()[2:])
    for rect in root.iter(SVG + "rect"):
        x, y, w, h = (float(rect.get(side, 0)) for side in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and w >= 0 and x + w <= width + 0.1 and y + h <= height + 0.1, rect.attrib
    for text in root.iter(SVG + "text"):
        room = 0.56 * float(text.get("font-size")) * len(text.text)
        left = float(text.get("x")) - room * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")]
        assert left >= -1 and left + room <= width + 8 and 0 <= float(text.get("y")) <= height, text.text


def test_the_names_of_long_ids_are_cut_in_the_middle_and_said_in_full():
    picture = draw_gantt(simulate(a_scheduler(), LONG_NAMES, COST, keep_steps=True))
    assert "customer 3 with <a long> & name" in titles(picture)
    labels = [text for text in texts(picture) if "…" in text]
    assert len(labels) == 6 and all(label.startswith("customer") and label.endswith("name") for label in labels)


# --- seconds


@pytest.mark.parametrize(
    "seconds, words",
    [(0, "0 ms"), (0.00051, "0.51 ms"), (0.0125, "12.5 ms"), (0.5, "500 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (3.4, "3.4 s"), (12.345, "12.3 s"),
     (99.96, "100 s"), (1234.5, "1,234 s"), (100, "100 s"), (20, "20 s")],
)  # fmt: skip
def test_seconds_in_words(seconds, words):
    assert say_seconds(seconds) == words


@pytest.mark.parametrize(
    "longest, most, ticks",
    [
        (10, 5, [0, 2, 4, 6, 8, 10]),
        (0.97, 5, [0, 0.2, 0.4, 0.6, 0.8]),
        (7, 3, [0, 5]),
        (0, 4, [0]),
        (3, 1, [0]),
        (0.3, 3, [0, 0.1, 0.2, 0.3]),
    ],
)
def test_ticks_are_round(longest, most, ticks):
    assert round_ticks(longest, most) == pytest.approx(ticks)


def test_the_state_at_a_moment():
    row = gantt_rows(HELD_RUN)[0]
    assert [row.state_at(t) for t in (-1, 0, 0.99, 1, 2, 3.5, 4, 9)] == [
        "",
        PREFILL,
        PREFILL,
        HELD,
        PREFILL,
        DECODE,
        "finished",
        "finished",
    ]
    assert row.spans[0] == Span(PREFILL, 0, 1, 2, 1)
