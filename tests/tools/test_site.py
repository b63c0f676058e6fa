"""The site: pages without what only tests and nbgrader read, and in a browser: no outside request, nothing too wide."""

import dataclasses
import functools
import http.server
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from accessibility import axe_faults, axe_source
from browser import ROOT, start_chromium, why_no_browser

from lessons_lib.kv_cache import BlockPool, block_table
from lessons_lib.recording.pool_states import pool_state
from lessons_lib.viz.drawing.svg import WIDTH
from lessons_lib.viz.pool.grid import draw_pool
from lessons_lib.viz.source import source_of
from lessons_lib.viz.stepper import Stepper
from tools.authoring.build import lesson_files
from tools.site import doors
from tools.site.code_pages import code_page, linked_files, to_code_pages
from tools.site.facts import facts
from tools.site.front_page import contents_page, front_page, lessons_of, routes_of
from tools.site.share import card, first_words, head
from tools.site.sources import lesson_page, page_beside_lessons

LESSON, HOME = "03_block_allocator", "somebody/course"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def notebooks():
    return [
        nbformat.read(ROOT / folder / f"{LESSON}.ipynb", as_version=nbformat.NO_CONVERT)
        for folder in ("solutions", "notebooks")
    ]


@pytest.fixture(scope="module")
def page(notebooks):
    return lesson_page(*notebooks, LESSON, HOME)


def test_a_page_has_no_trace_of_tests_and_grading(page):
    text = nbformat.writes(page)
    assert not [word for word in ("nbval", "nbgrader", "SOLUTION", '"image/svg+xml"') if word in text]
    assert "lessons-player" in text, "the pictures stay"
    assert "footer(" not in text, "its links lead to notebooks"


def test_an_exercise_is_a_stub_with_doors_and_its_solution_is_folded(page):
    stub, words, solution, judge = page.cells[(at := _index(page, "Try 03.1 in")) - 1 : at + 3]
    assert "raise NotImplementedError" in stub.source and not stub.outputs
    assert doors.colab(HOME, LESSON, "ex-03-1") in words.source and doors.codespaces(HOME) in words.source
    assert "self.pool.allocate" in solution.source and solution.metadata.tags == ["hide-input"]
    assert judge.source == 'BlockTable = check("03.1", BlockTable)' and "correct" in str(judge.outputs)


def test_shown_source_links_to_its_definition_on_the_page_of_its_file():
    things = block_table.BlockTable.append, block_table.BlockTable  # the second one is folded
    shown = to_code_pages("".join(source_of(thing)._repr_html_() for thing in things))
    file = "lessons_lib/kv_cache/block_table.py"
    assert 'href="lessons_lib/kv_cache/block_table.html#BlockTable.append"' in shown and linked_files(shown) == {file}
    assert 'href="lessons_lib/kv_cache/block_table.html#BlockTable"' in shown
    code = code_page(file, (ROOT / file).read_text(encoding="utf-8"))
    line = next(line for line in code.splitlines() if 'id="BlockTable.append"' in line)
    assert "append" in re.sub("<[^>]+>", "", line) and 'id="line-1"' in code
    assert to_code_pages("<code>f</code>: 30 lines in <b>x</b>") == "<code>f</code>: 30 lines in <b>x</b>"


def _index(page, words: str) -> int:
    return next(i for i, cell in enumerate(page.cells) if words in cell.source)


def test_the_front_page_has_every_lesson_and_the_minutes_of_each_route():
    listed = lessons_of(README)
    assert [lesson.file for lesson in listed] == [path.stem for path in lesson_files(ROOT)]
    minutes = {lesson.number: lesson.minutes for lesson in listed}
    text = front_page(README, HOME, "")
    assert doors.colab(HOME, listed[0].file) in text and "colab" not in front_page(README, "", "")
    for name, numbers in routes_of(README).items():
        assert re.search(rf"<b>{name}</b> [^:]+, {sum(minutes[number] for number in numbers) / 60:.0f} hours\)", text)
    for lesson in listed:
        assert f'href="{lesson.file}.html"' in text and f"\n{lesson.file}\n" in contents_page(README)
    assert 'href="engine_room.html"' in text and f"<dt>{facts()['gpu']} ×</dt>" in text
    assert routes_of(README)["kernels"] == ["00", "02", "03", "04", "05", "06", "07", "08", "13"]


def test_what_other_sites_show_of_a_page(monkeypatch):
    monkeypatch.setenv("GITHUB_REPOSITORY", HOME)
    words = first_words("<p><img alt='x'></p><p><strong>How can 5 &lt; 6</strong> be?</p><p>more</p>")
    assert words == "How can 5 < 6 be?"
    tags = head("A title", words, LESSON)
    assert 'content="https://somebody.github.io/course/og/03_block_allocator.png"' in tags
    assert tags.count('content="How can 5 &lt; 6 be?"') == 2
    picture = card("03", "03 · A block allocator", "`words` " * 30)
    assert picture.count("<svg") == 3 and "prefers-color-scheme" not in picture and "`" not in picture


