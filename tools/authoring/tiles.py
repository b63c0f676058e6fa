"""Each lesson's main picture, which its first cell shows (assets/openings), and the part of it on cards (assets/tiles).

They come from the solved notebooks. No text is left in a tile, since it couldn't be read at that size.
"""

import re
from pathlib import Path

from lessons_lib.viz.drawing.night import image_style
from tools.authoring.build import lesson_files, read

OPENINGS, FOLDER = "lessons_lib/assets/openings", "lessons_lib/assets/tiles"
BOX = 240, 110  # pixels of a tile, at most
# {lesson: (what the cell of its main picture calls, the part that a tile shows: x, y, width, height)}
MAIN_PICTURES = {
    "00": ("draw_cache_growth(", (510, 50, 345, 145)),
    "01": ("draw_timeline(", (230, 42, 420, 136)),
    "02": ("draw_compare(", (66, 40, 700, 220)),
    "03": ("pool_by_hand(", (12, 29, 600, 240)),
    "04": ('title="Your mask"', (14, 40, 360, 320)),
    "05": ("draw_packed_step(", (100, 100, 640, 340)),
    "06": ("draw_softmax_step(", (400, 110, 490, 200)),
    "07": ("draw_program(recorded", (130, 150, 720, 220)),
    "08": ("draw_roofline(", (45, 20, 620, 300)),
    "09": ("draw_gantts({", (12, 352, 560, 256)),
    "10": ("draw_pressure(", (10, 130, 400, 220)),
    "11": ("draw_pressure(all_steps", (10, 130, 600, 280)),
    "12": ("watch_engine(", (330, 68, 560, 180)),
    "13": ("watch_launches(", (55, 60, 600, 270)),
    "14": ("watch_server(", (362, 54, 528, 250)),
    "15": ("watch_streams(", (110, 45, 790, 350)),
    "16": ("draw_cut_matrices(", (80, 95, 660, 300)),
    "17": ("draw_compare(", (70, 40, 700, 360)),
    "18": ("draw_verified_pass(", (150, 40, 520, 250)),
    "19": ("draw_kinds(", (8, 112, 616, 140)),
    "20": ("draw_shelves(", (8, 40, 640, 200)),
}
HOVER = re.compile(r"<(title|metadata)\b(?:[^>]*/>|.*?</\1>)|<!--.*?-->", re.DOTALL)
WORDS = re.compile(r"<(text|style)\b(?:[^>]*/>|.*?</\1>)", re.DOTALL)
ROOT_TAG = re.compile(r'^<svg [^>]*?viewBox="[^"]*"[^>]*>')
OF_WIDGETS = re.compile(r' (?:aria-label|role|class|tabindex|pointer-events|data-link|data-moves)="[^"]*"')
XLINK = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def main_pictures(root: Path) -> dict[str, str]:
    """{lesson's number: SVG}, of the lessons whose solved notebook shows its main picture."""
    found = {}
    for path in lesson_files(root):
        call = MAIN_PICTURES.get(path.stem[:2], ("",))[0]
        solved = read(root, "solutions", path.stem) if call else None
        cells = [cell for cell in solved.cells if call in cell.source] if solved else []
        data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        if pictures := [each["image/svg+xml"] for each in data if "image/svg+xml" in each]:
            found[path.stem[:2]] = pictures[0]
    return found


def opening(svg: str) -> str:
    """A picture as a file, in both themes; its words for readers are those of the cell that shows it."""
    tag = ROOT_TAG.match(svg)[0]
    start = OF_WIDGETS.sub("", tag) + image_style(svg)
    return start + OF_WIDGETS.sub("", HOVER.sub("", svg[len(tag) :])).strip() + "\n"


def tile(number: str, svg: str) -> str:
    """A part of a lesson's picture, without what can't be seen at the size of a tile, and with one decimal."""
    part = MAIN_PICTURES[number][1]
    scale = min(most / side for most, side in zip(BOX, part[2:]))
    size = 'width="{:.0f}" height="{:.0f}"'.format(*(scale * side for side in part[2:]))
    style = image_style(svg)
    svg = OF_WIDGETS.sub("", WORDS.sub("", HOVER.sub("", ROOT_TAG.sub("<svg>", svg))))
    svg = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r"\s+", " ", re.sub(r"<g[^>]*>\s*</g>", "", svg))
    return svg.replace("<svg>", f'<svg {XLINK} viewBox="{" ".join(map(str, part))}" {size}>{style}', 1) + "\n"
