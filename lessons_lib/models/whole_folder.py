"""Check that a model's folder is complete. transformers silently replaces much of what is missing or doesn't match:
with random weights, a one-token tokenizer, fewer layers."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

SAMPLE = "The little dog said: hello!"
FEW = 0.5  # share of a vocabulary; models round theirs up
LAYER = re.compile(r"\.\d+\.")


def what_is_missing(model: Any, tokenizer: Any, report: dict[str, Any], folder: Path | None) -> str:
    """Name the first thing that was missing or replaced during loading; an empty string if there is none.

    Args:
        report: the loading info of `from_pretrained`.
        folder: the model's folder; None if it didn't come from one.
    """
    if missing := sorted(report["missing_keys"]):
        return f"it lacks {len(missing)} weights, such as {missing[0]!r}"
    if unused := weights_left_out(report["unexpected_keys"], model.state_dict()):
        depth = model.config.get_text_config().num_hidden_layers
        return (
            f"it has {len(unused)} weights that a {model.config.model_type!r} model of {depth} layers doesn't use, "
            f"such as {unused[0]!r}; config.json is another model's"
        )
    reason = in_files(tokenizer, folder) if folder else ""
    reason = reason or in_vocabulary(tokenizer, model.config.get_text_config().vocab_size)
    return reason or in_chat_template(tokenizer)


def weights_left_out(unused: Iterable[str], used: Iterable[str]) -> list[str]:
    """Unused weights that look like the model's own: of another layer, of a layer in use, or a bias of a weight in use.

    Others are fine, such as those of a vision tower. Old files contain causal masks named `bias`, without a weight.
    """
    names = set(used)
    kinds = {LAYER.sub(".N.", name, count=1) for name in names}
    layers = tuple({name[: layer.end()] for name in names if (layer := LAYER.search(name))})
    return sorted(
        name
        for name in unused
        if LAYER.sub(".N.", name, count=1) in kinds
        or (name.endswith(".weight") and name.startswith(layers))
        or (name.endswith(".bias") and name.removesuffix("bias") + "weight" in names)
    )


def in_files(tokenizer: Any, folder: Path) -> str:
    """Name a file that is missing, malformed or left out; an empty string if there is none."""
    if (folder / "adapter_config.json").exists():
        return "its adapter (adapter_config.json) would be left out; merge it into the weights"
    if not (folder / "tokenizer.json").exists():
        needed = [name for name in type(tokenizer).vocab_files_names.values() if name != "tokenizer.json"]
        if absent := [name for name in needed if not (folder / name).exists()]:
            return f"its tokenizer lacks {' and '.join(absent)}, and there is no tokenizer.json"
    rules = folder / "generation_config.json"
    if rules.exists():
        try:
            is_object = isinstance(json.loads(rules.read_text()), dict)
        except ValueError:
            is_object = False
        if not is_object:
            return "its generation_config.json isn't a JSON object"
    return ""


def in_vocabulary(tokenizer: Any, vocab_size: int) -> str:
    """Describe a tokenizer that is too small or too large for the model; an empty string if it fits.

    Tokens added to a tokenizer don't count: many are added without a row in the model, such as one for padding.
    """
    count = len(tokenizer)
    if count <= len(set(tokenizer.all_special_ids)):
        return f"its tokenizer has no tokens but the special ones ({count}); its files are missing"
    if count < FEW * vocab_size or tokenizer.vocab_size > vocab_size:
        return f"its tokenizer has {count} tokens and the model {vocab_size}; one of them is another model's"
    if not tokenizer(SAMPLE, add_special_tokens=False).input_ids:
        return f"its tokenizer encodes {SAMPLE!r} as no tokens"
    return ""


def in_chat_template(tokenizer: Any) -> str:
    """Describe a chat template that can't be read; an empty string if it can, or if there is none."""
    try:
        if tokenizer.chat_template:
            tokenizer.apply_chat_template([{"role": "user", "content": SAMPLE}], tokenize=False)
    except TemplateSyntaxError as error:
        return f"its chat template can't be read: {error}"
    except Exception:  # noqa: BLE001 - a template refuses messages as it likes, such as those without a system's
        return ""
    return ""
