"""Lesson 12: requests from strangers. Everything about a request is checked before the scheduler sees it: a value that
fails later, in a step, would fail there for all requests of that step, and a costly one would cost them time."""

from collections.abc import Callable, Sized
from numbers import Real
from typing import Any

from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.prompts import BadRequest, integer, shortened

MAX_N = 128  # completions of a prompt; they all begin in one step
MAX_TIER = 2**31 - 1
MAX_NAME_CHARACTERS = 1024  # of a request id or a cache salt
MAX_STOP_CHARACTERS = 128  # of one stop string or bad word: each beginning of it is looked for in every step
# The most values of a field; vocabularies bound the rest.
MAX_VALUES = {"stop": 32, "stop_token_ids": 1024, "bad_words": 256, "logit_bias": 1024, "logits_processors": 16}


def check_params(params: SamplingParams | None, max_logprobs: int = 20) -> SamplingParams:
    """Refuse sampling parameters that would cost other requests time.

    Args:
        max_logprobs: see EngineConfig.

    Returns:
        SamplingParams: the default ones for None.

    Raises:
        BadRequest: names the value and the limit.
    """
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise BadRequest(f"params is {shortened(params)}; it must be SamplingParams, or None for the default ones.")
    for name, most in MAX_VALUES.items():
        values = getattr(params, name, None) or ()
        if isinstance(values, Sized) and len(values) > most:
            raise BadRequest(f"{name} has {len(values)} values; a request may have {most}.")
    for name in ("stop", "bad_words"):
        longest = max(map(len, getattr(params, name, None) or ()), default=0)
        _at_most(f"the longest text in {name}", longest, MAX_STOP_CHARACTERS, "characters")
    _at_most("n", params.n, MAX_N, "completions of a prompt")
    for name in ("logprobs", "prompt_logprobs"):
        _check_logprobs(name, getattr(params, name, None), max_logprobs)
    return params


def _check_logprobs(name: str, count: int | None, most: int) -> None:
    if count is None or most == -1:
        return
    if count == -1 or count > most:
        raise BadRequest(
            f"{name} is {shortened(count)}{' (all tokens)' if count == -1 else ''}; this engine returns {most} at "
            "most. Ask for fewer, or raise `EngineConfig.max_logprobs` (-1: any number)."
        )


def _at_most(name: str, value: int, most: int, unit: str) -> None:
    if value > most:
        raise BadRequest(f"{name} is {shortened(value)}; the limit is {most} {unit}.")


def check_options(
    request_id: str | None = None, tier: int = 0, expected_tokens: float | None = None, is_interactive: bool = False,
    on_token: Callable[[Any], None] | None = None, cache_salt: str | None = None,
) -> None:  # fmt: skip
    """Refuse what a policy, a dictionary or a step could not use.

    Raises:
        BadRequest: names the value and what it must be.
    """
    _check_name("request_id", request_id)
    _check_name("cache_salt", cache_salt)
    try:
        is_tier = 0 <= integer(tier) <= MAX_TIER
    except TypeError:
        is_tier = False
    if not is_tier:
        raise BadRequest(f"tier is {shortened(tier)}; it must be a whole number from 0, the best, to {MAX_TIER}.")
    if expected_tokens is not None:
        is_number = isinstance(expected_tokens, Real) and not isinstance(expected_tokens, bool)
        # NaN fails every comparison, and would leave the waiting queue without an order.
        if not (is_number and 0 <= expected_tokens < 2**63):
            raise BadRequest(
                f"expected_tokens is {shortened(expected_tokens)}; it must be a number of tokens from 0 on, or None."
            )
    if not isinstance(is_interactive, bool):
        raise BadRequest(f"is_interactive is {shortened(is_interactive)}; it must be True or False.")
    if on_token is not None and not callable(on_token):
        raise BadRequest(f"on_token is {shortened(on_token)}; it must be a function of one NewToken, or None.")


def _check_name(field: str, name: str | None) -> None:
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS):
        raise BadRequest(
            f"{field} is {shortened(name)}; it must be a str of 1 to {MAX_NAME_CHARACTERS} characters, or None."
        )
