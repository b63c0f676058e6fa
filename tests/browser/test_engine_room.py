"""The engine room: its Python here, and the page in Chromium, from a file server and with no other network."""

import gzip
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from accessibility import axe_faults, axe_source

from lessons_lib.engine import SamplingParams
from lessons_lib.viz.engine_room import build, recording
from lessons_lib.viz.engine_room.notebook import serve
from lessons_lib.viz.engine_room.room import DEFAULTS, POLICIES, Room, sources
from tools.site.__main__ import write_front_page

MOST_BYTES, MOST_BYTES_FIRST, MOST_BYTES_FRONT = 18_000_000, 100_000, 600_000
KNOBS = {  # each makes another run
    **dict(rate=9, answer=90, prompts="long", seed=5, size=8, blocks=24, budget=8, slots=3, policy="shortest"),
    **dict(admission="conservative", sharing=0, victims="swap", temperature=0),
}
CLAIMS = (  # of each scenario: row of its table, number in it, factor by which that grows (-: shrinks, 0: neither)
    [(0, 0, -2), (0, -1, 1.3), (1, 0, 0)],
    [(0, -1, -2), (1, -1, 2)],
    [(0, 0, -2), (1, -1, -2), (2, 0, 2), (2, -1, 1.1)],
    [(0, 0, -2), (1, 0, -1.5), (2, 0, 2)],
    [(0, 0, 1.3), (1, 0, -9), (2, 0, -1.5), (3, 0, -1.3)],
    [(0, 0, 9), (0, -1, 9), (1, 0, 1.5)],
)
TEXTS = [text for kind in ("short", "stories", "system") for text in recording.PROMPTS[kind]]  # 20 of them


def fake_prompts(seed=1):
    draws = random.Random(seed)
    return {
        kind: [[draws.randrange(1, 4096) for _ in text.split()] for text in texts]
        for kind, texts in recording.PROMPTS.items()
    }


def run(steps, **settings):
    """The frames of a run whose tokens are made up."""
    room, frames = Room(DEFAULTS | settings, fake_prompts()), []
    for step in range(steps):
        plan = json.loads(room.plan())
        frames.append(plan if "error" in plan else json.loads(room.done([5 + step % 50] * len(plan["rows"]))))
        if "error" in frames[-1]:
            break
    return frames


def test_the_same_requests_arrive_whatever_the_machine_and_a_run_is_the_same_each_time():
    first, again, other = run(60), run(60), run(60, blocks=96, policy="shortest", budget=64)
    assert first == again and first != other
    arrived = [[each[:3] for frame in frames for each in frame["arrived"]] for frames in (first, other)]
    shorter = min(map(len, arrived))
    assert shorter > 5 and arrived[0][:shorter] == arrived[1][:shorter]


def is_held_by(why, frame, settings):
    """True if what a frame tells of its next waiting request is so, by what else the frame tells."""
    (first, rule, needed, free), ran = why, len(frame["running"]) + len(frame["finished"])
    used = {block for *_, blocks in frame["running"] for block in blocks}
    assert first in [name for name, *_ in frame["waiting"]] and free <= settings["blocks"] - len(used)
    return {
        **dict(preempted=frame["preempted"], stalled=frame["stalled"], slots=ran == settings["slots"]),
        "budget": sum(count for *_, count in frame["rows"]) == settings["budget"],
        "admission": ran and (settings["admission"] == "conservative" or needed + 1 > free),
    }[rule]


KINDS = [*(name for name in KNOBS if name != "temperature"), *(f"policy {name}" for name in POLICIES)]


@pytest.mark.parametrize("name", KINDS)
def test_each_knob_changes_the_run(name):
    name, _, value = name.partition(" ")
    hard = dict(blocks=24, rate=9) | ({"prompts": "system"} if name == "sharing" else {})
    changed = hard | {name: value or {**KNOBS, "blocks": 40, "rate": 3}[name]}
    frames = run(150, **changed)
    assert frames != run(150, **hard) or value == "fcfs"
    told = [frame for frame in frames if frame["waiting"]]
    assert all(is_held_by(frame["why"], frame, DEFAULTS | changed) for frame in told) and len(told) > 9
    assert not any(frame["why"] for frame in frames if not frame["waiting"])


def test_what_fits_nowhere_and_a_deadlock_are_told():
    room = Room(DEFAULTS | {"rate": 0, "blocks": 8}, fake_prompts())
    room.sent.append((0, [7] * 20, 60))
    room.plan()
    (told,) = json.loads(room.done([]))["refused"]
    assert told[0] == "A" and "the pool has 8" in told[1]
    error = run(300, victims="stall", blocks=12, rate=12, prompts="short")[-1]["error"]
    assert error["kind"] == "Deadlock" and error["line"] is None


