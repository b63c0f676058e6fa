"""What blocks belong to: a model's weights, and the shape of its cache."""

import hashlib
import json

import torch
from transformers import PreTrainedModel

from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def identity_of(model: PreTrainedModel, cache: PagedKVCache) -> bytes:
    """Describe whose blocks these are. Two engines with the same description can use each other's.

    Returns:
        a line of JSON.
    """
    shapes = [list(layer.shape[2:]) for layer in (*cache.keys, *cache.values)]
    sizes = {"block_size": cache.block_size, "dtype": str(cache.keys[0].dtype), "layer_shapes": shapes}
    return json.dumps({"version": 1, "model": fingerprint(model), **sizes}).encode()


@torch.inference_mode()
def fingerprint(model: PreTrainedModel) -> str:
    """A hash of a model's configuration and weights: of each, the sum of its bits, and a sample. Any change of one
    element changes the sum; reading all of them takes as long as a step."""
    config = {**model.config.to_dict(), "_name_or_path": None, "transformers_version": None}
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0]):
        bits = tensor.detach().flatten().view(BITS[tensor.element_size()])
        sample = bits[:: max(1, len(bits) // 256)].tolist()
        found.update(repr([name, list(tensor.shape), bits.sum(dtype=torch.int64).item(), sample]).encode())
    return found.hexdigest()
