"""What blocks belong to: a model's weights, and the shape of its cache."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

VERSION = 1  # of the file
SAMPLE = 256
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def identity_of(model: PreTrainedModel, cache: PagedKVCache) -> bytes:
    """Describe whose blocks these are. Two engines with the same description can use each other's.

    Returns:
        a line of JSON.
    """
    shapes = [list(layer.shape[2:]) for layer in (*cache.keys, *cache.values)]
    fields: dict[str, Any] = {"version": VERSION, "model": fingerprint(model), "block_size": cache.block_size}
    fields |= {"dtype": str(cache.keys[0].dtype), "layer_shapes": shapes}
    return json.dumps(fields).encode()


@torch.inference_mode()
def fingerprint(model: PreTrainedModel) -> str:
    """A hash of a model's configuration and weights: of each, the sum of its bits, and a sample. Any change of one
    element changes the sum; reading all of them takes as long as a step."""
    config = {**model.config.to_dict(), "_name_or_path": None, "transformers_version": None}
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    tensors: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        bits = tensor.detach().flatten().view(BITS[tensor.element_size()])
        sample = bits[:: max(1, len(bits) // SAMPLE)].tolist()
        found.update(json.dumps([name, list(tensor.shape), bits.sum(dtype=torch.int64).item(), sample]).encode())
    return found.hexdigest()


def name_of(identity: bytes) -> str:
    """A short name for files."""
    return hashlib.sha256(identity).hexdigest()[:16]