def test_own_code_runs_in_place_of_ours_and_a_fault_names_its_line():
    ours = sources()
    assert run(80) == run(80, **ours), "the course's own code, handed back"
    assert run(80, rank="def rank(self, sequence):\n    return -sequence.max_new_tokens\n", rate=12) != run(80, rate=12)
    for code, kind, line in (
        ("def schedule(self):\n    return 1 / 0\n", "ZeroDivisionError", 2),
        ("def schedule(self)\n    pass\n", "SyntaxError", 1),
        (ours["schedule"].replace("sequence] = count", "sequence] = count + 1"), "ValueError", None),
    ):
        try:
            error = run(9, schedule=code)[-1]["error"]
        except SyntaxError as found:  # it isn't run at all
            error = {"kind": "SyntaxError", "line": found.lineno}
        assert (error["kind"], error["line"]) == (kind, line)


def test_the_recording_is_what_the_engine_does():
    kept = json.loads(recording.FILE.read_text(encoding="utf-8"))
    assert kept["prompts"] == recording.PROMPTS and len(kept["frames"]) == recording.RECORDED_STEPS
    assert kept["frames"][:45] == recording.record(45, recording.Answers())


@pytest.mark.nightly
def test_the_kernels_are_built_from_their_source(tmp_path):
    compiler = build.ROOT / "node_modules" / ".bin" / "asc"
    if not compiler.exists():
        pytest.skip("`npm install --no-save assemblyscript@0.28.20` brings the compiler")
    options = ["-O3", "--enable", "simd", "--runtime", "stub", "--importMemory", "--noAssert"]
    subprocess.run([compiler, build.PAGE / "kernels.ts", *options, "-o", tmp_path / "kernels.wasm"], check=True)
    assert (tmp_path / "kernels.wasm").read_bytes() == (build.PAGE / "kernels.wasm").read_bytes()


# --- in a browser --------------------------------------------------------------------------------------
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_front_page(folder)
    return folder, build.write_page(folder)


@pytest.fixture
def opened(chromium, site):
    """A function that opens the page: `opened("#rate=3")`. Requests to anything but the file server fail the test.
    `tab.loaded` lists the files that were asked for."""
    contexts, outside = [], []

    def open_page(address="", wait="first", page="engine_room.html", never="nothing", **options):
        contexts.append(chromium.new_context(viewport={"width": 1440, "height": 900}, **options))
        tab = contexts[-1].new_page()
        home = serve(site[0])
        tab.route(lambda to: not to.startswith(home), lambda route: (outside.append(route.request.url), route.abort()))
        tab.route(f"**/{never}", lambda route: None)
        tab.on("pageerror", lambda error: outside.append(str(error)))
        tab.loaded = []
        tab.on("request", lambda request: tab.loaded.append(request.url.removeprefix(f"{home}/").split("?")[0]))
        tab.goto(f"{home}/{page}{address}")
        tab.frames[-1].wait_for_function(f"document.body.dataset.{wait}", timeout=120_000)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert outside == []


@pytest.fixture(scope="module")
def live(chromium, site):
    """The page with its engine, at rest."""
    if not site[1]:
        pytest.skip(f"no Pyodide; `{' '.join(build.INSTALL)}` brings it")
    tab = chromium.new_context().new_page()
    tab.goto(f"{serve(site[0])}/engine_room.html?still")
    tab.wait_for_function("document.body.dataset.ready", timeout=120_000)
    tab.add_script_tag(path=Path(__file__).with_name("engine_room.js"))
    yield tab
    tab.close()


def test_bytes(site):
    sizes = {
        file.name: len(gzip.compress(file.read_bytes()))
        for file in site[0].rglob("*")
        if file.suffix != ".ts" and file.is_file()
    }
    assert "python.bin" in sizes or not (site[1] and shutil.which("node")), "else it is live only after twice the time"
    first = ("engine_room.html", "room.css", "room.js", "pictures.js", "figures.js", "scenarios.js", "begin.json")
    assert sum(sizes[name] for name in first) < MOST_BYTES_FIRST and sum(sizes.values()) < MOST_BYTES


