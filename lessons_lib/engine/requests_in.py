"""Lesson 12: what a caller asks for becomes a request that can be served, or is refused. The engine stays as it is."""

import random
from collections.abc import Sequence as ListOf
from dataclasses import replace
from typing import TYPE_CHECKING

from lessons_lib.engine.logits_processors import LogitsRules
from lessons_lib.engine.outputs import EngineRequest, OnToken
from lessons_lib.engine.request_checks import check_params
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.prompts import encode_within
from lessons_lib.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


def checked_params(engine: "LLMEngine", params: SamplingParams | None) -> SamplingParams:
    """A request's parameters, with the strings that end every completion of this model.

    Raises:
        BadRequest: see `request_checks.check_params`.
    """
    params = check_params(params, engine.config.max_logprobs)
    stop = engine.generation_defaults.stop
    return replace(params, stop=tuple(dict.fromkeys([*params.stop, *stop]))) if stop else params


def new_sequence(
    engine: "LLMEngine", name: str, label: str, prompt: str | ListOf[int], params: SamplingParams
) -> Sequence:
    """The sequence of a request that can be served.

    Args:
        label: what error messages call the request.
        params: what `checked_params` returned.

    Raises:
        BadRequest, OutOfBlocks: see `LLMEngine.add_request`.
    """
    limits = engine.context, engine.vocab_size
    prompt_ids, max_tokens = encode_within(engine.tokenizer, label, prompt, params.max_tokens, *limits)
    if params.max_tokens is None:
        room = engine.scheduler.pool.num_blocks * engine.config.block_size + 1 - len(prompt_ids)
        max_tokens = max(1, min(max_tokens, room))
    stop_token_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_token_ids |= engine.generation_defaults.end_token_ids
    sequence = Sequence(name, prompt_ids, max_tokens, stop_token_ids)
    engine.scheduler.check(sequence)
    return sequence


def logits_rules(engine: "LLMEngine", params: SamplingParams, sequence: Sequence) -> LogitsRules | None:
    """The rules of a request in this model's tokens.

    Raises:
        BadRequest: see `LogitsRules.of` and `LogitsRules.check`.
    """
    rules = LogitsRules.of(params, engine.tokenizer, engine.vocab_size)
    if rules:
        rules.check(sequence.stop_token_ids, engine.vocab_size)
    return rules


def new_request(
    engine: "LLMEngine", sequence: Sequence, params: SamplingParams, on_token: OnToken | None,
    awaited: dict[EngineRequest, None] | None,
) -> EngineRequest:  # fmt: skip
    """A request that arrives now, with its first completion.

    Args:
        sequence: what `new_sequence` returned.
        params: what `checked_params` returned.
        on_token, awaited: see EngineRequest.

    Raises:
        BadRequest: see `LLMEngine.add_request`.
    """
    sequence.prompt_logits = params.prompt_logprobs is not None
    sequence.arrival_time = now = engine.clock()
    params = engine.generation_defaults.applied_to(params, sequence.max_new_tokens)
    rules = logits_rules(engine, params, sequence)
    request = EngineRequest(sequence.id, list(sequence.prompt_ids), params, now, on_token, rules, awaited=awaited)
    seed = random.getrandbits(63) if params.seed is None else params.seed
    request.new_completion(sequence, seed, engine.tokenizer)
    return request
