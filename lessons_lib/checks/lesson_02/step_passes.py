"""Judges 02.5, `step`: one decode pass and one chunk in each step."""

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_02.batch import a_request, make_batch
from lessons_lib.checks.lesson_02.step_runs import run_step


def check_chunk_beside_decode(attempt) -> None:
    case = (
        "two slots, prefill_step 2; A (prompt of 2 tokens) and B (prompt of 6) are waiting. After step 1, A is "
        "decoding; then step 2."
    )
    first, second = a_request("A", 2, max_tokens=9), a_request("B", 6)
    batch = make_batch([first, second], num_slots=2, prefill_step=2)
    run_step(attempt, batch, case)
    if (first.num_computed_tokens, second.num_computed_tokens) != (2, 0):
        raise Mistake(
            f"step 1 should compute A's prompt and none of B's; yours has computed {first.num_computed_tokens} "
            "tokens of A and "
            f"{second.num_computed_tokens} of B.",
            case=case,
            idea="One chunk per step: call `prefill_chunk` once, without a loop around it.",
        )
    run_step(attempt, batch, case)
    if len(first.output_ids) > 2:
        raise Mistake(
            f"A should get one token per step; after step 2 it has {len(first.output_ids)}.",
            case=case,
            idea="Call `decode_all(batch)` once in a step: it serves every decoding request.",
        )
    if len(first.output_ids) != 2:
        raise Mistake(
            f"A decodes while B prefills, so A should have 2 tokens after step 2. It has {len(first.output_ids)}.",
            case=case,
            idea="Decode in every step, even if a request is prefilling. Otherwise a long prompt stalls all the others."
            if second.num_computed_tokens
            else "This step computed nothing at all. No request is waiting, but A and B are in their slots: decode and "
            "prefill in every step, whether or not it admits or releases.",
        )
    if second.num_computed_tokens == 0:
        raise Mistake(
            "step 2 should compute 2 tokens of B's prompt while A decodes; yours computed none.",
            case=case,
            idea="Compute a chunk in every step, even if a request is decoding. Otherwise a new request waits until "
            "all the others are done.",
        )
    if second.num_computed_tokens != 2:
        raise Mistake(
            f"step 2 should compute 2 tokens of B's prompt; yours computed {second.num_computed_tokens}.",
            case=case,
            idea="You seem to continue until the prompt is complete. Compute one chunk per step: A waits for each "
            "of them.",
        )


def check_one_chunk_one_token(attempt) -> None:
    case = "two slots, prefill_step 8; A and B are waiting, with prompts of 3 tokens; the first step."
    batch = make_batch([a_request("A", 3), second := a_request("B", 3)], num_slots=2, prefill_step=8)
    run_step(attempt, batch, case)
    if second.num_computed_tokens:
        raise Mistake(
            f"step 1 should compute A's chunk and none of B's; yours has computed {second.num_computed_tokens} tokens "
            "of B.",
            case=case,
            idea="One chunk of one prompt per step, even if that chunk is shorter than `prefill_step`: call "
            "`prefill_chunk` once.",
        )
    case = case.replace("the first step", "A decodes in step 2, and B gets its chunk")
    run_step(attempt, batch, case)
    if len(second.output_ids) > 1:
        raise Mistake(
            f"B should have 1 token after step 2; it has {len(second.output_ids)}.",
            case=case,
            idea="B's chunk gave its first token. Did a decode pass come after the chunk? Only the requests that are "
            "decoding when the step begins get a token from it.",
        )