def test_the_recording_plays_and_goes_back_while_nothing_else_is_loaded(opened, site):
    tab = opened(never="weights.bin")
    tab.wait_for_function("document.body.dataset.step > 42")
    tab.keyboard.press("Space")
    step = int(tab.evaluate("document.body.dataset.step"))
    tab.keyboard.press("ArrowLeft")
    tab.wait_for_function(f"document.body.dataset.step == {step - 1}")
    assert tab.locator("#play").inner_text() == "Play"
    assert re.search(r"[?]?#.*step=", tab.url) is None or f"step={step}" in tab.url
    if site[1]:  # another run waits for the engine, and this one stops
        tab.get_by_text("thrashing").click()
        tab.locator("main:has(#pending:not([hidden])) > #pool[inert]").wait_for()
        assert tab.evaluate("new Promise(end => setTimeout(() => end(+document.body.dataset.step), 600))") == step - 1


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_first_page_plays_the_room_and_is_light(opened, site, width, scheme):
    tab = opened(page="index.html", color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    room = tab.frames[1]
    room.wait_for_function("document.body.dataset.step > 62")
    loaded = set(tab.loaded)
    assert "assets/static_and_continuous.svg" not in loaded and "engine_room/worker.js" not in loaded
    assert sum((site[0] / file).stat().st_size for file in loaded) <= MOST_BYTES_FRONT
    room.evaluate("speed.value = 0")
    room.wait_for_function("room.run.frames.length === 120 && room.state.index < 60")  # it begins again
    for frame in tab.frames:
        assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert axe_source() is None or axe_faults(frame, axe_source()) == []
    assert room.evaluate("document.documentElement.scrollHeight <= innerHeight"), "nothing is cut"


def test_the_first_page_rests_for_those_who_want_no_motion_and_needs_no_script(opened, site, chromium):
    still = opened(page="index.html", reduced_motion="reduce")
    assert still.frame_locator("iframe").locator("#play").inner_text() == "Play"
    still.get_by_text("First lesson").focus()
    for _ in range(4):  # the engine room's link, the benchmarks', the room itself, its button
        still.keyboard.press("Tab")
    still.keyboard.press("Enter")
    assert still.frame_locator("iframe").locator("#play").inner_text() == "Pause"
    plain = chromium.new_context(java_script_enabled=False).new_page()
    plain.goto(f"{serve(site[0])}/index.html")
    assert plain.locator("figure img").is_visible() and plain.locator("iframe").count() == 0
    plain.context.close()


def test_arrow_keys_lead_from_block_to_block_and_over_the_mask(opened):
    tab = opened("?still")
    pool, told = tab.locator("#pool canvas"), tab.locator("#picked")
    pool.focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        tab.keyboard.press(key)
        seen.append(int(re.match(r"block (\d+)", told.inner_text())[1]))
    across = seen[2] - seen[1]
    assert seen == [0, 1, 1 + across, across, 0] and across > 1
    tab.locator("#mask").focus()
    tab.keyboard.press("ArrowRight")
    assert re.fullmatch(r"[A-Z], positions? \d+.*", told.inner_text()) and tab.locator(".text .marked").count() > 0
    tab.keyboard.press("Escape")
    assert tab.locator(".text .marked").count() == 0
    assert tab.evaluate("document.body.dataset.step") == tab.evaluate("String(room.run.frames.length)"), "no step back"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_it_fits_and_can_be_read(opened, width, scheme):
    tab = opened("?still", color_scheme=scheme, reduced_motion="reduce")
    tab.set_viewport_size({"width": width, "height": 800})
    heights = "[...document.querySelectorAll('main > section')].map(each => each.offsetHeight)"
    before = tab.evaluate(heights)
    for _ in range(3):
        tab.locator("#once").click()
    assert tab.evaluate(heights) == before, "canvases don't grow with what is drawn on them"
    tab.get_by_text("thrashing").click()
    assert width < 700 or max(tab.evaluate("[figures, tables].map(e => e.getBoundingClientRect().y)")) < 700, "in view"
    tab.locator("#write").click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert axe_source() is None or axe_faults(tab, axe_source()) == []


def test_steps_equal_those_of_python_and_the_recording(live):
    kept = json.loads(recording.FILE.read_text(encoding="utf-8"))["frames"]
    assert live.evaluate("framesOf", [DEFAULTS, 50]) == kept[:50]
    swaps = dict(blocks=24, victims="swap", rate=9)
    expected = recording.record(60, recording.Answers(), swaps)
    assert live.evaluate("framesOf", [DEFAULTS | swaps, 60]) == expected
    assert sum(frame["swaps"] for frame in expected) > 0


def test_texts_equal_those_of_the_engine(live):
    answers = recording.Answers()
    for temperature in (0, 0.8):
        prompts = [answers.tokenizer(text)["input_ids"] for text in TEXTS]
        params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=16) for seed in range(len(TEXTS))]
        expected = [output.completions[0].token_ids for output in answers.engine.generate(prompts, params)]
        assert live.evaluate("given => room.ask('texts', ...given)", [TEXTS, 16, temperature]) == expected


