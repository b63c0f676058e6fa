"""The scoreboard of lesson 02 counts steps as the lesson's loop does, and says what a rule did."""

from oracle import TINY_TOKENIZER

from lessons_lib.batching import batch_generate
from lessons_lib.checks.lesson_02.scoreboard import (
    NUM_SLOTS,
    PREFILL_STEP,
    SEEDS,
    first_come,
    queue_scoreboard,
    queue_times,
    queue_workload,
)
from lessons_lib.measuring import request_times
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording import record_run


def test_it_counts_what_the_loop_does():
    lengths = [(0, prompt, min(limit, 20), 0) for _, prompt, limit, _ in queue_workload(SEEDS[0])[:12]]
    prompts, limits = [[1] * prompt for _, prompt, _, _ in lengths], [limit for _, _, limit, _ in lengths]
    sizes = dict(max_seq_len=512, batch_size=NUM_SLOTS, prefill_step=PREFILL_STEP)
    model = tiny_model(context=512)
    run = record_run(batch_generate, model, TINY_TOKENIZER, prompts, max_new_tokens=limits, **sizes)
    lengths = [(0, prompt, limit, len(output)) for (_, prompt, limit, _), output in zip(lengths, run.outputs)]
    admitted = [times.admitted for times in request_times(run.trace, in_steps=True).values()]
    assert queue_times(lengths, first_come) == admitted


def test_what_is_said():
    assert queue_scoreboard(first_come).rows[0][1:] == queue_scoreboard(first_come).rows[1][1:]
    longest_last = queue_scoreboard(lambda waiting: waiting.index(min(waiting, key=lambda r: r.max_new_tokens)))
    assert "by -" in longest_last.verdict and "waits longer than" in longest_last.verdict
    assert "IndexError: it returned 99" in queue_scoreboard(lambda waiting: 99).verdict
