"""The load generators of other projects, in a folder of their own: `vllm bench serve` and `guidellm`.

Both are under the Apache License 2.0. They are downloaded from the package index and run as they are; nothing of them
is part of this project. Of the wheel of vLLM, which is 336 MB, only the Python files are kept, 50 MB: its load
generator needs no CUDA. The environment sees the packages of this one, such as torch and transformers, and has only
what is missing there, 360 MB.
"""

import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

VLLM = "vllm==0.33.0"
GUIDELLM = "guidellm==0.8.1"
# What `vllm bench serve` imports, and no other package here.
VLLM_NEEDS = (
    *("aiohttp", "cachetools", "cbor2", "cloudpickle", "einops", "msgspec", "openai_harmony", "partial-json-parser"),
    *("pybase64", "xgrammar"),
)
FIRST_PYTHON = (3, 11)  # of vLLM

VLLM_MAIN = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True)
class PeerPrograms:
    """Both of them.

    Attributes:
        folder: where `install` has put them.
    """

    folder: Path

    @property
    def vllm_bench(self) -> list[str]:
        """`vllm bench serve` without its options."""
        return [str(self._program("python")), "-c", VLLM_MAIN, str(self.folder / "vllm")]

    @property
    def guidellm(self) -> list[str]:
        """`guidellm` without its options."""
        return [str(self._program("guidellm"))]

    def why_missing(self) -> str | None:
        """None if both are there."""
        wanted = (self._program("guidellm"), self.folder / "vllm/vllm/benchmarks/serve.py", self.folder / "installed")
        for path in wanted:
            if not path.exists():
                return f"there is no {path}; run `python -m tools.load_peers --install {self.folder}`"
        return None

    def _program(self, name: str) -> Path:
        return self.folder.absolute() / "venv/bin" / name


def install(folder: Path) -> PeerPrograms:
    """Make the folder, download both, and try them.

    Raises:
        RuntimeError: this Python is too old, or the folder isn't empty.
        subprocess.CalledProcessError: pip failed.
    """
    if sys.version_info < FIRST_PYTHON:
        raise RuntimeError(f"this is Python {sys.version.split()[0]}; {VLLM} needs 3.11 or later.")
    if folder.exists() and any(folder.iterdir()):
        raise RuntimeError(f"{folder} has files; give a new folder, or delete it first.")
    programs = PeerPrograms(folder)
    venv = folder.absolute() / "venv"
    _run(sys.executable, "-m", "venv", str(venv))
    own = next(venv.glob("lib/python*/site-packages"))
    (own / "zz_course.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python = str(venv / "bin/python")
    _run(python, "-m", "pip", "install", GUIDELLM, *VLLM_NEEDS)
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        _run(python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", wheels, VLLM)
        (wheel,) = Path(wheels).glob("vllm-*.whl")
        unpack_python_files(wheel, folder / "vllm")
    _run(*programs.vllm_bench, "--help=Nothing")
    _run(*programs.guidellm, "--version")
    (folder / "installed").write_text(f"{VLLM}\n{GUIDELLM}\n", encoding="utf-8")
    return programs


def unpack_python_files(wheel: Path, folder: Path) -> None:
    """Python files and the license of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]
        archive.extractall(folder, names)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
