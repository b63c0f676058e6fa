"""Lesson 06: paged attention inside a Hugging Face model: the entry into the model for every runner."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.attention.score_terms import score_terms
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

PAGED = "paged"
Attend = Callable[..., torch.Tensor]
Backend = Callable[[Any, torch.Tensor, int], Attend]


@dataclass(frozen=True)
class ForwardBatch:
    """The input of one forward pass: T new tokens of N sequences in one packed row, with the block tables of the
    sequences.

    Attributes:
        input_ids: the new tokens, int64 [T]. A negative id, -1 - i, stands for token i of the step in flight (lesson
            13).
        positions: position of each token in its own sequence, int64 [T].
        slot_mapping: the cache slot of each new token, block x block_size + offset, int64 [T].
        cu_seqlens_q: cumulative lengths: the start of each sequence in the row and the end of the last, int32 [N + 1].
            Any tokens after the last sequence are padding.
        context_lens: tokens of each sequence after this pass, cached and new, int32 [N].
        block_tables: blocks of each sequence, those of the new tokens included, int32 [N, M]; entries after its last
            block are never read.
        logits_index: row index of each sequence's last token, int64 [N], followed by those of any other tokens whose
            logits are wanted.
        max_lens: upper bounds of any sequence's new tokens and context, int64 [2]. Always on the CPU, so that reading
            them doesn't synchronize with a GPU.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cu_seqlens_q: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    logits_index: torch.Tensor
    max_lens: torch.Tensor

    @property
    def new_lens(self) -> list[int]:
        """New tokens of each sequence."""
        return self.cu_seqlens_q.diff().tolist()

    def to(self, device: torch.device) -> "ForwardBatch":
        """Copy the batch to another device asynchronously. PyTorch doesn't reuse the pinned memory before the copies
        are done."""
        if device.type == "cpu":
            return self
        tensors = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "max_lens"}
        if device.type == "cuda":
            tensors = {name: tensor if tensor.is_cuda else tensor.pin_memory() for name, tensor in tensors.items()}
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return ForwardBatch(**moved, max_lens=self.max_lens)


@dataclass(frozen=True)
class PagedPass:
    """State of one forward pass that every layer needs.

    Attributes:
        cache: the cache of the whole model.
        slot_mapping: the cache slot of each new token, int64 [T].
        attend: function (query [T, q_heads, head_dim], keys, values, scale) -> [T, q_heads, head_dim] over one layer's
            cache, with the block tables bound. Layers with ScoreTerms also pass `terms`.
    """

    cache: PagedKVCache
    slot_mapping: torch.Tensor
    attend: Attend


def paged_attention_forward(
    module: "Any", query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None,
    scaling: float | None = None, *, paged: "PagedPass", **kwargs: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Paged attention of a packed batch, called by a Hugging Face layer in place of its own attention.

    Args:
        module: the layer; `module.layer_idx` is its index.
        query: [1, q_heads, T, head_dim]; key, value: [1, kv_heads, T, head_dim], already rotated to their positions.
        attention_mask: None: transformers builds masks only for its own attention functions.
        scaling: factor of the scores; 1 / sqrt(head_dim) if not given.
        paged: the PagedPass of this forward pass.
        kwargs: other arguments of some layers; ignored here.

    Returns:
        (attention [1, T, q_heads, head_dim], None): no attention weights. This layer's new keys and values are in the
        cache afterwards.
    """
    layer = module.layer_idx
    paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], paged.cache.values[layer], scale)
    return attended[None], None


def attention_of_layer(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None,
    scaling: float | None = None, *, paged: PagedPass, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """`paged_attention_forward` for any model: honor the layer's other arguments, see `score_terms`.

    Raises:
        UnsupportedModel: an argument that paged attention doesn't support would change the result. Nothing was written.
    """
    terms = score_terms(module, attention_mask, kwargs)
    if terms is not None:
        paged = replace(paged, attend=partial(paged.attend, terms=terms))
    return paged_attention_forward(module, query, key, value, attention_mask, scaling, paged=paged)


AttentionInterface.register(PAGED, attention_of_layer)


@contextmanager
def paged_attention_in(model: PreTrainedModel) -> Iterator[None]:
    """Context manager: route the model's attention to the function registered as "paged"."""
    # `model.set_attn_implementation` sets the same but visits all layers: a tenth of a small model's pass.
    before = model.config._attn_implementation
    model.config._attn_implementation = PAGED
    try:
        yield
    finally:
        model.config._attn_implementation = before


def plan_attention(backend: str | Backend | None, device: torch.device) -> Backend:
    """Return a backend: function (batch, block_tables, block_size) -> attend. The batch may be a PackedBatch, which has
    no block tables.

    Args:
        backend: "torch", "triton" (lesson 08), or such a function. By default, Triton if the model is on a GPU, else
            PyTorch.

    Raises:
        ValueError: there is no such backend.
    """
    if callable(backend):
        return backend
    backend = backend or ("triton" if device.type == "cuda" else "torch")
    if backend == "torch":
        return plan_torch
    if backend == "triton":
        from lessons_lib.kernels.launch import plan_triton  # imported here: Triton is not available everywhere

        return plan_triton
    raise ValueError(f"there is no backend {backend!r}; choose 'torch' or 'triton'.")


@torch.inference_mode()
def paged_forward(
    model: PreTrainedModel, batch: ForwardBatch, cache: PagedKVCache, backend: str | Backend | None = None
) -> torch.Tensor:
    """Run one forward pass over a packed batch of at least one sequence.

    Returns:
        tensor [N, vocabulary]: the logits after each sequence's last token.
    """
    batch = batch.to(model.device)
    attend = plan_attention(backend, model.device)(batch, batch.block_tables, cache.block_size)
    with paged_attention_in(model):
        return logits_of(model, batch, batch.input_ids, PagedPass(cache, batch.slot_mapping, attend))


def logits_of(model: PreTrainedModel, batch: ForwardBatch, input_ids: torch.Tensor, paged: PagedPass) -> torch.Tensor:
    """Call the model, inside `paged_attention_in`, with `input_ids` without placeholders; logits [N, vocabulary]."""
    logits: torch.Tensor = model(
        input_ids=input_ids[None],
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.logits_index,
        paged=paged,
    ).logits[0]
    return logits
