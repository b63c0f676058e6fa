"""python -m tools.site [--out FOLDER]: builds the course as web pages.

The pages need no server: open FOLDER/index.html, or let `python -m http.server` in FOLDER serve them.
"""

import argparse
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from lessons_lib.viz.engine_room.build import INSTALL, PYODIDE, write_page
from tools.site.doors import ROOT, repository
from tools.site.sources import write_sources

OUT = ROOT / "build" / "site"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 all well; 1 Sphinx found a fault; 2 the install isn't right."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the pages (build/site)")
    options = parser.parse_args(arguments)
    if find_spec("sphinx") is None or find_spec("myst_nb") is None:
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
    (options.out / ".nojekyll").touch()  # else GitHub Pages leaves out _static
    if not PYODIDE.is_dir() and shutil.which(INSTALL[0]):
        subprocess.call(INSTALL, cwd=ROOT)
    is_live = write_page(options.out)
    print(f"✓ {options.out / 'index.html'}")
    if not is_live:
        print(f"  The engine room plays a recording only: no Pyodide. `{' '.join(INSTALL)}` brings it.")
    if not repository():
        print("  No links to Colab, Codespaces and Binder: pyproject.toml names no `repository` under [tool.lessons].")
    return 0


if __name__ == "__main__":
    sys.exit(main())