def test_links_of_a_page_lead_to_the_site_or_to_github_or_nowhere():
    text = (
        "[a](../../../notebooks/00_one_request.ipynb) [b](../../../lessons_lib/kv_cache/audit.py) [c](../../../LICENSE)"
    )
    page, files = page_beside_lessons(text, "")
    assert page == "[a](00_one_request.ipynb) [b](lessons_lib/kv_cache/audit.md) c"
    assert files == {"lessons_lib/kv_cache/audit.py"}
    assert page_beside_lessons(text, HOME)[0].endswith("[c](https://github.com/somebody/course/blob/main/LICENSE)")


def test_the_page_of_the_server_has_every_limit_with_the_number_of_the_code():
    pytest.importorskip("fastapi")
    from lessons_lib.engine import input_processor, sampling_params, structured_outputs
    from lessons_lib.engine.config import EngineConfig
    from lessons_lib.engine.grammar_process import COMPILE_SECONDS, MASK_SECONDS
    from lessons_lib.models.prompts import MAX_CHARACTERS_PER_TOKEN
    from lessons_lib.serving.admission import LONGEST_WAIT
    from lessons_lib.serving.http import connections, errors, protocol, response_protocol, security, server, settings

    text = (ROOT / "tools/site/pages/the_server.md").read_text(encoding="utf-8")
    options = [field for field in dataclasses.fields(EngineConfig) if field.name == "max_logprobs"]
    options += [field for field in dataclasses.fields(settings.ServerSettings) if field.name != "port"]
    for field in options:
        if type(field.default) in (int, float):
            option = f"`--{field.name.replace('_', '-')}`"
            assert re.search(rf"\| {field.default:,.0f} \w+ \({option}\)", text), option
    first, others = connections.PROBE_SECONDS
    values, most = settings.BODY_BYTES // settings.BYTES_PER_VALUE, structured_outputs.MAX_CHARACTERS
    for what, told in {
        "body of a request": f"{settings.BODY_BYTES:,} bytes, and {settings.BYTES_PER_TOKEN} for each token",
        "time for which a connection stays unused": f"{server.KEEP_ALIVE} seconds",
        "connections that wait to be accepted": f"{server.BACKLOG:,}",
        "signs that a client has gone": f"looked for after {first:g} s, then every {others:g} s",
        "characters of a prompt": f"{MAX_CHARACTERS_PER_TOKEN:,} for each token",
        "prompts of `/v1/completions`": f"{protocol.MAX_PROMPTS:,}",
        "messages of a chat, items of `input`": f"{protocol.MAX_MESSAGES:,}",
        "functions in `tools`": f"{protocol.MAX_TOOLS:,}",
        "completions of a prompt (`n`)": f"{sampling_params.MAX_N:,}",
        "completions of a request": f"{protocol.MAX_COMPLETIONS:,}",
        "values in a body": f"{values:,}, and {settings.BYTES_PER_TOKEN // settings.BYTES_PER_VALUE} for each token",
        "objects in a body": f"{security.MAX_OBJECTS:,}",
        "`structured_outputs`": ", ".join(f"{count:,} characters of a {kind}" for kind, count in most.items()),
        "strings of a `choice`": f"{structured_outputs.MAX_CHOICES:,}",
        "a JSON schema": f"{structured_outputs.MAX_SCHEMA_VALUES:,} values, {structured_outputs.MAX_SCHEMA_DEPTH} levels",
        "compiling a grammar, and finding its next tokens": f"{COMPILE_SECONDS:g} s, and {MASK_SECONDS:g} s",
        "one text of `stop`, `bad_words` or `choice`": f"{sampling_params.MAX_STOP_CHARACTERS:,} characters",
        "`cache_salt`": f"{input_processor.MAX_NAME_CHARACTERS:,} characters",
        "a value of `logit_bias`": f"-{sampling_params.MAX_BIAS:.0f} to {sampling_params.MAX_BIAS:.0f}",
        "`presence_penalty`, `frequency_penalty`": f"-{sampling_params.MAX_PENALTY:.0f} to ",
        "`priority`": f"0, the best, to {input_processor.MAX_TIER:,}",
        **{f"values of `{name}`": f"{count:,}" for name, count in sampling_params.MAX_VALUES.items()},
    }.items():
        assert f"| {what} | {told}" in text, what
    assert f"({LONGEST_WAIT:.0f} seconds at most)" in text
    requests = (protocol.CompletionRequest, protocol.ChatRequest, response_protocol.ResponsesRequest)
    for name, (why, *_) in (item for request in requests for item in request.not_offered.items()):
        assert re.search(rf"\| `{name}`( of a response)? \| {re.escape(why)} \|", text), name
    assert all(f"`{path}`" in text and f" | {advice} |" in text for path, advice in errors.OTHER_PATHS.items())


# --- in a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site, served by a plain file server, and its folder."""
    pytest.importorskip("myst_nb", reason="`make site` installs Sphinx")
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "tools.site", "--out", out], cwd=ROOT, check=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(out))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", out
        server.shutdown()


@pytest.fixture(scope="module")
def axe() -> str | None:
    return axe_source()


