"""The dashboard: its picture, a pure function of plain data; and the widget, driven without a browser."""

import asyncio
import json
import re
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from engine_cases import a_model, alone, an_engine, greedy, letter
from svg_reading import elements, texts

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import EngineStep
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.recording.engine_lanes import Lane, PoolUse
from lessons_lib.viz.dashboard.picture import draw_dashboard
from lessons_lib.viz.drawing.palette import SERIES, color_of

pytest.importorskip("ipywidgets")
from lessons_lib.viz.dashboard.live import Dashboard

STEP = EngineStep(0.0, {"forward": 0.5}, 20, 10, 10, 4, 2, 15, 3, 1, 8)


def with_steps(*steps):
    engine = an_engine()
    for step in steps:
        engine.metrics.add_step(step)
    return engine.metrics.snapshot(), list(engine.metrics.recent)


# The picture


def test_figures_are_those_of_the_snapshot():
    snapshot, steps = with_steps(STEP, replace(STEP, new_tokens=20))
    snapshot["requests"] = {"stop": 1200, "error": 34}
    for name, p50, p99 in (("ttft", 0.05, 2.0), ("itl", 0.002, None)):
        snapshot[name] |= {"count": 9, "p50": p50, "p99": p99}
    found = texts(draw_dashboard(snapshot, steps))
    for value in ("30", "≤ 50 ms · ≤ 2 s", "≤ 2 ms · > 100 s", "1,234", "2", "44 %"):
        assert value in found, value
    assert "The engine after 2 steps" in found


def test_gauges_show_the_last_step_and_the_mean():
    snapshot, steps = with_steps(STEP, replace(STEP, running=8, tokens=32, used_blocks=30))
    picture = draw_dashboard(snapshot, steps)
    assert [text for text in texts(picture) if "the last step" in text] == [
        "8 of 8 in the last step; mean (│) 75 %", "32 of 32 in the last step; mean (│) 81 %", "30 of 60 after the last step; mean "
                                                                                              "(│) 38 %"
    ]  # fmt: skip
    widths = {
        title.text: float(rect.get("width"))
        for rect in elements(picture, "rect")
        for title in rect
        if "last step" in title.text
    }
    assert widths["blocks: 30 of 60 after the last step"] == pytest.approx(widths["slots: 8 of 8 in the last step"] / 2)


def test_an_axis_says_how_high_its_top_is():
    steps = [replace(STEP, new_tokens=0, running=running, waiting=0) for running in (1, 8)]
    picture = draw_dashboard(*with_steps(*steps))
    top = min(float(text.get("y")) for text in elements(picture, "text") if text.get("text-anchor") == "end")
    labels = {
        text.text
        for text in elements(picture, "text")
        if text.get("text-anchor") == "end" and float(text.get("y")) == top
    }
    assert "8" in labels


def curves(picture):
    """(fill of the area or None, heights) of each curve."""
    found = []
    for path in elements(picture, "path"):
        heights = [float(y) for y in re.findall(r"V([\d.]+)H", path.get("d"))]
        if heights and (path.get("fill") != "none" or path.get("stroke") == SERIES[1]):
            found.append((path.get("fill"), heights))
    return found


def test_curves_follow_the_steps():
    steps = [
        replace(STEP, new_tokens=new, running=running, waiting=waiting)
        for new, running, waiting in ((10, 1, 4), (20, 2, 3), (0, 4, 0))
    ]
    tokens, running, waiting = (heights for _, heights in curves(draw_dashboard(*with_steps(*steps))))
    base, top = tokens[2], tokens[1]
    assert tokens[0] == pytest.approx((base + top) / 2) and base - top == 96
    assert [round((base - y) / 24, 2) for y in running] == [1, 2, 4]
    assert [round((base - y) / 24, 2) for y in waiting] == [4, 3, 0]


