"""Judges 02.5, `step`: release, admit, decode, one chunk, in this order, in every step."""

from random import Random
from types import SimpleNamespace

from lessons_lib.batching.continuous_batching import batch_generate, step
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_02.batch import StepCounter, answer_alone
from lessons_lib.checks.lesson_02.step_first import check_first_step
from lessons_lib.checks.lesson_02.step_passes import check_chunk_beside_decode, check_one_chunk_one_token
from lessons_lib.checks.lesson_02.step_slots import (
    check_all_slots_filled,
    check_end_token,
    check_late_arrival,
    check_no_barrier,
    check_order_of_admission,
    check_order_of_queue,
    check_short_queue,
    check_slot_is_refilled,
    check_slot_is_released,
    check_two_leave,
)
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.viz.words import marked


def check_step(attempt) -> None:
    check_first_step(attempt)
    check_all_slots_filled(attempt)
    check_order_of_queue(attempt)
    check_slot_is_refilled(attempt)
    check_slot_is_released(attempt)
    check_short_queue(attempt)
    check_chunk_beside_decode(attempt)
    check_no_barrier(attempt)
    check_order_of_admission(attempt)
    check_two_leave(attempt)
    check_late_arrival(attempt)
    check_one_chunk_one_token(attempt)
    check_end_token(attempt)
    _check_answers(attempt)


def _check_answers(attempt) -> None:
    rng = Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 3, 8, 9)))] for _ in range(7)]
    max_tokens_each = [rng.choice((1, 2, 5, 9)) for _ in prompts]
    model, tokenizer = tiny_model("qwen2"), SimpleNamespace(pad_token_id=0, eos_token_id=None)
    case = f"seven requests in three slots, prefill_step 4, max_new_tokens {max_tokens_each}."
    settings = dict(max_seq_len=32, batch_size=3, prefill_step=4, max_new_tokens=max_tokens_each)
    steps = StepCounter(attempt)
    outputs = call(batch_generate, model, tokenizer, prompts, case=case, step=steps.run, **settings)
    for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, outputs)):
        want = answer_alone(tuple(prompt), max_tokens)
        if answer != want:
            raise Mistake(
                f"request {name} should get {short(want)}, as it does when served alone; "
                f"it got {marked(want, answer)}.",
                case=case,
                idea="Batching changes when a token is computed, never which one. Did a request lose its slot before "
                "it finished?",
            )
    expected = StepCounter(step)
    batch_generate(model, tokenizer, prompts, step=expected.run, **settings)
    if steps.count > expected.count:
        what = f"all answers are right, but took {steps.count} steps; {expected.count} are enough."
        raise Mistake(
            what,
            case=case,
            idea="Is there a step that leaves a slot empty while a request is waiting, "
            "or one that computes no chunk while a request is prefilling?",
        )
