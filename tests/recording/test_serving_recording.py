"""`record_run`: the outputs of the loop itself, a trace of what it did, and everything as before once it is done."""

from collections import deque
from functools import partial

import pytest
from oracle import TINY_TOKENIZER, ragged_requests

from lessons_lib.attention.packing import copied_tokens
from lessons_lib.batching.continuous_batching import SlotBatch, batch_generate, serve
from lessons_lib.batching.greedy import generate_one_by_one, greedy_without_cache
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.batching.ragged_batching import RaggedBatch, loop_forward, ragged_generate, ragged_step
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.models.configuration import cache_bytes_per_token
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.recording.packed_steps import PackedStepRecorder
from lessons_lib.recording.serving import record_run
from lessons_lib.recording.slot_steps import recorded_serve

LOOPS = {
    "alone": (generate_one_by_one, {}),
    "alone, no cache": (generate_one_by_one, {"greedy": greedy_without_cache}),
    "static": (static_generate, {"batch_size": 3}),
    "continuous": (batch_generate, {"batch_size": 3, "prefill_step": 4}),
    "packed": (packed_generate, {}),
    "ragged": (ragged_generate, {"max_num_seqs": 3}),
    "paged": (paged_generate, {"max_num_seqs": 3, "block_size": 4}),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_recorded_run_has_the_outputs_of_the_loop_and_leaves_the_model_as_it_was(loop):
    serve, options = LOOPS[loop]
    model = tiny_model("qwen2", seed=3)
    prompts, max_tokens_each = ragged_requests(9, seed=2)
    run = record_run(serve, model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each, **options)
    assert run.outputs == serve(model, TINY_TOKENIZER, prompts, max_new_tokens=max_tokens_each, **options)
    assert not model._forward_hooks and not model._forward_pre_hooks
    trace = run.trace
    assert set(trace.requests) == set(map(str, range(9)))
    # Every token but the last of each answer goes through the model once.
    assert trace.tokens_useful == sum(len(ids) + len(answer) - 1 for ids, answer in zip(prompts, run.outputs))
    assert all(0 <= step.cache_used <= step.cache_reserved for step in trace.steps)
    assert len(run.packed) == (len(trace.steps) if loop in ("ragged", "paged") else 0)
    if loop == "ragged":
        joins = [(step.joined, step.left, step.admitted) for step in run.packed]
        assert joins[0][0] == ("0", "1", "2") and run.packed[0].waiting == tuple("5678")
        assert [name for joined, _, _ in joins[1:] for name in joined] == [
            name for *_, admitted in joins for name in admitted
        ]
        assert sorted(name for _, left, _ in joins for name in left) == sorted(map(str, range(9)))
    assert len(run.accesses) == (len(trace.steps) if loop == "paged" else 0)


def test_names_are_those_of_the_trace_and_are_checked():
    model = tiny_model("qwen2", seed=3)
    run = record_run(
        static_generate, model, TINY_TOKENIZER, [[5], [6], [7]], max_new_tokens=2, batch_size=2, names="ABC"
    )
    assert run.trace.requests == ("A", "B", "C") and run.trace.steps[0].waiting == ("C",)
    with pytest.raises(BadRequest, match="2 names for 3 prompts"):
        record_run(static_generate, model, TINY_TOKENIZER, [[5], [6], [7]], max_new_tokens=2, names="AB")


def test_a_function_that_is_no_loop_is_refused():
    with pytest.raises(ValueError, match="record_run can't record 'ragged_step'; it records generate_one_by_one, "):
        record_run(ragged_step, tiny_model(), TINY_TOKENIZER, [[5]])


def test_a_step_of_slots_names_idle_prefilling_and_decoding_slots():
    model = tiny_model("qwen2", seed=3)
    requests = deque([Request("A", [5, 6, 7], 3), Request("B", [8] * 6, 3)])
    first, second, *_ = recorded_serve(SlotBatch(model, SlotCache(model, 3, 32), 4, requests), serve).steps
    assert [(row.request, row.phase, row.computed, row.useful) for row in first.rows] == [
        ("A", "prefill", 3, 3),
        ("B", "prefill", 0, 0),
        (None, "idle", 0, 0),
    ]
    # The decode pass computes a position in every slot; then B's first chunk is computed.
    assert [(row.request, row.phase, row.computed, row.useful) for row in second.rows] == [
        ("A", "decode", 1, 1),
        ("B", "prefill", 5, 4),
        (None, "idle", 1, 0),
    ]
    assert (first.forward_calls, second.forward_calls, second.cache_reserved, second.cache_used) == (1, 2, 96, 8)


def test_copies_are_counted_for_the_way_a_step_was_computed():
    model = tiny_model("qwen2", seed=3)
    token_bytes = cache_bytes_per_token(model.config)
    for forward_step, copied in (
        (ragged_step, lambda packed: copied_tokens(packed)),
        (partial(ragged_step, forward=loop_forward), lambda packed: sum(packed.cached_lens)),
    ):
        batch, recorder = RaggedBatch(model, 2), PackedStepRecorder(forward_step)
        packed_forward = batch.packed_forward
        batch.submit(Request("A", [5, 6, 7], 4))
        while batch.running:
            recorder(batch)
        assert batch.packed_forward is packed_forward
        expected = [copied(step.packed) * token_bytes for step in recorder.steps]
        assert [step.bytes_copied for step in recorder.trace.steps] == expected
