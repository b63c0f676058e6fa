"""What an engine offers, so that it can be judged, and what must hold of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class Refused(ValueError):
    """A request that the engine doesn't take. Any ValueError or TypeError counts as a refusal; this one says so."""


@dataclass(frozen=True)
class Limits:
    """What an engine is made for.

    Attributes:
        max_num_seqs: the most requests that run at a time.
        max_num_batched_tokens: the most tokens of a step.
        max_model_len: the most tokens of a prompt and its answer together.
        block_size, num_blocks: of the KV cache; engines without blocks ignore them.
        eos_token_id: the token that ends an answer; the tokenizer's is the same.
    """

    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    max_model_len: int = 64
    block_size: int = 4
    num_blocks: int = 128
    eos_token_id: int = 12


@dataclass(frozen=True)
class Params:
    """What a request asks for besides its prompt. The meanings are those of `SamplingParams` in lesson 12.

    Attributes:
        max_tokens: the most tokens of the answer, 1 or more.
        ignore_eos: go on after the end token. Stop tokens still hold, also if the end token is one of them.
        temperature, top_k, top_p, seed: at a temperature of 0, the likeliest token is taken every time.
        stop_token_ids: tokens that end the answer, besides the end token.

    An engine that can't serve one of these raises NotImplementedError in `add_request`, and what needs it isn't judged.
    Small engines need no temperature, top_k, top_p and seed: only engines with the feature "sampling" get them.
    """

    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class NewTokens:
    """What a step has computed for one request.

    Attributes:
        token_ids: the new tokens, in order. The token that ends the answer is one of them.
        finish_reason: None while the request goes on; "stop" after the end token or a stop token, "length" after
            `max_tokens` or where the context ends, "abort", or "error". If several hold after the same token, "stop"
            comes before "length".
        text: what can be shown now and could not before, of engines that make text.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    text: str = ""


class Engine(Protocol):
    """The contract. An engine of your own offers these methods, or an adapter does that calls yours.

    A function `make_engine(model, limits, tokenizer)` returns one. `model` is a Hugging Face causal language model in
    float32, which belongs to this engine alone. `tokenizer` has `decode(token_ids)` and `eos_token_id`.

    These may be offered as well, and are then judged:
        num_free_blocks() -> int: blocks that no request holds. Blocks that keep a prefix for later are free, and so
            are those that a scheduler keeps in reserve.
        block_tables() -> dict[str, list[int]]: the blocks of each request that has some, in the order of its tokens.
        close(): nothing follows.
        features: a set of names, see `features_of`, if they can't be read off the methods.
    """

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        """Take a request; the steps that follow serve it. Nothing is computed here. `prompt_ids` is never changed.

        A prompt may be longer than `max_num_batched_tokens`; it is then computed in several steps. A prompt that leaves
        no room for a token is refused. One that leaves less than `max_tokens` is refused, too, or its answer ends with
        "length" where the context ends: choose. If the engine has blocks, a request that `num_blocks` could never hold
        is refused. An id is in use until its request has ended; then a new request may have it.

        Raises:
            ValueError or TypeError: the prompt is empty, has a token outside the vocabulary or doesn't fit; the id is
                in use; or a parameter makes no sense. Then nothing has changed.
        """

    def step(self) -> list[NewTokens]:
        """Serve the requests that are there, some of them or all, with one pass of the model at most.

        Returns:
            the new tokens of each request that got some, as a list of its own. A request that ends says so once, with
            its last token or in a NewTokens without tokens after it. Without requests, [].

        Raises:
            what the model raises in a pass. Then the next `step` may compute the pass again. Or don't raise, and end
            the requests of the pass with "error". Either way each of them ends, and no other one does. A pass that
            failed may have written part of its keys and values: don't count them as computed.
        """

    def abort(self, request_id: str) -> None:
        """End a request now: no token follows, and what it held is free. An id that isn't in use changes nothing.

        The next `step` may return a NewTokens without tokens and with "abort" for it, and needn't.
        """

    def has_unfinished(self) -> bool:
        """Whether a request is waiting or running, or `step` has tokens to return that a stream has computed. A notice
        of an abort that is still to come doesn't count."""

    def stream(self, request_id: str, prompt_ids: list[int], params: Params) -> Iterator[int]:
        """Add a request, at the call or at the first `next`, and yield its tokens one by one as steps compute them.

        Each `next` steps the engine until there is a token, and so serves the other requests, too, whose tokens are
        not lost: the next `step()` returns them, with what it computes itself. If `step()` is called in between, it
        serves the stream's request, too, and keeps its tokens for the reader. If the reader closes the iterator early,
        even before its first `next`, the request is aborted. If `abort` ends the request, the iterator yields nothing
        more and ends.

        If a pass of the model fails, choose as for `step`: the iterator raises what the model raised, and its request
        is aborted; or the request ends with "error", and the iterator ends after the tokens so far; or the pass is
        computed again, and the iterator goes on. It never waits for a token that can't come.
        """


STEPS, MODEL, BLOCKS, TABLES, STREAM = "steps", "model", "blocks", "tables", "stream"
PREFIXES, SAMPLING, TEXT, SERVER = "prefixes", "sampling", "text", "server"


def features_of(engine: Any) -> frozenset[str]:
    """Which of these an engine has. What it doesn't have isn't judged.

    steps: a call of `step` is one step. model: the model computes in this process, so that its passes can be counted
    and disturbed. blocks, tables, stream: the methods above. prefixes: requests with the same beginning share its
    cache. sampling: temperature, top_k, top_p and seed. text: NewTokens have text. server: it speaks HTTP at `url`.

    An engine without an attribute `features` has steps and model, those of the methods that it has, and the features
    that `also` names.
    """
    if (named := getattr(engine, "features", None)) is not None:
        return frozenset(named)
    methods = {"num_free_blocks": BLOCKS, "block_tables": TABLES, "stream": STREAM, "url": SERVER}
    return frozenset(
        {STEPS, MODEL, *(name for method, name in methods.items() if hasattr(engine, method))}
    ) | frozenset(getattr(engine, "also", ()))
