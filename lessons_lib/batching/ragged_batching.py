"""Lesson 05: continuous batching in one row. Prefills and decodes share a forward pass, and nothing is padded."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from lessons_lib.attention.packing import (
    PackedBatch,
    concatenate_caches,
    pack,
    packed_forward,
    scatter_cache,
    unpack,
)
from lessons_lib.batching.continuous_batching import NoProgress
from lessons_lib.batching.request import IllegalTransition, Request, RequestState, request_names
from lessons_lib.models.prompts import BadRequest, encode_prompts


@dataclass
class RaggedBatch:
    """Everything that the loop remembers between two steps. While a place is free, nobody waits.

    Attributes:
        max_num_seqs: the most requests in a row.
        waiting: requests without a place, first come first.
        running: the requests of the next row, in the order of admission.
        caches: request id -> the cache of that request alone.
        packed_forward, scatter_cache: the functions that compute a row and take its cache apart.
        packed: the row computed in this step, None before.
    """

    model: torch.nn.Module
    max_num_seqs: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    caches: dict[str, DynamicCache] = field(default_factory=dict)
    packed_forward: Callable = packed_forward
    scatter_cache: Callable = scatter_cache
    packed: PackedBatch | None = None

    def submit(self, request: Request) -> None:
        """Take a request in: at once if a place is free, else at the end of the queue.

        Raises:
            BadRequest: its id is that of another request here; nothing changes.
            IllegalTransition: it is not a waiting request; nothing changes.
        """
        if request.id in {other.id for other in [*self.waiting, *self.running]}:
            raise BadRequest(f"request id {request.id!r} is in the batch already; give every request an id of its own.")
        if request.state is not RequestState.WAITING:
            raise IllegalTransition(
                f"request {request.id!r} is {request.state.value}; only a waiting request can be submitted."
            )
        self.waiting.append(request)
        admit(self)

    def has_room_for(self, request: Request) -> bool:
        """Whether a request may join the row. Nobody asks here whether its cache will fit in memory."""
        return len(self.running) < self.max_num_seqs

    def open_cache(self, request: Request) -> None:
        self.caches[request.id] = DynamicCache()

    def close_cache(self, request: Request) -> None:
        del self.caches[request.id]


def admit(batch) -> None:
    """Give the free places to the first in the queue."""
    while batch.waiting and batch.has_room_for(batch.waiting[0]):
        request = batch.waiting.popleft()
        request.move_to(RequestState.PREFILLING)
        batch.running.append(request)
        batch.open_cache(request)


def retire(batch) -> None:
    """Take the requests that have finished out of the batch, and their caches with them."""
    for request in [request for request in batch.running if request.state is RequestState.FINISHED]:
        batch.running.remove(request)
        batch.close_cache(request)


def forward(batch, packed: PackedBatch) -> torch.Tensor:
    """Join the caches of the running requests, compute their row, and give each its cache back.

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
def loop_forward(batch, packed: PackedBatch) -> torch.Tensor:
    """The same work as `forward` with a pass for each request, one after the other. This is a loop, not batching."""
    batch.packed = packed
    logits = [
        batch.model(
            input_ids=tokens[None].to(batch.model.device), past_key_values=batch.caches[request.id], logits_to_keep=1
        ).logits[0]
        for request, tokens in zip(batch.running, unpack(packed, packed.input_ids))
    ]
    return torch.cat(logits)


def ragged_step(batch, forward=forward):
    """One turn: one row with what is not computed yet of every running request, and one new token for each of them.

    Of a request that has just come that is its whole prompt; of the others it is the token of the step before. Whoever
    finishes leaves in the same step, and the first in the queue takes the place.

    Args:
        batch: a RaggedBatch with at least one running request.
        forward: what computes the row; returns logits [requests, vocabulary].
    """
    uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in batch.running]
    packed = pack(uncomputed, [request.num_computed_tokens for request in batch.running])
    next_tokens = forward(batch, packed).argmax(dim=-1).tolist()
    for request, tokens, next_token in zip(batch.running, uncomputed, next_tokens):
        request.num_computed_tokens += len(tokens)
        request.append_token(next_token)
    retire(batch)
    admit(batch)


def ragged_generate(
    model,
    tokenizer,
    prompts,
    *,
    max_new_tokens,
    max_num_seqs=4,
    names=None,
    step=ragged_step,
    packed_forward=packed_forward,
    scatter_cache=scatter_cache,
) -> list[list[int]]:
    """Serve requests with continuous batching in one row without padding.

    Args:
        prompts: texts, or lists of token ids; all are there at the start.
        max_new_tokens: one cap for all requests, or one for each.
        max_num_seqs: the most requests in a row.
        names: ids of the requests; "0", "1", ... if not given.
        step, packed_forward, scatter_cache: the functions of a turn, yours if you like.

    Raises:
        BadRequest: see `lessons_lib.models.prompts`; or `max_num_seqs` is below 1; or an id is used twice. Nothing was computed.
        NoProgress: a turn of `step` computed nothing, so the next would be the same.
    """
    requests = ragged_requests(model, tokenizer, prompts, max_new_tokens, max_num_seqs, names)
    batch = RaggedBatch(model, max_num_seqs, packed_forward=packed_forward, scatter_cache=scatter_cache)
    return serve(batch, requests, step)


def ragged_requests(model, tokenizer, prompts, max_new_tokens, max_num_seqs, names) -> list[Request]:
    """The requests of `ragged_generate`, checked.

    Raises:
        BadRequest: see `ragged_generate`.
    """
    if max_num_seqs < 1:
        raise BadRequest(f"max_num_seqs is {max_num_seqs}; a row must have room for at least 1 request.")
    prompt_ids, max_tokens_each = encode_prompts(model, tokenizer, prompts, max_new_tokens)
    names = request_names(names, len(prompt_ids))
    return [
        Request(name, ids, max_tokens, tokenizer.eos_token_id)
        for name, ids, max_tokens in zip(names, prompt_ids, max_tokens_each)
    ]


def serve(batch: RaggedBatch, requests: list[Request], step) -> list[list[int]]:
    """Submit all requests, and run steps until all have finished. Returns the new tokens of each.

    Raises:
        NoProgress: see `ragged_generate`.
    """
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
