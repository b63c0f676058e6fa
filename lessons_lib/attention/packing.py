"""Lesson 05: new tokens of many sequences, packed into one row without padding and computed in one forward pass."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lessons_lib.attention.hf_backend import ForwardBatch
from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens


@dataclass(frozen=True)
class PackedBatch:
    """T new tokens of N sequences, packed one sequence after the other.

    Attributes:
        input_ids: the new tokens, int64 [T].
        positions: position of each token in its own sequence, int64 [T].
        seq_ids: sequence of each token, 0 to N - 1, int64 [T].
        cu_seqlens_q: cumulative lengths: the start of each sequence, then T, int64 [N + 1].
        context_lens: tokens of each sequence after this pass, cached and new, int64 [N].
        logits_index: index of each sequence's last token, int64 [N].
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    seq_ids: torch.Tensor
    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    logits_index: torch.Tensor

    @property
    def new_lens(self) -> list[int]:
        """New tokens of each sequence."""
        lengths: list[int] = self.cu_seqlens_q.diff().tolist()
        return lengths

    @property
    def cached_lens(self) -> list[int]:
        """Tokens of each sequence that are in the cache before this pass."""
        lengths: list[int] = (self.context_lens - self.cu_seqlens_q.diff()).tolist()
        return lengths

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The same batch with its tensors on another device."""
        return PackedBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def with_tables(self, slot_mapping: torch.Tensor, block_tables: torch.Tensor) -> ForwardBatch:
        """Build the input of a pass over a paged cache (lesson 06), from slot_mapping, int [T], and block_tables, int
        [N, M]. There must be at least one sequence."""
        return ForwardBatch(
            self.input_ids,
            self.positions,
            slot_mapping.long(),
            self.cu_seqlens_q.int(),
            self.context_lens.int(),
            block_tables.int(),
            self.logits_index,
            torch.tensor([max(self.new_lens), int(self.context_lens.max())]),
        )


def pack(new_tokens: list[list[int]], cached_lens: list[int]) -> "PackedBatch":
    """Pack the new, uncomputed tokens of several sequences into one row.

    Args:
        new_tokens: list of N lists of token ids, each at least one token long.
        cached_lens: list of N ints: cached tokens of each sequence, and so the position of its first new token.

    Returns:
        PackedBatch. Without sequences, all its tensors are empty except `cu_seqlens_q`, which is [0].

    Raises:
        ValueError: the two lists differ in length, a sequence has no new token, or a length is negative.
    """
    lengths = [len(tokens) for tokens in new_tokens]
    if len(cached_lens) != len(lengths) or 0 in lengths or any(cached < 0 for cached in cached_lens):
        raise ValueError(
            f"new tokens of {len(lengths)} sequences, {lengths} of each, and cached lengths {list(cached_lens)}; give "
            "one cached length of 0 or more and at least one new token for each sequence."
        )
    tags = tag_tokens(lengths, starts=cached_lens)
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(dim=0)
    return PackedBatch(
        input_ids=torch.tensor([token for tokens in new_tokens for token in tokens], dtype=torch.int64),
        positions=tags.positions,
        seq_ids=tags.seq_ids,
        cu_seqlens_q=torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
        context_lens=torch.tensor(cached_lens, dtype=torch.int64) + torch.tensor(lengths, dtype=torch.int64),
        logits_index=ends - 1,
    )


def unpack(packed: PackedBatch, row: torch.Tensor) -> list[torch.Tensor]:
    """Split a packed row, [T, ...], into its N sequences, [new tokens of the sequence, ...]."""
    bounds = packed.cu_seqlens_q.tolist()
    return [row[start:end] for start, end in pairwise(bounds)]


def key_tags(packed: PackedBatch) -> Tags:
    """Tags of all keys of the pass: the cached tokens of every sequence, then the new ones."""
    return tag_tokens(packed.cached_lens).followed_by(Tags(packed.seq_ids, packed.positions))


def packed_mask(packed: PackedBatch) -> torch.Tensor:
    """The mask of the pass, bool [T, cached and new tokens of all sequences]."""
    return block_diagonal_mask(Tags(packed.seq_ids, packed.positions), key_tags(packed))


def cache_of(layers: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    """Build a DynamicCache of existing tensors: (keys, values) of each layer, [1, kv_heads, tokens, head_dim]."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def concatenate_caches(caches: list[DynamicCache]) -> DynamicCache:
    """Concatenate caches, one per sequence, in order. Every layer is copied; empty caches add nothing."""
    filled = [cache.layers for cache in caches if cache.get_seq_length()]
    return cache_of(
        (torch.cat([layer.keys for layer in layers], dim=2), torch.cat([layer.values for layer in layers], dim=2))
        for layers in zip(*filled)
    )


def scatter_cache(joined: "DynamicCache", packed: "PackedBatch") -> list["DynamicCache"]:
    """After the pass, split the joined cache into one per sequence: its old tokens, then its new ones.

    Args:
        joined: the DynamicCache of the pass, [1, kv_heads, keys, head_dim] in every layer: first the cached tokens of
            every sequence, one sequence after the other, then the new tokens of every sequence.

    Returns:
        list of N DynamicCache, with `packed.context_lens` tokens.
    """
    count = len(packed.new_lens)

    def own_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        old_and_new = torch.split(tensor, packed.cached_lens + packed.new_lens, dim=2)
        return [torch.cat([old, new], dim=2) for old, new in zip(old_and_new[:count], old_and_new[count:])]

    layers = [list(zip(own_parts(layer.keys), own_parts(layer.values))) for layer in joined.layers]  # type: ignore
    return [cache_of(own_layers) for own_layers in zip(*layers)]


@torch.inference_mode()
def packed_forward(model: "PreTrainedModel", packed: "PackedBatch", cache: "DynamicCache") -> torch.Tensor:
    """Run one forward pass over a packed batch.

    Args:
        packed: a PackedBatch with at least one sequence.
        cache: a DynamicCache with `packed.cached_lens` tokens of every sequence, one sequence after the other. The
            model appends the new tokens.

    Returns:
        tensor [N, vocabulary]: the logits after each sequence's last token only.
    """
    if (held := cache.get_seq_length()) != sum(packed.cached_lens):
        raise ValueError(f"the cache has {held} tokens, and the cached lengths are {packed.cached_lens}.")
    device = model.device
    logits: torch.Tensor = model(
        input_ids=packed.input_ids[None].to(device),
        position_ids=packed.positions[None].to(device),
        attention_mask=packed_mask(packed)[None, None].to(device),
        past_key_values=cache,
        logits_to_keep=packed.logits_index.to(device),
    ).logits
    return logits[0]


def copied_tokens(packed: PackedBatch) -> int:
    """Count the tokens whose keys and values a pass copies, beyond writing the new ones once.

    Cached tokens are copied when the caches are joined, when the model appends the new tokens (a DynamicCache allocates
    a larger tensor), and when the caches are scattered. Scattering copies the new tokens too.
    """
    return 3 * sum(packed.cached_lens) + sum(packed.new_lens)
