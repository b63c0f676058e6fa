"""Lesson 05: continuous batching in one packed row. Prefills and decodes share a forward pass; nothing is padded."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.attention.packing import PackedBatch, concatenate_caches, pack, packed_forward, scatter_cache, unpack
from lessons_lib.batching.prompts import make_requests
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.models.validate import BadRequest, must


class NoProgress(RuntimeError):
    """A step computed nothing although requests are unfinished."""


@dataclass
class RaggedBatch:
    """The state of the loop between two steps. No request waits while a batch slot is free.

    Attributes:
        max_num_seqs: number of batch slots: maximum requests in a packed batch.
        waiting: requests that are not admitted yet, in order of arrival.
        running: the requests of the next packed batch, in order of admission.
        caches: request id -> that request's cache.
        packed_forward, scatter_cache: the functions that compute a packed batch and split its cache.
        packed: the packed batch of the last forward pass, None before the first.
    """

    model: PreTrainedModel
    max_num_seqs: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    caches: dict[str, Any] = field(default_factory=dict)
    packed_forward: Callable[..., torch.Tensor] = packed_forward
    scatter_cache: Callable[..., list[DynamicCache]] = scatter_cache
    packed: PackedBatch | None = None

    def submit(self, request: Request) -> None:
        """Add a request: admit it if a batch slot is free, else queue it.

        Raises:
            BadRequest: another request in the batch has the same id, or this one is not waiting; nothing changes.
        """
        if request.id in {other.id for other in [*self.waiting, *self.running]}:
            raise BadRequest(f"request id {request.id!r} is in the batch already; give every request its own id.")
        if request.state is not RequestState.WAITING:
            raise BadRequest(f"request {request.id!r} is {request.state.value}; submit a waiting request.")
        self.waiting.append(request)
        admit(self)

    def has_room_for(self, request: Request) -> bool:
        """True if a batch slot is free. Memory for the cache isn't checked here."""
        return len(self.running) < self.max_num_seqs

    def open_cache(self, request: Request) -> None:
        """Create an empty cache for an admitted request."""
        self.caches[request.id] = DynamicCache()

    def close_cache(self, request: Request) -> None:
        """Free a finished request's cache."""
        del self.caches[request.id]


def admit(batch: RaggedBatch) -> None:
    """Admit requests from the front of the queue while there is room."""
    while batch.waiting and batch.has_room_for(batch.waiting[0]):
        request = batch.waiting.popleft()
        request.state = RequestState.PREFILLING
        batch.running.append(request)
        batch.open_cache(request)


def retire(batch: RaggedBatch) -> None:
    """Remove finished requests from the batch, and their caches with them."""
    for request in [request for request in batch.running if request.state is RequestState.FINISHED]:
        batch.running.remove(request)
        batch.close_cache(request)


def forward(batch: RaggedBatch, packed: PackedBatch) -> torch.Tensor:
    """Join the running requests' caches, compute the packed batch, and split the caches again.

    Returns:
        tensor [requests, vocabulary]: the logits after each request's last token.
    """
    batch.packed = packed
    joined = concatenate_caches([batch.caches[request.id] for request in batch.running])
    logits = batch.packed_forward(batch.model, packed, joined)
    for request, cache in zip(batch.running, batch.scatter_cache(joined, packed)):
        batch.caches[request.id] = cache
    return logits


@torch.inference_mode()
def loop_forward(batch: RaggedBatch, packed: PackedBatch) -> torch.Tensor:
    """Do the work of `forward` with one pass per request. This is a loop, not batching."""
    batch.packed = packed
    logits = [
        batch.model(
            input_ids=tokens[None].to(batch.model.device), past_key_values=batch.caches[request.id], logits_to_keep=1
        ).logits[0]
        for request, tokens in zip(batch.running, unpack(packed, packed.input_ids))
    ]
    return torch.cat(logits)


def ragged_step(batch: "RaggedBatch", forward: "Callable[..., torch.Tensor]" = forward) -> None:
    """One step: pack the uncomputed tokens of every running request, compute them, and append one token to each.

    A newly admitted request contributes its whole prompt, the others the token of the previous step. Finished requests
    leave in the same step, and queued ones replace them.

    Args:
        batch: a RaggedBatch with at least one running request.
        forward: function that computes the packed batch; returns logits [requests, vocabulary].
    """
    uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in batch.running]
    packed = pack(uncomputed, [request.num_computed_tokens for request in batch.running])
    next_tokens = forward(batch, packed).argmax(dim=-1).tolist()
    for request, tokens, next_token in zip(batch.running, uncomputed, next_tokens):
        request.num_computed_tokens += len(tokens)
        request.append_token(next_token)
    retire(batch)
    admit(batch)


def chunked_step(batch: "RaggedBatch", max_num_batched_tokens: int, forward: "Callable[..., Any]" = forward) -> None:
    """One step whose row has a limit: prompts that don't fit are computed in chunks, over several steps.

    Args:
        batch, forward: as in `ragged_step`.
        max_num_batched_tokens: maximum number of tokens in the row, at least one for each running request.
    """
    known = [request.prompt_ids + request.output_ids for request in batch.running]
    cached = [request.num_computed_tokens for request in batch.running]
    spare = max_num_batched_tokens - len(known)
    parts = []
    for tokens, computed in zip(known, cached):
        parts.append(tokens[computed : computed + 1 + spare])
        spare -= len(parts[-1]) - 1
    next_tokens = forward(batch, pack(parts, cached)).argmax(dim=-1).tolist()
    for request, tokens, part, next_token in zip(batch.running, known, parts, next_tokens):
        request.num_computed_tokens += len(part)
        if request.num_computed_tokens == len(tokens):
            request.append_token(next_token)
    retire(batch)
    admit(batch)


def ragged_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str | Sequence[int]], *,
    max_new_tokens: int | Sequence[int] | None, max_num_seqs: int = 4, names: Sequence[str] | None = None,
    step: Callable[[RaggedBatch], None] = ragged_step, packed_forward: Callable[..., torch.Tensor] = packed_forward,
    scatter_cache: Callable[..., list[DynamicCache]] = scatter_cache,
) -> list[list[int]]:  # fmt: skip
    """Serve requests with continuous batching in one packed row, without padding.

    Args:
        max_num_seqs: maximum requests in a packed batch, at least 1.
        names: ids of the requests; "0", "1", ... if not given.
        step, packed_forward, scatter_cache: functions of a step; you can pass your own.
        The others, and Returns: see `generate_one_by_one`.

    Raises:
        BadRequest: see `batching.prompts`; nothing was computed.
        NoProgress: a call of `step` computed nothing.
    """
    must(max_num_seqs >= 1, "max_num_seqs", max_num_seqs, "at least 1")
    requests = make_requests(model, tokenizer, prompts, max_new_tokens, names)
    batch = RaggedBatch(model, max_num_seqs, packed_forward=packed_forward, scatter_cache=scatter_cache)
    return serve(batch, requests, step)


def serve(batch: RaggedBatch, requests: list[Request], step: Callable[[Any], None]) -> list[list[int]]:
    """Submit all requests and run steps until all have finished; see `ragged_generate`."""
    for request in requests:
        batch.submit(request)
    while batch.running:
        batch.packed = None
        step(batch)
        if batch.packed is None:
            raise NoProgress(
                f"a step computed nothing, with {len(batch.running)} requests in the batch and {len(batch.waiting)} "
                "waiting. A step must compute the packed batch, append the tokens, retire and admit."
            )
    return [request.output_ids for request in requests]
