"""Lesson 12: requests from strangers. Everything about a request is checked before the scheduler sees it: a value that
fails later, in a step, would fail there for all requests of that step, and a costly one would cost them time."""

from collections.abc import Callable, Sized
from typing import Any

from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.validate import BadRequest, flag, must, number, shortened, whole

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
    must(isinstance(params, SamplingParams), "params", params, "SamplingParams, or None for the default ones")
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
    whole("tier", tier, f"a whole number from 0, the best, to {MAX_TIER}", 0, MAX_TIER)
    if expected_tokens is not None:
        wanted = "a number of tokens from 0 on, or None"
        number("expected_tokens", expected_tokens, wanted, lambda count: 0 <= count < 2**63)
    flag("is_interactive", is_interactive)
    must(on_token is None or callable(on_token), "on_token", on_token, "a function of one NewToken, or None")


def _check_name(field: str, name: str | None) -> None:
    is_name = name is None or (isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS)
    must(is_name, field, name, f"a str of 1 to {MAX_NAME_CHARACTERS} characters, or None")
