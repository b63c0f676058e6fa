"""How long the pictures of the lessons take to draw in a browser: `python -m tools.bench_players`.

Every player of the solved notebooks, as committed, is stepped through from end to end, one picture per animation frame,
in a headless Chromium. A screen with 60 pictures a second leaves 16.7 ms for each. It needs playwright and Chromium, as
the tests in a browser do.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lessons_lib.viz.stepper import PLAYER
from lessons_lib.viz.tables.table import Table
from tools.doctor import find_chromium

ROOT = Path(__file__).parents[1]
FRAME_MS = 1000 / 60
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
_PLAYER = re.compile(r"<lessons-player .*?</lessons-player>", re.S)

# Of each step: the script alone, and until the picture is laid out and painted. A message that is sent in an animation
# frame arrives once the page's thread has painted that frame.
STEP_THROUGH = """async order => {
  const player = document.querySelector('lessons-player'), {port1, port2} = new MessageChannel();
  const times = [];
  for (const index of order) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    player.show(index);
    const ran = performance.now() - began;
    await new Promise(done => { port1.onmessage = done; port2.postMessage(0); });
    times.push([ran, performance.now() - began, player.shown.length]);
  }
  return times;
}"""


def players_of(notebook: Path) -> Iterator[str]:
    """The elements that play, in the order of the lesson."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            yield from _PLAYER.findall("".join(output.get("data", {}).get("text/html", ())))


def order_of(count: int) -> list[int]:
    """Each picture after the one before it, then jumps, as when the slider is dragged."""
    return [*range(count), *(37 * step % count for step in range(count))]


def measure(browser, player: str, repeats: int) -> dict[str, float]:
    """Milliseconds of a step of one player; of each step the least of the repeats, since other programs only add."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        script = f'<script type="module">{PLAYER.read_text(encoding="utf-8")}</script>'
        path.write_text(f"<!doctype html><meta charset='utf-8'>{player}{script}", encoding="utf-8")
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(path.as_uri())
        page.locator("lessons-player output").wait_for()
        count = page.evaluate("document.querySelector('lessons-player').pictures.length")
        runs = [page.evaluate(STEP_THROUGH, order_of(count)) for _ in range(repeats)]
        page.close()
    first = [painted for _, painted, _ in runs[0]]  # here each element is parsed once
    script_ms, painted_ms = ([min(run[i][part] for run in runs) for i in range(len(runs[0]))] for part in (0, 1))
    return {
        "pictures": count,
        "elements": max(elements for *_, elements in runs[0]),
        "script": max(script_ms),
        "median": statistics.median(painted_ms),
        "slowest": max(painted_ms),
        "first": max(first),
    }


def table(browser, lessons: list[str], repeats: int) -> Table:
    rows = []
    for notebook in sorted((ROOT / "solutions").glob("*.ipynb")):
        if lessons and notebook.name[:2] not in lessons:
            continue
        for index, player in enumerate(players_of(notebook), 1):
            found = measure(browser, player, repeats)
            late = "" if found["slowest"] <= FRAME_MS else "longer than a frame"
            rows.append(
                [f"{notebook.name[:2]}, player {index}", found["pictures"], found["elements"]]
                + [f"{found[part]:.1f}" for part in ("script", "median", "slowest", "first")]
                + [late]
            )
    columns = ["lesson", "pictures", "most elements", "script ms, most", "painted ms, median", "painted ms, most"]
    columns += ["painted ms, most, first time", ""]
    return Table(columns, rows, f"Milliseconds per picture; a frame of 60 a second has {FRAME_MS:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers of lessons, as 05; all if none")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=FLAGS)
        print(table(browser, arguments.lessons, arguments.repeats))
        browser.close()


if __name__ == "__main__":
    main()