def test_the_number_of_a_block_stays_inside_it(live):
    live.evaluate("watchDrawing()")
    assert live.evaluate("drawnOutside", DEFAULTS | {"rate": 12, "slots": 16, "blocks": 96}) == []
    live.locator("[name=blocks]").evaluate("e => (e.value = 12, e.dispatchEvent(new Event('input', {bubbles: true})))")
    live.wait_for_function("room.state.live && room.run.settings.blocks === 96")
    for _ in range(30):
        step = live.evaluate("(labels = [], room.state.index)")
        live.locator("#once").click()
        live.wait_for_function(f"room.state.index > {step}")
        labels = live.evaluate("labels.slice(0, 96)")  # once; they are drawn again while a block flashes
        across = sum(y == labels[0][1] for _, y, _ in labels)
        wide = live.evaluate("document.querySelector('#pool canvas').clientWidth") / across
        assert [
            at for at, (x, _, end) in enumerate(labels) if not at % across * wide < x < end < (at % across + 1) * wide
        ] == []
    live.get_by_role("button", name="reset").click()


def test_another_block_size_keeps_the_memory_and_a_reset_forgets_the_run_before(live):
    for place, size, blocks in ((6, 64, 3), (0, 1, 192)):
        slide = f"e => (e.value = {place}, e.dispatchEvent(new Event('input', {{bubbles: true}})))"
        live.locator("[name=size]").evaluate(slide)
        live.wait_for_function(f"room.run.settings.size === {size}")
        assert live.evaluate("room.run.settings.blocks") == blocks
    live.get_by_role("button", name="reset").click()
    live.wait_for_function("room.run.settings.size === 4 && room.run.frames.length")
    assert "before" not in live.locator("#figures small").first.inner_text()


def test_a_crash_of_own_code_shows_its_line_and_the_page_goes_on(live):
    live.locator("#write").click()
    ours = live.locator("#schedule").input_value()
    live.locator("#schedule").fill(ours.replace("budget -= count", "budget -= 1 / 0"))
    live.get_by_text("Run mine").click()
    live.locator("#trouble").get_by_text("ZeroDivisionError in line").wait_for()
    assert live.locator(".code .bad").inner_text().strip() == "budget -= 1 / 0"
    live.get_by_text("Back to the course").click()
    live.locator("#trouble").wait_for(state="hidden")
    live.locator("#once").click()
    live.wait_for_function("room.run.frames.length > 1")
    live.locator("#write").click()


def test_knobs_scenarios_and_links(live):
    shown_is_set = "room.state.live && JSON.stringify(room.run.settings) === JSON.stringify(room.state.settings)"
    live.select_option("[name=policy]", "shortest")
    live.wait_for_function("location.hash.includes('policy=shortest')")
    for name, claims in zip(live.locator("#scenarios button").all_inner_texts(), CLAIMS, strict=True):
        live.get_by_role("button", name=name, exact=True).click()
        live.wait_for_function(shown_is_set + " && room.run.frames.length >= 40")
        assert live.evaluate("shownTextsAreOfThisRun()"), "no words of the run before"
        before = live.evaluate("room.state.settings")
        live.locator("#question [data-choice]").first.click()
        live.get_by_role("button", name="Pause").click()
        live.locator("#question [data-then]").click()
        assert live.evaluate("room.state.settings") != before
        live.locator("#question table").wait_for()
        assert len(set(live.locator("#question table [scope=col]").all_inner_texts())) == 2
        steps = int(re.fullmatch(r"Steps 1 to (\d+) of both runs", live.locator("caption").inner_text())[1])
        assert live.evaluate("[room.run.frames.length, room.state.timer]") == [steps, 0], "it was at rest, and is again"
        rows = live.evaluate("numbersOfTable()")
        for row, place, factor in claims:
            first, second = (cell[place] for cell in rows[row])
            grows = second > factor * first if factor > 0 else first > -factor * second
            assert grows if factor else abs(second - first) < 0.05 * first, (name, row, place, first, second)
        live.locator("#question [data-then]").click()
        assert live.evaluate("room.state.settings") == before
        live.wait_for_function(f"{shown_is_set} && room.state.index === {steps - 1}")
    (_, slow), (_, fast) = live.evaluate("room.ask('knee', room.state.settings, [3, 9])")
    assert fast > 9 * slow
    live.locator("#play").click()
    live.locator("[name=text]").fill("The little robot")
    live.keyboard.press("Enter")
    live.locator(".text:has-text('The little robot')").get_by_text("yours").wait_for()
    live.locator("#play").click()
    live.wait_for_function("location.hash.includes('step=')")
    shown, link = live.evaluate("[document.body.dataset.step, room.state.settings]"), live.url
    other = live.context.new_page()
    other.goto(link)
    other.wait_for_function("document.body.dataset.ready === 'true'", timeout=120_000)
    assert other.evaluate("[document.body.dataset.step, room.state.settings]") == shown
    other.add_script_tag(path=Path(__file__).with_name("engine_room.js"))
    assert other.evaluate("textsOf()") == live.evaluate("textsOf()")
    other.close()
    live.get_by_role("button", name="reset").click()  # the scenario's table has nothing to compare any more
    live.wait_for_function("room.run.frames.length === 1 && document.body.dataset.step === '1'")
