"""What the install must know about this machine first: permissions, disk space, GPU, network."""

import os
import shutil
import tempfile
import threading
import urllib.request

from tools.run_command import succeeds
from tools.setup_errors import SetupError, disk_full_message, is_disk_full

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 3.0


def check_venv_module(find_spec, version):
    """Refuse a Python that cannot make a virtual environment (Debian and Ubuntu package that part separately)."""
    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if missing:
        raise SetupError(
            f"This Python has no `{missing[0]}` module, so it cannot make a virtual environment.\n"
            f"Debian, Ubuntu: `sudo apt install python3-venv` (or python{version[0]}.{version[1]}-venv), then run the "
            "same command again.\nElsewhere: install Python from https://www.python.org/downloads/, or uv from "
            "https://docs.astral.sh/uv/."
        )


def check_writable(root):
    """Refuse a folder that we may not write to."""
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        if is_disk_full(str(error)):
            raise SetupError(disk_full_message(root)) from None
        raise SetupError(
            f"Cannot write in {root} ({error.strerror or error}), and the course installs itself there.\n"
            "Copy the whole folder to a folder that you own, such as your home folder, and run the same command there."
        ) from None


def check_owned(folder):
    """Refuse a .venv that exists but that we may not change, as after `sudo make lab`."""
    if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(
            f"{folder} belongs to another user, perhaps because of `sudo make lab`, and cannot be changed.\n"
            "Make it yours (`sudo chown -R $(id -un) .venv`) or remove it (`sudo rm -rf .venv`), then run the same "
            "command again, without sudo."
        )


def check_disk(folder, needed_gb, purpose=""):
    """Refuse an install that will not fit. purpose: "for temporary files"."""
    free_gb = free_gigabytes(folder)
    if free_gb < needed_gb:
        remedy = ", or name a folder on a larger disk: `TMPDIR=/a/larger/disk make lab`" if purpose else (
            ", or move the course to a larger disk, and run the same command again")  # fmt: skip
        raise SetupError(
            f"Too little disk space{' ' + purpose if purpose else ''}: {free_gb:.1f} GB free in {folder}, about "
            f"{needed_gb:.1f} GB needed.\nFree some space{remedy}. Nothing was installed."
        )


def free_gigabytes(root):
    try:
        return shutil.disk_usage(root).free / 1e9
    except OSError:  # a folder that does not exist; what happens there will say so
        return float("inf")


def has_nvidia_gpu():
    return os.path.exists("/dev/nvidiactl") or succeeds(["nvidia-smi", "-L"])


def reachable(url, seconds=PROBE_SECONDS):
    """Does `url` answer within `seconds`? Never raises. The thread is for name look-ups, which have no timeout."""
    answered = []

    def probe():
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
            answered.append(True)
        except Exception:  # noqa: BLE001 - any failure means the same: not reachable
            pass

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answered)


def choose_torch_index(wanted, platform, gpu, probe):
    """Return (index or None, sentence or None, may_pull_cuda).

    wanted     the value of TORCH_INDEX: "" to choose here, "none" for no extra index, otherwise an index URL
    platform   sys.platform
    gpu        () -> bool, is there an NVIDIA GPU
    probe      (url) -> bool, does the URL answer
    """
    on_linux = platform.startswith("linux")
    if wanted == "none":
        return None, None, on_linux
    if wanted:
        return wanted, f"Taking torch from {wanted} (TORCH_INDEX).", on_linux and "/cpu" not in wanted
    if not on_linux:
        return None, None, False
    if gpu():
        return None, "NVIDIA GPU found: taking torch with CUDA (several GB).", True
    if probe(CPU_INDEX + "/torch/"):
        return CPU_INDEX, f"No NVIDIA GPU: taking the CPU build of torch from {CPU_INDEX}.", False
    sentence = (
        f"No NVIDIA GPU, but {CPU_INDEX} does not answer: taking torch as your pip or uv is set up to find it.\n"
        "(From PyPI that is the build with CUDA: several GB more, which a machine without a GPU never uses.)"
    )
    return None, sentence, True
