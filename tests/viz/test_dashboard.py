"""The dashboard: its picture, a pure function of plain data; and the widget, driven without a browser."""

import asyncio
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from engine_cases import a_model, alone, greedy, letter
from picture_cases import ENGINE_STEP, metrics_of
from svg_reading import elements, texts

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.recording.engine_lanes import PoolUse
from lessons_lib.viz.dashboard.picture import draw_dashboard
from lessons_lib.viz.drawing.palette import color_of

pytest.importorskip("ipywidgets")
from lessons_lib.viz.dashboard.live import Dashboard

# The picture


def test_gauges_show_the_last_step_and_the_mean():
    snapshot, steps = metrics_of(ENGINE_STEP, replace(ENGINE_STEP, running=8, tokens=32, used_blocks=30))
    picture = draw_dashboard(snapshot, steps, [], [], [], PoolUse(60, {}, frozenset()))
    assert [text for text in texts(picture) if "the last step" in text] == [
        "8 of 8 in the last step; mean (│) 75 %",
        "32 of 32 in the last step; mean (│) 81 %",
        "30 of 60 after the last step; mean (│) 38 %",
    ]
    rects = elements(picture, "rect")
    widths = {title.text: float(rect.get("width")) for rect in rects for title in rect if "last step" in title.text}
    assert widths["blocks: 30 of 60 after the last step"] == pytest.approx(widths["slots: 8 of 8 in the last step"] / 2)


def test_blocks_have_the_colours_of_their_sequences_and_shared_ones_have_both():
    use = PoolUse(8, {2: ("A",), 5: ("A", "B/1")}, frozenset({0}))
    picture = draw_dashboard(*metrics_of(ENGINE_STEP), [], [], [], use)
    assert "blocks: 2 in use, 1 free but cached, of 8" in texts(picture) and "no steps yet" in texts(picture)
    rects = elements(picture, "rect")
    fills = [rect.get("fill") for rect in rects for title in rect if title.text == "block 5: A, B/1"]
    assert fills == [color_of("A"), color_of("B")]


# The widget


class Words:
    """A tokenizer that reads letters, too."""

    eos_token_id = 12

    def __call__(self, text):
        return type("Encoded", (), {"input_ids": [ord(character) - ord("!") for character in text]})

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(map(letter, token_ids))


@pytest.fixture
def dashboard():
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, block_size=4, num_blocks=60)
    dashboard = Dashboard(LLMEngine(a_model(), Words(), EngineConfig(**sizes)), greedy(8, ignore_eos=True))
    dashboard.prompt.value = "Abc"
    return dashboard


def expected_text():
    return "".join(map(letter, alone("qwen2", [ord(character) - ord("!") for character in "Abc"], 8, ignore_eos=True)))


def said(dashboard):
    return "".join(ET.fromstring(dashboard.message.value).itertext())


def shown_texts(dashboard):
    return "".join(ET.fromstring(f"<div>{dashboard.texts.value}</div>").itertext())


def test_a_request_is_added_and_stepped_by_buttons(dashboard):
    before = dashboard.picture.value
    dashboard.add_button.click()
    assert said(dashboard) == "Request 0 waits for the next step." and dashboard.picture.value != before
    for tokens in range(1, 8):
        dashboard.step_button.click()
        assert shown_texts(dashboard) == f"0 {expected_text()[:tokens]}"
        assert f"The engine after {tokens} step" in dashboard.picture.value
    bundle = dashboard._repr_mimebundle_()
    assert "image/svg+xml" in bundle and "The engine after 7 steps." in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    dashboard.step_button.click()
    assert said(dashboard) == "Request 0 finished: length."
    assert shown_texts(dashboard) == f"0 {expected_text()} (length)"
    assert [output.text for output in dashboard.outputs] == [expected_text()]


def test_run_goes_on_until_it_is_paused_and_lets_others_work(dashboard):
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
        for _ in range(3):
            dashboard.run_button.click()  # paused and run again at once
        await asyncio.sleep(0.02)
        assert len(asyncio.all_tasks()) == 2, "this one and a single one that steps"
        await dashboard._task
        assert not dashboard.is_running and dashboard.run_button.description == "run"

    asyncio.run(play())
    assert dashboard.metrics.steps == 200 and not dashboard.engine.has_unfinished()
    assert "The engine after 200 steps" in dashboard.picture.value


def test_a_pause_from_another_thread_waits_for_the_step_under_way(dashboard):
    """JupyterLab sends clicks to a thread of their own, once a widget has answered from there."""
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


def test_it_follows_the_steps_of_others_but_not_too_often(dashboard, monkeypatch):
    redraws, redraw, now = [], dashboard.redraw, [0.0]
    monkeypatch.setattr(dashboard, "redraw", lambda: redraws.append(1) or redraw())
    monkeypatch.setattr("lessons_lib.viz.dashboard.live.time.monotonic", lambda: now[0])
    dashboard._drawn_at = 0.0
    dashboard.engine.core.observers.insert(0, lambda step, requests: now.__setitem__(0, now[0] + 0.05))
    dashboard.engine.generate([[1, 2]], greedy(31, ignore_eos=True))
    assert 8 <= len(redraws) <= 12, "at most about eight times a second"
    assert "The engine after 31 steps" in dashboard.picture.value, "the last one is drawn in any case"
    dashboard.close()
    assert len(dashboard.engine.core.observers) == 1, "the one of this test"
    dashboard.engine.generate([[1, 2]], greedy(3))
    assert "The engine after 31 steps" in dashboard.picture.value


def test_what_is_refused_and_what_fails_is_said(dashboard):
    dashboard.prompt.value = ""
    dashboard.add_button.click()
    assert said(dashboard).startswith("Refused. BadRequest: request '0' is empty") and not dashboard.engine.requests
    dashboard.prompt.value = "Abc"
    dashboard.add()
    forward, dashboard.engine.runner.forward = dashboard.engine.runner.forward, lambda plan: 1 / 0
    dashboard.run()
    assert said(dashboard).endswith("finished: ZeroDivisionError: division by zero.") and not dashboard.is_running
    dashboard.engine.runner.forward = forward
    dashboard.add()
    dashboard.engine.scheduler.schedule = lambda: [][0]
    dashboard.run()
    assert said(dashboard).startswith("The step failed. IndexError") and not dashboard.is_running


def test_a_picture_that_fails_stops_no_engine(dashboard):
    dashboard.metrics.recent.append("no step")
    dashboard.add()
    assert "could not be drawn" in dashboard.picture.value
    dashboard.run()
    assert len(dashboard.outputs) == 1


# Trouble


def in_trouble(dashboard, which):
    dashboard.trouble.value = next(option for option in dashboard.trouble.options if which in option)
    dashboard.trouble_button.click()
    return said(dashboard)


def test_trouble_is_made_and_the_engine_serves_on(dashboard):
    assert "no request" in in_trouble(dashboard, "leaves")
    assert in_trouble(dashboard, "at once").startswith("8 requests have come at once: 0, 1, 2")
    dashboard.run()
    assert [output.text for output in dashboard.outputs] == [expected_text()] * 8
    dashboard.add()
    assert "request 8 has left" in in_trouble(dashboard, "leaves") and not dashboard.engine.requests
    dashboard.add()
    in_trouble(dashboard, "fails")
    dashboard.step()
    assert said(dashboard).endswith("finished: RuntimeError: the model has failed, as asked for.")
    assert "has a prompt of" in in_trouble(dashboard, "long prompt")
    dashboard.add()
    dashboard.run()
    assert dashboard.outputs[-1].text == expected_text() or dashboard.outputs[-2].text == expected_text()