@pytest.fixture(scope="module")
def browser():
    if why_no_browser():
        pytest.skip(why_no_browser())
    with start_chromium() as chromium:
        yield chromium


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_asks_no_other_server_and_can_be_read(site, browser, axe, width, scheme):
    address, out = site
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    outside, faults = [], []
    context.route("**/*", lambda route: _only_from(address, route, outside))
    tab = context.new_page()
    tab.on("pageerror", lambda error: faults.append(str(error)))
    for file in pages_of(out):
        assert file.stat().st_size <= MOST_BYTES, file.name
        tab.goto(f"{address}/{file.relative_to(out)}", wait_until="load")
        if tab.evaluate("document.documentElement.scrollWidth") > width:
            faults.append(f"{file.name} is wider than {width} px")
        if axe:
            faults += [f"{file.name}: {fault}" for fault in axe_faults(tab, axe)]
    context.close()
    assert (outside, faults) == ([], [])


def _only_from(address: str, route, outside: list[str]) -> None:
    if route.request.url.startswith(f"{address}/"):
        route.continue_()
    else:
        outside.append(route.request.url)
        route.abort()


def pages_of(out: Path) -> list[Path]:
    return sorted(file for file in out.rglob("*.html") if "_static" not in file.parts)


class Links(HTMLParser):
    """The links of a page, and what links can lead to."""

    def __init__(self, page: Path):
        super().__init__()
        self.links, self.ids = set(), set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.links |= {named[name] for name in ("href", "src") if named.get(name)}
        self.ids.add(named.get("id"))


@pytest.mark.nightly
@pytest.mark.slow
def test_every_page_says_what_it_is_and_the_first_one_is_light(site):
    address, out = site
    for page in pages_of(out):
        text = page.read_text(encoding="utf-8")
        assert text.count('name="viewport"') == text.count('name="description"') == text.count('og:image"') == 1, page
        assert "fontawesome.js" not in text, "1.6 MB that the theme's fonts do without"
        assert (out / re.search(r'"og:image" content="(?:https:.*?)?(og/\w+\.png)"', text)[1]).exists()
    first = (out / "index.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'(?:src|href)="(assets/[\w.]+)', first))
    assert len(first) + sum((out / file).stat().st_size for file in shown) <= 600_000


@pytest.mark.nightly
@pytest.mark.slow
def test_every_link_inside_the_site_leads_somewhere(site):
    _, out = site
    pages, dead = {page.resolve(): Links(page) for page in pages_of(out)}, []
    for page, found in pages.items():
        for link in found.links:
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path.split("?")[0])).resolve() if path else page
            if re.match(r"[a-z]+:", link) or (target.exists() and not anchor):
                continue
            if target not in pages or unquote(anchor) not in pages[target].ids:
                dead.append((page.name, link))
    assert len(pages) > 40 and not dead


@pytest.mark.slow
@pytest.mark.browser
def test_on_a_phone_a_button_turns_a_picture_and_its_text_can_be_read(browser, tmp_path):
    static = ROOT / "tools/site/static"
    pool = draw_pool(pool_state(BlockPool(12, 4), {}))
    opening = (ROOT / "lessons_lib/assets/openings/11.svg").read_text(encoding="utf-8")
    (tmp_path / "_images").mkdir()
    (tmp_path / "_images/11.svg").write_text(opening, encoding="utf-8")
    shown = [Stepper(lambda _: pool, 2), pool]
    body = "".join(f"<div>{each._repr_mimebundle_()['text/html']}</div>" for each in shown)
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><style>{(static / 'site.css').read_text()}</style><script>{(static / 'site.js').read_text()}</script>"
        f"<p><img src='_images/11.svg'></p>{body}"
    )
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(page.as_uri())
    buttons = tab.get_by_role("button", name="large picture")
    assert buttons.count() == 3
    for index in range(3):
        buttons.nth(index).click()
        frame = tab.locator(".lessons-frame:popover-open")
        frame.get_by_role("button", name="close").wait_for()
        box = frame.bounding_box()
        assert (box["x"], box["y"], box["width"], box["height"]) == (0, 0, 390, 844)
        wide = frame.locator("svg:visible, img:visible").first.bounding_box()["height"]
        assert 9 / 10 * WIDTH < wide <= 844, "it is turned: 10 px of its 900 are 9 at least"
        frame.get_by_role("button", name="close").click()
        tab.wait_for_function("!document.querySelector('[popover]')")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390 and buttons.count() == 3
    tab.close()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.browser
def test_a_player_plays_without_a_kernel_and_search_finds_a_term(site, browser):
    address, _ = site
    tab = browser.new_page()
    tab.goto(f"{address}/{LESSON}.html")
    player = tab.locator("lessons-player").first
    position = player.locator(".lessons-stepper-position")
    before = position.inner_text()
    player.locator(".lessons-stepper-next").click()
    assert position.inner_text() != before
    tab.goto(f"{address}/search.html?q=watermark")
    tab.locator("ul.search li a").first.wait_for(timeout=30_000)
    tab.close()
