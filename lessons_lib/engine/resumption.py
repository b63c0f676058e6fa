"""Lesson 15: a completion that another engine has begun. It goes on as if this engine had computed all of it.

As after a preemption, keys and values of the tokens are computed again, and the tokens themselves are kept. What looks
back at them, such as penalties, stop strings, grammars and the random numbers of a seed, sees all of them.
"""

import math
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING

from lessons_lib.engine.sampling import TokenLogprobs
from lessons_lib.models.prompts import BadRequest, token_ids_of

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine
    from lessons_lib.engine.outputs import CompletionOutput

NOT_KNOWN = math.nan


def resume(engine: "LLMEngine", completion: "CompletionOutput", output_ids: ListOf[int]) -> None:
    """Let a new completion begin behind tokens that its reader has already.

    Args:
        output_ids: all tokens of the completion so far. Neither they nor their text are passed on again; their
            log-probabilities are NOT_KNOWN.

    Raises:
        BadRequest: there are several completions, a token is outside the vocabulary, the tokens don't match the
            request's grammar, or the completion ends within them.
    """
    request, sequence = completion.request, completion.sequence
    if request.params.n > 1:
        raise BadRequest(f"output_ids is given, and n is {request.params.n}; one completion can go on, so n must be 1.")
    for token in token_ids_of(engine.tokenizer, "output_ids", output_ids, engine.vocab_size, context=None):
        if not sequence.finish_reason:
            sequence.append_token(token)
            completion.add_text()
            if completion.logprobs is not None:
                completion.logprobs.append(TokenLogprobs(token, NOT_KNOWN, ()))
    if sequence.finish_reason:
        raise BadRequest(
            f"output_ids has {len(output_ids)} tokens, and the completion ends with number {len(sequence.output_ids)} "
            f"of them, by {sequence.finish_reason!r}; nothing is left to generate."
        )
    state = completion.processor and completion.processor.grammar_state
    if state and not state.allowed(sequence.output_ids, engine.vocab_size).any():
        raise BadRequest("output_ids don't match the request's structured_outputs; leave out one of them.")
    completion.num_offered = completion.num_passed_on = len(sequence.output_ids)