def test_a_thousand_steps_are_drawn_quickly_and_small():
    snapshot, steps = with_steps(*[replace(STEP, running=n % 8) for n in range(1500)])
    assert len(steps) == 1000
    started = time.process_time()
    picture = draw_dashboard(snapshot, steps, [f"w{n}" for n in range(500)], [f"r{n}" for n in range(64)])
    assert time.process_time() - started < 1
    assert len(picture.svg) < 40_000 and all(len(heights) <= 120 for _, heights in curves(picture))
    assert "The engine after 1,500 steps" in texts(picture) and "the last 1,000 steps" in texts(picture)


def test_before_the_first_step():
    picture = draw_dashboard(*with_steps())
    assert "The engine before its first step" in texts(picture) and texts(picture).count("no steps yet") == 2
    assert not curves(picture)
    assert len(curves(draw_dashboard(*with_steps(STEP)))) == 3


def test_names_have_their_colours_and_fit():
    names = ["A", "B/1", "a-very-long-name-that-nobody-can-read-7", *(f"r{n}" for n in range(90))]
    picture = draw_dashboard(*with_steps(STEP), names, ["C"])
    chips = {title.text: rect for rect in elements(picture, "rect") for title in rect if title.text in names}
    assert chips["A"].get("fill") == color_of("A") and chips["B/1"].get("fill") == color_of("B")
    assert all(float(rect.get("x")) + float(rect.get("width")) < 884 for rect in chips.values())
    (more,) = [text for text in texts(picture) if text.endswith(" more")]
    assert more == f"+ {len(names) - len(chips)} more"
    assert "waiting 93" in texts(picture) and "running 1" in texts(picture)
    short = next(text for text in texts(picture) if "…" in text)
    assert len(short) == 12 and short.endswith("read-7")


def test_all_names_are_shown_if_they_just_fit():
    names = [f"{n}" for n in range(9)]
    assert not any("more" in text for text in texts(draw_dashboard(*with_steps(STEP), names, names)))


def test_the_words_say_the_same():
    snapshot, steps = with_steps(STEP)
    snapshot["requests"] = {"stop": 2}
    alt = draw_dashboard(snapshot, steps, ["A"], [str(n) for n in range(20)]).alt
    for words in (
        "after 1 step.",
        "tokens per second: 20",
        "(2 by stop)",
        "blocks 15 of 60 after it, mean 25 %",
        "waiting 1: A",
        "10, 11 and 8 more",
    ):
        assert words in alt, words


def test_it_draws_what_was_written_to_a_file_and_read_again():
    snapshot, steps = with_steps(STEP)
    assert draw_dashboard(json.loads(json.dumps(snapshot)), steps) == draw_dashboard(snapshot, steps)


# The widget


class Words:
    """A tokenizer that reads letters, too."""

    eos_token_id = 12

    def __call__(self, text):
        return type("Encoded", (), {"input_ids": [ord(character) - ord("!") for character in text]})

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(map(letter, token_ids))


def a_dashboard(**config):
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, block_size=4, num_blocks=60)
    engine = LLMEngine(a_model(), Words(), EngineConfig(**sizes | config))
    dashboard = Dashboard(engine, greedy(8, ignore_eos=True))
    dashboard.prompt.value = "Abc"
    return dashboard


def expected_text():
    return "".join(map(letter, alone("qwen2", [ord(character) - ord("!") for character in "Abc"], 8, ignore_eos=True)))


def said(dashboard):
    return "".join(ET.fromstring(dashboard.message.value).itertext())


def shown_texts(dashboard):
    return "".join(ET.fromstring(f"<div>{dashboard.texts.value}</div>").itertext())


def test_a_request_is_added_and_stepped_by_buttons():
    dashboard = a_dashboard()
    before = dashboard.picture.value
    dashboard.add_button.click()
    assert said(dashboard) == "Request 0 waits for the next step." and dashboard.picture.value != before
    for tokens in range(1, 8):
        dashboard.step_button.click()
        assert shown_texts(dashboard) == f"0 {expected_text()[:tokens]}"
        assert f"The engine after {tokens} step" in dashboard.picture.value
    dashboard.step_button.click()
    assert (
        said(dashboard) == "Request 0 finished: length." and shown_texts(dashboard) == f"0 {expected_text()} (length)"
    )
    assert [output.text for output in dashboard.outputs] == [expected_text()]


