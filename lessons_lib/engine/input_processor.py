"""Lesson 12: what a caller asks for becomes a request that can be served, or is refused. The engine stays as it is."""

import math
import random
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from lessons_lib.engine.logits_processors import LogitsRules
from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.engine.model_fit import RequestDefaults
from lessons_lib.engine.output_processor import OutputProcessor
from lessons_lib.engine.request import Request, RequestGroup
from lessons_lib.engine.request_checks import check_params
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.prompts import encode_within, token_ids_of
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence

NOT_KNOWN = math.nan


@dataclass(frozen=True)
class InputProcessor:
    """Makes requests that can be served.

    Attributes:
        context: the most tokens of a prompt and its completion together; None if there is no limit.
        vocab_size: token ids are below it.
        defaults: taken from the model's generation_config.
        max_logprobs: see EngineConfig.
        scheduler: says whether the pool could hold a sequence.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int | None
    vocab_size: int
    defaults: RequestDefaults
    max_logprobs: int
    scheduler: PreemptiveScheduler
    clock: Callable[[], float]

    def process(
        self, name: str, label: str, prompt: str | ListOf[int], params: SamplingParams | None,
        *, output_ids: ListOf[int] = (), **options: Any,
    ) -> RequestGroup:  # fmt: skip
        """A request that arrives now and can be served.

        Args:
            label: what error messages call the request.
            output_ids: tokens that another engine has computed for its completion.
            options: attributes of its sequences, such as `tier` and `cache_salt`.

        Raises:
            BadRequest, OutOfBlocks: see `LLMEngine.add_request`.
        """
        params, defaults = check_params(params, self.max_logprobs), self.defaults
        if defaults.stop:
            params = replace(params, stop=tuple(dict.fromkeys([*params.stop, *defaults.stop])))
        limits = self.context, self.vocab_size
        prompt_ids, max_tokens = encode_within(self.tokenizer, label, prompt, params.max_tokens, *limits)
        if params.max_tokens is None:
            pool = self.scheduler.pool
            room = pool.num_blocks * pool.block_size + 1 - len(prompt_ids)
            max_tokens = max(1, min(max_tokens, room))
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= defaults.end_token_ids
        params = defaults.applied_to(params, max_tokens)
        rules = LogitsRules.of(params, self.tokenizer, self.vocab_size)
        if rules:
            rules.check(stop_token_ids, self.vocab_size)
        group = RequestGroup(name, list(prompt_ids), params, self.clock(), rules)
        if params.prompt_logprobs is not None:
            group.prompt_logprobs = [None] * len(prompt_ids)
        seed = random.getrandbits(63) if params.seed is None else params.seed
        for index in range(params.n):
            request = Request(
                name if index == 0 else f"{name}/{index}", group.prompt_ids, max_tokens, stop_token_ids, group.arrival,
                group=group, index=index, seed=seed + index, **options,
            )  # fmt: skip
            request.prompt_logits = index == 0 and params.prompt_logprobs is not None
            group.completions.append(request)
        self.scheduler.check(Sequence(label, group.prompt_ids, max_tokens))
        if len(output_ids):
            self.resume(group, output_ids)
        return group

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
            raise BadRequest(
                f"output_ids is given, and n is {group.params.n}; one completion can go on, so n must be 1."
            )
        outputs = OutputProcessor(self.tokenizer)
        outputs.restart(request)
        for token in token_ids_of(self.tokenizer, "output_ids", output_ids, self.vocab_size, context=None):
            if not request.finish_reason:
                request.append_token(token)
                outputs.add_text(request, token)
        if group.params.logprobs is not None:
            request.logprobs = [TokenLogprobs(token, NOT_KNOWN, ()) for token in request.output_ids]
        if request.finish_reason:
            raise BadRequest(
                f"output_ids has {len(output_ids)} tokens, and the completion ends with number "
                f"{len(request.output_ids)} of them, by {request.finish_reason!r}; nothing is left to generate."
            )
        state = request.processor and request.processor.grammar_state
        if state and not state.allowed(request.output_ids, self.vocab_size).any():
            raise BadRequest("output_ids don't match the request's structured_outputs; leave out one of them.")
