"""Lesson 05: new tokens of many sequences in one row without padding, computed in one forward pass."""

from dataclasses import dataclass, fields

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens


@dataclass(frozen=True)
class PackedBatch:
    """One row of T new tokens of B sequences, one sequence behind the other.

    Attributes:
        input_ids: the new tokens, int64 [T].
        positions: position of each in its own sequence, int64 [T].
        seq_ids: which sequence each belongs to, 0 to B - 1, int64 [T].
        cu_seqlens_q: where each sequence begins in the row, and at the end T: cumulative lengths, int64 [B + 1].
        context_lens: tokens of each sequence after this pass, those in the cache and the new ones, int64 [B].
        logits_index: place in the row of each sequence's last token, int64 [B].
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
        return self.cu_seqlens_q.diff().tolist()

    @property
    def cached_lens(self) -> list[int]:
        """Tokens of each sequence that lie in the cache before this pass."""
        return (self.context_lens - self.cu_seqlens_q.diff()).tolist()

    def to(self, device) -> "PackedBatch":
        """The same row with its tensors on another device."""
        return PackedBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def pack(new_tokens, cached_lens):
    """Lay the new tokens of several sequences into one row. A prefill brings a whole prompt, a decode one token.

    Args:
        new_tokens: list of B lists of token ids, each at least one token long.
        cached_lens: list of B ints: how many tokens of each sequence are in the cache already. The first new token has
            this position.

    Returns:
        PackedBatch. Without sequences, all its tensors are empty, but for `cu_seqlens_q`, which is [0].

    Raises:
        ValueError: the two lists are not equally long, a sequence has no new token, or a length is negative.
    """
    lengths = [len(tokens) for tokens in new_tokens]
    if len(cached_lens) != len(lengths) or 0 in lengths or any(cached < 0 for cached in cached_lens):
        raise ValueError(
            f"new tokens of {len(lengths)} sequences, {lengths} of each, and cached lengths {list(cached_lens)}; give as many "
            "of both, at least one new token each, and cached lengths of 0 or more."
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


def unpack(packed, row):
    """Cut a row into the pieces of the sequences.

    Args:
        packed: a PackedBatch.
        row: tensor [T, ...], one entry for each token of the row.

    Returns:
        list of B tensors [new tokens of the sequence, ...].
    """
    bounds = packed.cu_seqlens_q.tolist()
    return [row[start:end] for start, end in zip(bounds, bounds[1:])]


def key_tags(packed: PackedBatch) -> Tags:
    """The tags of all keys of the pass: first what is cached of every sequence, then the new tokens."""
    return tag_tokens(packed.cached_lens).followed_by(Tags(packed.seq_ids, packed.positions))


def packed_mask(packed: PackedBatch) -> torch.Tensor:
    """The mask of the pass, bool [T, cached and new tokens of all sequences]."""
    return block_diagonal_mask(Tags(packed.seq_ids, packed.positions), key_tags(packed))


def cache_of(layers) -> DynamicCache:
    """A DynamicCache made of tensors that are there already. `DynamicCache.update` would copy them.

    Args:
        layers: (keys, values) of each layer, [1, kv_heads, tokens, head_dim] each.
    """
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def concatenate_caches(caches: list[DynamicCache]) -> DynamicCache:
    """One cache that holds the tokens of several, one behind the other, every layer copied.

    Args:
        caches: one for each sequence; those that hold nothing yet add nothing.
    """
    filled = [cache.layers for cache in caches if cache.get_seq_length()]
    return cache_of(
        (torch.cat([layer.keys for layer in layers], dim=2), torch.cat([layer.values for layer in layers], dim=2))
        for layers in zip(*filled)
    )


def scatter_cache(joined, packed):
    """After the pass, give every sequence a cache of its own again: its old tokens, then its new ones.

    Args:
        joined: the DynamicCache that the pass worked on, [1, kv_heads, keys, head_dim] in every layer: first what was cached
            of every sequence, one sequence behind the other, then the new tokens of every sequence.
        packed: the PackedBatch of the pass.

    Returns:
        list of B DynamicCache, with `packed.context_lens` tokens.
    """
    count = len(packed.new_lens)

    def own_pieces(tensor):
        old_and_new = tensor.split(packed.cached_lens + packed.new_lens, dim=2)
        return [torch.cat([old, new], dim=2) for old, new in zip(old_and_new[:count], old_and_new[count:])]

    layers = [list(zip(own_pieces(layer.keys), own_pieces(layer.values))) for layer in joined.layers]
    return [cache_of(own_layers) for own_layers in zip(*layers)]


@torch.inference_mode()
def packed_forward(model, packed, cache):
    """One forward pass over the row.

    Args:
        model: a Hugging Face causal language model.
        packed: a PackedBatch with at least one sequence.
        cache: a DynamicCache with `packed.cached_lens` tokens of every sequence, one sequence behind the other. The model adds
            the new tokens at its end.

    Returns:
        tensor [B, vocabulary]: the logits after each sequence's last token, and of no other.
    """
    device = model.device
    return model(
        input_ids=packed.input_ids[None].to(device),
        position_ids=packed.positions[None].to(device),
        attention_mask=packed_mask(packed)[None, None].to(device),
        past_key_values=cache,
        logits_to_keep=packed.logits_index.to(device),
    ).logits[0]


def copied_tokens(packed: PackedBatch) -> int:
    """How many tokens' keys and values are moved around a pass, beyond writing the new ones once.

    What is cached is copied when the caches are joined; again when the model adds the new tokens, since a DynamicCache makes a larger
    tensor for that; and again when the caches are scattered. Scattering copies the new tokens too.
    """
    return 3 * sum(packed.cached_lens) + sum(packed.new_lens)