def test_run_goes_on_until_it_is_paused_and_lets_others_work():
    dashboard = a_dashboard()
    dashboard.params = greedy(200, ignore_eos=True)
    dashboard.add_button.click()

    async def play():
        dashboard.run_button.click()
        assert dashboard.is_running and dashboard.run_button.description == "pause"
        others = 0
        while dashboard.metrics.steps < 5:
            await asyncio.sleep(0)
            others += 1
        dashboard.run_button.click()
        assert dashboard.run_button.description == "run" and said(dashboard) == "Paused." and others >= 5
        steps = dashboard.metrics.steps
        await asyncio.sleep(0.05)
        assert dashboard.metrics.steps == steps
        dashboard.run_button.click()
        dashboard.run_button.click()
        dashboard.run_button.click()  # paused and run again at once
        await asyncio.sleep(0.02)
        assert len(asyncio.all_tasks()) == 2, "this one and a single one that steps"
        await dashboard._task
        assert not dashboard.is_running and dashboard.run_button.description == "run"

    asyncio.run(play())
    assert dashboard.metrics.steps == 200 and not dashboard.engine.has_unfinished()
    assert "The engine after 200 steps" in dashboard.picture.value


def test_what_says_that_it_has_paused_comes_after_what_it_shows(monkeypatch):
    """Each change travels to the page in a message of its own: the last one tells that all the others are there."""
    monkeypatch.setattr("lessons_lib.viz.dashboard.live._REDRAW_SECONDS", 1000)
    dashboard = a_dashboard()
    dashboard.add()
    changes = []

    async def play():
        dashboard.run()
        while dashboard.metrics.steps < 3:
            await asyncio.sleep(0)
        for part, widget, trait in (
            ("texts", dashboard.texts, "value"),
            ("picture", dashboard.picture, "value"),
            ("message", dashboard.message, "value"),
            ("run", dashboard.run_button, "description"),
        ):
            widget.observe(lambda _, part=part: changes.append(part), trait)
        dashboard.pause()
        steps = dashboard.metrics.steps
        await dashboard._task
        assert f"The engine after {steps} step" in dashboard.picture.value

    asyncio.run(play())
    assert changes == ["texts", "picture", "message", "run"]


def test_a_pause_from_another_thread_waits_for_the_step_under_way():
    """JupyterLab sends clicks to a thread of their own, once a widget has answered from there."""
    dashboard = a_dashboard()
    dashboard.add()
    pausing = threading.Thread(target=dashboard.pause)
    step, shown = dashboard.engine.step, []
    dashboard.message.observe(lambda _: shown.append(dashboard.picture.value), "value")

    def step_while_a_click_arrives():
        if dashboard.metrics.steps == 2:
            pausing.start()
            pausing.join(0.2)  # enough for a pause that does not wait
        return step()

    dashboard.engine.step = step_while_a_click_arrives

    async def play():
        dashboard.run()
        await dashboard._task

    asyncio.run(play())
    pausing.join()
    assert said(dashboard) == "Paused." and dashboard.run_button.description == "run"
    assert f"The engine after {dashboard.metrics.steps} step" in shown[-1]


def test_run_without_an_event_loop_runs_at_once():
    dashboard = a_dashboard()
    dashboard.add()
    dashboard.add()
    dashboard.run()
    assert [output.text for output in dashboard.outputs] == [expected_text()] * 2 and not dashboard.is_running
    dashboard.run()
    assert not dashboard.is_running, "there is nothing to do"


