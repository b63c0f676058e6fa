"""Put the engine room's page together, in a folder that any static file server can serve."""

import gzip
import json
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from lessons_lib.viz.drawing.palette import in_both_themes
from lessons_lib.viz.engine_room.room import DEFAULTS, sources
from lessons_lib.viz.engine_room.room import __name__ as ENGINE

ROOT = Path(__file__).parents[3]
PAGE = Path(__file__).parent / "page"
MODEL = ROOT / "lessons_lib" / "assets" / "model"
PYODIDE = ROOT / "build" / "npm" / "node_modules" / "pyodide"
INSTALL = ("npm", "install", "--no-save", "--prefix", "build/npm", "pyodide@314.0.7")  # in the course's folder
# What a reader's scheduler may import, and Python hasn't at its start.
MODULES = {"statistics", "fractions", "decimal", "datetime", "queue", "pprint", "graphlib", "timeit", "cmath", "string"}
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def write_page(folder: Path, pyodide: Path = PYODIDE) -> bool:
    """Write engine_room.html and engine_room/ into a folder. Without Pyodide the page plays the recording only; returns
    whether it is there."""
    parts = folder / "engine_room"
    parts.mkdir(parents=True, exist_ok=True)
    for file in sorted(PAGE.iterdir()):
        shutil.copy(file, folder if file.suffix == ".html" else parts)
    is_live = all((pyodide / name).is_file() for name in PYODIDE_FILES)
    if is_live:
        shutil.copy(MODEL / "tokenizer.json", parts)
        (parts / "weights.bin").write_bytes(packed((MODEL / "model.safetensors").read_bytes()))
        write_engine(parts / "course.zip")
        (parts / "pyodide").mkdir(exist_ok=True)
        for name in PYODIDE_FILES:
            shutil.copy(pyodide / name, parts / "pyodide")
        write_snapshot(parts, pyodide)
    recorded = json.loads((PAGE.parent / "recording.json").read_text(encoding="utf-8"))
    begin = {
        "live": is_live,
        "home": (folder / "index.html").exists(),
        "defaults": DEFAULTS,
        "sources": sources(),
        "colors": list(map(in_both_themes, "ABCDEFGHIJKLMNOPQR")),
        **recorded,
    }
    (parts / "begin.json").write_text(json.dumps(begin, separators=(",", ":")), encoding="utf-8")
    return is_live


def write_snapshot(parts: Path, pyodide: Path) -> None:
    """Python's memory with the engine imported, from which it starts at once: then it needs few modules more. Without
    Node, the page does without."""
    made_of = (parts / "course.zip", PAGE.parent / "snapshot.mjs", PAGE / "data.js", pyodide / "pyodide-lock.json")
    code = zlib.crc32(b"".join(file.read_bytes() for file in made_of))
    kept, node = pyodide.parent / f"python-{code:08x}.bin", shutil.which("node")
    if not kept.exists() and node:
        for old in pyodide.parent.glob("python-*.bin"):
            old.unlink()
        command = [node, PAGE.parent / "snapshot.mjs", pyodide, parts / "course.zip", kept]
        subprocess.run(command, check=False, capture_output=True)
    if not kept.exists():
        return
    shutil.copy(kept, parts / "python.bin")
    with (
        zipfile.ZipFile(pyodide / "python_stdlib.zip") as whole,
        zipfile.ZipFile(parts / "pyodide" / "python_stdlib.zip", "w", zipfile.ZIP_DEFLATED) as few,
    ):
        for name in whole.namelist():
            if name.split(".")[0] in MODULES:
                few.writestr(zipfile.ZipInfo(name), whole.read(name), zipfile.ZIP_DEFLATED)


def packed(weights: bytes) -> bytes:
    """A file of bf16 numbers, compressed: all their low bytes first, then the high ones, which are alike."""
    begin = 8 + int.from_bytes(weights[:8], "little")
    return gzip.compress(weights[:begin] + weights[begin::2] + weights[begin + 1 :: 2], 6, mtime=0)


def write_engine(file: Path) -> None:
    """What Python needs in the browser: the modules that the engine imports, and no more."""
    code = f"import sys, {ENGINE}; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('lessons_lib')))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(found.stdout.split()):
            name = Path(path).relative_to(ROOT).as_posix()
            # Without a date, so that the bytes are the same each time.
            archive.writestr(zipfile.ZipInfo(name), Path(path).read_bytes(), zipfile.ZIP_DEFLATED)
