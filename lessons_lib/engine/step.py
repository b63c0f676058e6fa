"""Lesson 12: one step of the engine, whole or failed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


def run_step(engine: "LLMEngine") -> None:
    """Run one step for all requests of an engine.

    If copying blocks or the model fails, the requests whose cache may be wrong now end with the error, the step isn't
    recorded, and the engine goes on. An interrupt is passed on; the next call of the engine recovers from it.
    """
    scheduler_output = engine.schedule()
    scheduled = scheduler_output.num_scheduled_tokens
    in_doubt = [*scheduled, *scheduler_output.swapped_out]
    try:
        engine.copy_blocks(scheduler_output.block_copies)
        in_doubt = list(scheduled)  # what was swapped out is whole
        if not scheduled:
            return
        tokens, logits = engine.compute(scheduler_output)
    except Exception as error:
        engine.fail(in_doubt, error)
        return
    gets_token = [each.num_computed_tokens + count == each.num_tokens for each, count in scheduled.items()]
    completions = engine.completions_with_token(scheduler_output, gets_token, tokens, logits)
    engine.update(scheduler_output, tokens)
    engine.pass_on(completions)
    engine.record_step(scheduler_output, sum(gets_token), len(completions))