def test_it_follows_the_steps_of_others_but_not_too_often(monkeypatch):
    dashboard = a_dashboard()
    redraws = []
    redraw = dashboard.redraw
    monkeypatch.setattr(dashboard, "redraw", lambda: redraws.append(1) or redraw())
    now = [0.0]
    monkeypatch.setattr("lessons_lib.viz.dashboard.live.time.monotonic", lambda: now[0])
    dashboard._drawn_at = 0.0
    dashboard.engine.core.observers.insert(0, lambda step, requests: now.__setitem__(0, now[0] + 0.05))
    dashboard.engine.generate([[1, 2]], greedy(31, ignore_eos=True))
    assert 8 <= len(redraws) <= 12, "at most about eight times a second"
    assert "The engine after 31 steps" in dashboard.picture.value, "the last one is drawn in any case"
    dashboard.close()
    dashboard.engine.generate([[1, 2]], greedy(3))
    assert "The engine after 31 steps" in dashboard.picture.value


def test_what_is_refused_is_said():
    dashboard = a_dashboard()
    dashboard.prompt.value = ""
    dashboard.add_button.click()
    assert said(dashboard).startswith("Refused. BadRequest: request '0' is empty")
    assert not dashboard.engine.requests


def test_an_error_of_the_model_is_said_and_one_of_the_scheduler_stops_it():
    dashboard = a_dashboard()
    dashboard.add()
    forward = dashboard.engine.runner.forward
    dashboard.engine.runner.forward = lambda plan: 1 / 0
    dashboard.run()
    assert said(dashboard) == "Request 0 finished: ZeroDivisionError: division by zero." and not dashboard.is_running
    dashboard.engine.runner.forward = forward
    dashboard.add()
    dashboard.engine.scheduler.schedule = lambda: [][0]
    dashboard.run()
    assert said(dashboard).startswith("The step failed. IndexError") and not dashboard.is_running


def test_a_picture_that_fails_stops_no_engine():
    dashboard = a_dashboard()
    dashboard.metrics.recent.append("no step")
    dashboard.add()
    assert "could not be drawn" in dashboard.picture.value
    dashboard.run()
    assert len(dashboard.outputs) == 1


def test_texts_are_escaped_and_cut():
    dashboard = a_dashboard()
    dashboard.params = SamplingParams(max_tokens=60, temperature=3.0, seed=0, ignore_eos=True, n=3)
    dashboard.add()
    for _ in range(50):
        dashboard.step()
    assert "<script" not in dashboard.texts.value and shown_texts(dashboard).count("0 ") >= 3
    for _ in range(12):
        dashboard.add()
    dashboard.run()
    assert dashboard.texts.value.count("<div") == 8


def test_a_still_picture_is_left_behind():
    dashboard = a_dashboard()
    dashboard.add()
    dashboard.step()
    bundle = dashboard._repr_mimebundle_()
    assert "image/svg+xml" in bundle and "The engine after 1 step." in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_it_can_be_found_and_driven():
    dashboard = a_dashboard()
    assert "lessons-dashboard" in dashboard._dom_classes
    for part, widget in (("step", dashboard.step_button), ("run", dashboard.run_button), ("add", dashboard.add_button)):
        assert f"lessons-dashboard-{part}" in widget._dom_classes and widget.tooltip
    for part in ("prompt", "message", "picture", "texts"):
        assert f"lessons-dashboard-{part}" in getattr(dashboard, part)._dom_classes
    assert 'role="status"' in dashboard.message.value


# Lanes, pool and trouble


def with_lanes(*steps, most_blocks=8, **use):
    snapshot, recent = with_steps(STEP)
    return draw_dashboard(snapshot, recent, lanes=steps, pool=PoolUse(most_blocks, **use))


def named(picture, kind):
    """Hover texts of this kind -> x and width of what they are on."""
    return {
        title.text: (float(rect.get("x")), float(rect.get("width")))
        for rect in elements(picture, "rect")
        for title in rect
        if title.text.startswith(kind) or title.text.endswith(kind)
    }


