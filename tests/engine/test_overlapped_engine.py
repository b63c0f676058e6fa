"""The overlapped engine: the answers of LLMEngine, whatever happens, one step late; nothing is left behind."""

import random

import engine_cases
import pytest
from engine_cases import alone, check_that_nothing_is_left, greedy

from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit

ROOMY = dict(num_blocks=150, max_num_seqs=6, max_num_batched_tokens=24, block_size=4)
CONFIGS = {"roomy": ROOMY, "swapping": {**ROOMY, "num_blocks": 16, "num_swap_blocks": 20}}


def run_out(engine):
    """See `engine_cases.run_out`; nothing is left behind."""
    outputs = engine_cases.run_out(engine)
    check_that_nothing_is_left(engine)
    assert not engine.core.in_flight
    return outputs


def an_engine(**config):
    return engine_cases.engine_of_kind("overlaps", **{**ROOMY, **config})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", ["roomy", "swapping"])
@pytest.mark.parametrize("engine_kind", engine_cases.KINDS)
def test_aborts_at_any_time_disturb_nobody(engine_kind, config, seed):
    """Of requests that wait, run, were preempted or swapped out, or have forks."""
    engine, rng = engine_cases.engine_of_kind(engine_kind, **CONFIGS[config]), random.Random(seed)
    for n in range(9):
        engine.add_request([n + 1, 2 * n + 3, 5] * (n % 4 + 1), greedy(14, ignore_eos=True, n=1 + (n % 3 == 0)))
    outputs, aborted = {}, {}
    while engine.has_unfinished():
        if engine.requests and rng.random() < 0.4:
            name = rng.choice(list(engine.requests))
            so_far = [list(completion.output_ids) for completion in engine.requests[name].completions]
            aborted[name] = engine.abort(name)
            assert all(own.finish_reason in ("abort", "length") for own in aborted[name].completions)
            if engine_kind == "waits":
                assert [own.token_ids for own in aborted[name].completions] == so_far
            assert engine.abort(name) is None, "the second time it is not there"
            audit(engine.scheduler)
        outputs |= {output.request_id: output for output in engine.step()}
        audit(engine.scheduler)
    outputs |= run_out(engine)
    assert len(aborted) > 1 and not aborted.keys() & outputs.keys() and len(aborted) + len(outputs) == 9
    for output in (outputs | aborted).values():
        expected = alone("qwen2", output.prompt_ids, 14, ignore_eos=True)
        for own in output.completions:
            cut = len(own.token_ids) if output.request_id in aborted else 14
            assert own.token_ids == expected[:cut] and output.error is None


@pytest.mark.parametrize("params", [greedy(9, logprobs=1), SamplingParams(max_tokens=9, n=2, temperature=1.0, seed=3)])
def test_steps_with_log_probabilities_and_draws_overlap(params):
    engine, kinds = an_engine(max_num_seqs=2), []
    core, schedule = engine.core, engine.scheduler.schedule
    engine.scheduler.schedule = lambda: kinds.append("overlapped" if core.in_flight else "alone") or schedule()
    engine.add_request([1, 2], greedy(6, ignore_eos=True))
    engine.add_request([1, 2], greedy(4, ignore_eos=True))
    engine.add_request([5, 6, 7], params)  # it waits for a slot
    run_out(engine)
    assert kinds == ["alone", *["overlapped"] * (len(kinds) - 1)]
