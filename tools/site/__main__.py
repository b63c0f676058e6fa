"""python -m tools.site [--out FOLDER]: builds the course as web pages.

The pages need no server: open FOLDER/index.html, or let `python -m http.server` in FOLDER serve them.
"""

import argparse
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from lessons_lib.viz.engine_room.build import INSTALL, PYODIDE, write_page
from tools.site.doors import ROOT, repository
from tools.site.front_page import NAME, front_page, lessons_of, sentences
from tools.site.share import head, write_cards
from tools.site.sources import write_sources

OUT = ROOT / "build" / "site"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all well; 1 Sphinx found a fault; 2 the install isn't right."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the pages (build/site)")
    options = parser.parse_args(arguments)
    if not all(map(find_spec, ("sphinx", "myst_nb", "resvg_py"))):
        print("✗ Sphinx is not installed; `make site` installs it, or: pip install -e '.[site]' -c constraints.txt")
        return 2
    sources = ROOT / "build" / "site-sources"
    write_sources(sources)
    settings = Path(__file__).parent
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-b", "html"]
    command += ["-c", str(settings), "-d", str(ROOT / "build" / "site-doctrees"), str(sources), str(options.out)]
    status = subprocess.call(command, cwd=ROOT)
    if status:
        print(f"✗ Sphinx ended with status {status}; see above.")
        return 1
    write_front_page(options.out)
    write_pictures_to_share(options.out / "og")
    for page in options.out.rglob("*.html"):
        page.write_text(tidied(page.read_text(encoding="utf-8")), encoding="utf-8")
    (options.out / ".nojekyll").touch()  # else GitHub Pages leaves out _static
    if not PYODIDE.is_dir() and shutil.which(INSTALL[0]):
        subprocess.call(INSTALL, cwd=ROOT)
    is_live = write_page(options.out)
    describe_engine_room(options.out / "engine_room.html")
    print(f"✓ {options.out / 'index.html'}")
    if not is_live:
        print(f"  The engine room plays a recording only: no Pyodide. `{' '.join(INSTALL)}` brings it.")
    if not repository():
        print("  No links to Colab, Codespaces and Binder: pyproject.toml names no `repository` under [tool.lessons].")
    return 0


def write_pictures_to_share(folder: Path) -> None:
    from resvg_py import svg_to_bytes

    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    write_cards(lessons_of(readme), sentences(readme)[0], folder, svg_to_bytes)


def write_front_page(out: Path) -> None:
    """index.html, and what it shows."""
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    shown = [*Path(ROOT, "lessons_lib/assets").glob("*.svg"), *Path(ROOT, "lessons_lib/assets/tiles").glob("*.svg")]
    (out / "assets").mkdir(exist_ok=True)
    for file in (*shown, Path(__file__).parent / "static" / "front.css"):
        shutil.copy(file, out / "assets")
    page = front_page(readme, repository(), head(NAME, sentences(readme)[0], "index"))
    (out / "index.html").write_text(page, encoding="utf-8")


def describe_engine_room(file: Path) -> None:
    """Put the tags of `share` in place of the page's own description."""
    page = file.read_text(encoding="utf-8")
    tag, words = re.search(r'<meta name="description" content="([^"]+)">', page).group(0, 1)
    file.write_text(page.replace(tag, head(f"Engine room · {NAME}", words, "index")), encoding="utf-8")


def tidied(page: str) -> str:
    """The page without the tags that repeat the first viewport (Sphinx, docutils and the theme write their own), and
    without the theme's script of icons: its fonts have them, too, in an eighth of the bytes."""
    page = re.sub(r'<script [^>]*src="[^"]*/fontawesome\.js[^"]*"[^>]*></script>', "", page)
    first, tag, rest = page.partition('<meta name="viewport"')
    return first + tag + re.sub(r'\s*<meta [^>]*name="viewport"[^>]*>', "", rest)


if __name__ == "__main__":
    sys.exit(main())