def test_lanes_show_who_was_in_a_slot_and_the_newest_step_is_at_the_right():
    prefill, decode = Lane("A", "prefill"), Lane("A", "decode")
    picture = with_lanes((prefill,), (decode, None), (decode, Lane("B", "prefill")), owners={}, cached=frozenset())
    (x, width), (next_x, next_width) = named(picture, "prefill")["A: prefill"], named(picture, "decode")["A: decode"]
    assert next_x == pytest.approx(x + width, abs=0.1) and next_width == pytest.approx(2 * width, abs=0.1)
    other_x, other_width = named(picture, "prefill")["B: prefill"]
    assert other_x + other_width == pytest.approx(next_x + next_width, abs=0.1)
    assert "batch slots in the last 3 steps" in texts(picture) and not curves(picture)


@pytest.mark.parametrize("count", [1, 15, 16, 30, 31, 60])
def test_lanes_begin_at_the_left_and_take_at_least_half_of_their_room_from_eight_steps_on(count):
    steps = [(Lane("A", "prefill"),), *[(Lane("A", "decode"),)] * (count - 1)]
    picture = with_lanes(*steps, owners={}, cached=frozenset())
    x, width = named(picture, "prefill")["A: prefill"]
    assert x == 16 and width * count <= 548 + 0.5
    assert count < 8 or width * count >= 548 / 2


def test_blocks_have_the_colours_of_their_sequences_and_shared_ones_have_both():
    picture = with_lanes(owners={2: ("A",), 5: ("A", "B/1")}, cached=frozenset({0}))
    assert "blocks: 2 in use, 1 free but cached, of 8" in texts(picture) and "no steps yet" in texts(picture)
    fills = [
        rect.get("fill") for rect in elements(picture, "rect") for title in rect if title.text == "block 5: A, B/1"
    ]
    assert fills == [color_of("A"), color_of("B")]


def test_many_slots_and_blocks_fit_and_what_is_left_out_is_said():
    many = tuple(Lane(f"r{n}", "decode") for n in range(40))
    picture = with_lanes(many, most_blocks=20_000, owners=dict.fromkeys(range(20000), ("r0",)), cached=frozenset())
    assert "24 more slots" in texts(picture)
    assert any(re.fullmatch(r"the first [\d,]+ are drawn", text) for text in texts(picture))
    assert all(
        float(rect.get("y")) < 270 for rect in elements(picture, "rect") for title in rect if "block " in title.text
    )


def in_trouble(dashboard, which):
    dashboard.trouble.value = next(option for option in dashboard.trouble.options if which in option)
    dashboard.trouble_button.click()
    return said(dashboard)


def test_a_crowd_comes_at_once_and_all_are_served():
    dashboard = a_dashboard()
    assert in_trouble(dashboard, "at once").startswith("8 requests have come at once: 0, 1, 2")
    dashboard.run()
    assert [output.text for output in dashboard.outputs] == [expected_text()] * 8


def test_a_long_prompt_is_as_long_as_half_of_what_there_is_room_for():
    dashboard = a_dashboard(num_blocks=16, block_size=4)
    tokens = int(re.search(r"a prompt of (\d+) tokens", in_trouble(dashboard, "long"))[1])
    (request,) = dashboard.engine.requests.values()
    assert len(request.prompt_ids) == tokens <= 32


def test_a_reader_leaves_and_without_one_that_is_said():
    dashboard = a_dashboard()
    assert "no request" in in_trouble(dashboard, "leaves")
    dashboard.add()
    assert "request 0 has left" in in_trouble(dashboard, "leaves") and not dashboard.engine.requests


def test_the_model_fails_once_and_the_engine_serves_on():
    dashboard = a_dashboard()
    dashboard.add()
    in_trouble(dashboard, "fails")
    dashboard.step()
    assert said(dashboard) == "Request 0 finished: RuntimeError: the model has failed, as asked for."
    dashboard.add()
    dashboard.run()
    assert dashboard.outputs[-1].text == expected_text()


def test_the_dashboard_shows_the_lanes_of_its_engine():
    dashboard = a_dashboard()
    dashboard.add()
    dashboard.step()
    assert "0: prefill" in dashboard.picture.value and "block " in dashboard.picture.value
    dashboard.close()
    assert not dashboard.engine.core.observers
