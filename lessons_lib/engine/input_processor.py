"""Lesson 12: what a caller asks for becomes a request that can be served, or is refused. The engine stays as it is."""

import math
import random
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.logprobs import FlatLogprobs
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.engine.output_processor import OutputProcessor
from lessons_lib.engine.request import Request, RequestGroup
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.prompts import token_ids_of, token_limit
from lessons_lib.models.validate import BadRequest, flag, must, number, shortened, whole
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence

NOT_KNOWN = math.nan
MAX_TIER = 2**31 - 1
MAX_NAME_CHARACTERS = 1024  # of a request id or a cache salt


@dataclass(frozen=True)
class InputProcessor:
    """Makes requests, or refuses those that can't be served.

    Attributes:
        fit: facts about the model.
        vocab_size: token ids are below it.
        max_logprobs: see EngineConfig.
        scheduler: says whether the pool could hold a sequence.
    """

    tokenizer: PreTrainedTokenizerBase
    fit: ModelFit
    vocab_size: int
    max_logprobs: int
    scheduler: PreemptiveScheduler
    clock: Callable[[], float]

    def process(
        self, name: str, label: str, prompt: str | ListOf[int], params: SamplingParams | None,
        *, output_ids: ListOf[int] = (), **options: Any,
    ) -> RequestGroup:  # fmt: skip
        """Make a request that arrives now and can be served.

        Args:
            label: name of the request in error messages.
            output_ids: tokens that another engine has computed for its completion.
            options: attributes of its sequences, such as `tier` and `cache_salt`.

        Raises:
            BadRequest, OutOfBlocks: see `LLMEngine.add_request`.
        """
        params, defaults = self.checked(params), self.fit.defaults
        if defaults.stop:
            params = replace(params, stop=tuple(dict.fromkeys([*params.stop, *defaults.stop])))
        prompt_ids = token_ids_of(self.tokenizer, label, prompt, self.vocab_size, self.fit.context)
        max_tokens = token_limit(label, len(prompt_ids), params.max_tokens, self.fit.context)
        if params.max_tokens is None:
            pool = self.scheduler.pool
            room = pool.num_blocks * pool.block_size + 1 - len(prompt_ids)
            max_tokens = max(1, min(max_tokens, room))
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= defaults.end_token_ids
        params = defaults.applied_to(params, max_tokens)
        rules = self.fit.make_rules(params, stop_token_ids)
        group = RequestGroup(name, prompt_ids, params, self.clock(), rules)
        if params.prompt_logprobs is not None:
            group.prompt_logprobs = [None] * len(prompt_ids)
        seed = random.getrandbits(63) if params.seed is None else params.seed
        for index in range(params.n):
            request = Request(
                name if index == 0 else f"{name}/{index}", group.prompt_ids, max_tokens, stop_token_ids, group.arrival,
                group=group, params=params, index=index, seed=seed + index, **options,
            )  # fmt: skip
            request.prompt_logits = index == 0 and params.prompt_logprobs is not None
            group.completions.append(request)
        self.scheduler.check(Sequence(label, group.prompt_ids, max_tokens))
        if len(output_ids):
            self.resume(group, output_ids)
        return group

    def checked(self, params: SamplingParams | None) -> SamplingParams:
        """The parameters, or the default ones.

        Raises:
            BadRequest: they aren't SamplingParams, or ask for more log-probabilities than the engine returns.
        """
        if params is None:
            return SamplingParams()
        must(isinstance(params, SamplingParams), "params", params, "SamplingParams, or None for the default ones")
        most = self.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and most != -1 and (count == -1 or count > most):
                raise BadRequest(
                    f"{name} is {shortened(count)}{' (all tokens)' if count == -1 else ''}; this engine returns {most} "
                    "at most. Ask for fewer, or raise `EngineConfig.max_logprobs` (-1: any number)."
                )
        return params

    def resume(self, group: RequestGroup, output_ids: ListOf[int]) -> None:
        """Let a completion begin behind tokens that its reader has already: it goes on as if this engine had computed
        all of it. As after a preemption, keys and values of the tokens are computed again.

        Args:
            output_ids: all tokens of the completion so far. Neither they nor their text are passed on again; their
                log-probabilities are NOT_KNOWN.

        Raises:
            BadRequest: there are several completions, a token is outside the vocabulary, the tokens don't match the
                request's grammar, or the completion ends within them.
        """
        request = group.completions[0]
        if group.params.n > 1:
            raise BadRequest(f"output_ids is given, and n is {group.params.n}; one completion can go on: set n to 1.")
        outputs = OutputProcessor(self.tokenizer)
        outputs.restart(request)
        for token in token_ids_of(self.tokenizer, "output_ids", output_ids, self.vocab_size, context=None):
            if not request.finish_reason:
                request.append_token(token)
                if outputs.add_text(request, token):
                    request.finish_reason = "stop"
        if group.params.logprobs is not None:
            unknown = [np.array([token, NOT_KNOWN, 0]).tobytes() for token in request.output_ids]
            request.logprobs = FlatLogprobs(unknown)
        if request.finish_reason:
            raise BadRequest(
                f"output_ids has {len(output_ids)} tokens, and the completion ends with number "
                f"{len(request.output_ids)} of them, by {request.finish_reason!r}; nothing is left to generate."
            )
        if request.processor:
            request.processor.check(self.vocab_size)


def check_options(
    request_id: str | None = None, tier: int = 0, expected_tokens: float | None = None, is_interactive: bool = False,
    on_token: Callable[[Any], None] | None = None, cache_salt: str | None = None,
) -> None:  # fmt: skip
    """Refuse options that a policy, a dictionary or a step can't use.

    Raises:
        BadRequest: names the value and what it must be.
    """
    for field, text in (("request_id", request_id), ("cache_salt", cache_salt)):
        is_name = text is None or (isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARACTERS)
        must(is_name, field, text, f"a str of 1 to {MAX_NAME_CHARACTERS} characters, or None")
    whole("tier", tier, f"a whole number from 0, the best, to {MAX_TIER}", 0, MAX_TIER)
    if expected_tokens is not None:
        wanted = "a number of tokens from 0 on, or None"
        number("expected_tokens", expected_tokens, wanted, lambda count: 0 <= count < 2**63)
    flag("is_interactive", is_interactive)
    must(on_token is None or callable(on_token), "on_token", on_token, "a function of one NewToken, or None")
