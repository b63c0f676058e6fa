"""Load a model and its tokenizer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessons_lib.models.support import check_supported
from lessons_lib.models.whole_folder import what_is_missing

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ASSETS = Path(__file__).parents[1] / "assets"
BUNDLED_MODEL = ASSETS / "model"
BUNDLED_DRAFT = ASSETS / "draft"  # guesses for the bundled model (lesson 18); it has no tokenizer of its own


class ModelNotFound(OSError):
    """No model of that name in a folder, in the local cache or on the hub."""


class DamagedModel(OSError):
    """The model's files exist but can't be read completely."""


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Meanwhile, transformers shows no progress of loading."""
    from transformers import logging

    is_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if is_shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_model(
    name: str | os.PathLike[str] | None = None, device: str | None = None, dtype: "torch.dtype | None" = None
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Load a causal language model and its tokenizer, ready for inference.

    Args:
        name: a folder, or a name on the Hugging Face hub; the bundled model if not given.
        device: "cuda" if there is a GPU, else "cpu".
        dtype: bfloat16 on a GPU; float32 on a CPU, which is exact enough to compare token for token.

    Returns:
        (model, tokenizer). The model is in evaluation mode; the tokenizer always has a padding token.

    Raises:
        ModelNotFound: the name is not a folder, and the hub doesn't have it either.
        DamagedModel: a file is missing or truncated, or the weights don't match the configuration.
        UnsupportedModel: the engine can't serve this kind of model, such as an encoder-decoder or a recurrent one.
    """
    # Imported here: in a browser there is no torch, and the sizes of `configuration` are needed there too.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = BUNDLED_MODEL if name is None else name
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.bfloat16 if device.startswith("cuda") else torch.float32)
    is_folder = Path(source).is_dir()
    # Never access the network for a local folder.
    where = {"local_files_only": True} if is_folder else {}
    try:
        with no_progress_bar() if is_folder else nullcontext():
            loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **where)
            tokenizer: Any = AutoTokenizer.from_pretrained(source, **where)
    except Exception as error:
        raise load_error(source, is_folder, error) from error
    model, report = loaded
    if reason := what_is_missing(model, tokenizer, report, Path(source) if is_folder else None):
        raise DamagedModel(f"the model {'in ' if is_folder else ''}{source} is incomplete: {reason}. {REMEDY}")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.eval().requires_grad_(False)
    check_supported(model)
    return model.to(device), tokenizer


REMEDY = "Fetch the files again (for the bundled model: `git checkout -- lessons_lib/assets`, or reinstall the course)."


def load_error(source: str | os.PathLike[str], is_folder: bool, error: Exception) -> OSError:
    """Convert an error of transformers to ModelNotFound or DamagedModel, with a remedy."""
    if is_folder:
        return DamagedModel(f"the model in {source} can't be read: {type(error).__name__}: {error}. {REMEDY}")
    return ModelNotFound(
        f"no model {str(source)!r}: it is not a folder here, not in the local Hugging Face cache, and the hub did not "
        f"return it ({type(error).__name__}). Check the spelling and the connection, give the path of a folder, or use "
        "`load_model()` for the bundled model, which needs no network."
    )
