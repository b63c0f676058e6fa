"""Which request was in which batch slot, and who uses the blocks: against what the engine's steps say."""

import pytest
from engine_cases import an_engine, greedy

from lessons_lib.recording.engine_lanes import DECODE, PREFILL, STALLED, Lane, LaneRecorder, pool_use


def recorded(**config):
    engine = an_engine(**config)
    recorder = LaneRecorder(engine)
    engine.core.observers.append(recorder)
    return engine, recorder


def test_each_step_has_as_many_lanes_at_work_as_it_had_sequences():
    engine, recorder = recorded(max_num_seqs=3, max_num_batched_tokens=16)
    counts = []
    engine.core.observers.append(lambda step, requests: counts.append(len(step.output.num_scheduled_tokens)))
    engine.generate(
        [list(range(n)) for n in (5, 30, 2, 9, 17)], [greedy(3 + n, ignore_eos=True) for n in (5, 30, 2, 9, 17)]
    )
    at_work = [sum(lane is not None and lane.work != STALLED for lane in step) for step in recorder.steps]
    assert at_work == counts[-60:]
    assert max(len(step) for step in recorder.steps) == 3, "a lane is taken again"


def test_a_sequence_keeps_its_lane_from_prefill_to_its_last_token_and_the_next_takes_it():
    engine, recorder = recorded(max_num_seqs=2, max_num_batched_tokens=8)
    engine.add_request([1] * 12, greedy(3, ignore_eos=True), request_id="long")
    engine.add_request([2] * 3, greedy(4, ignore_eos=True), request_id="short")
    engine.add_request([3] * 2, greedy(2, ignore_eos=True), request_id="next")
    while engine.has_unfinished():
        engine.step()
    first, second = ([step[lane] if lane < len(step) else None for step in recorder.steps] for lane in (0, 1))
    assert first[:4] == [Lane("long", PREFILL)] * 2 + [Lane("long", DECODE)] * 2
    assert [lane and lane.name for lane in second if lane][:4] == ["short"] * 4
    assert "next" in {lane.name for step in recorder.steps for lane in step if lane}
    assert recorder.steps[-1].count(None) >= 1


@pytest.mark.parametrize("how", ["abort", "a failed step"])
def test_the_lane_of_a_request_that_ends_between_two_recorded_steps_is_free(how):
    engine, recorder = recorded(max_num_seqs=2)
    for name in "AB":
        engine.add_request([1, 2, 3], greedy(20, ignore_eos=True), request_id=name)
    engine.step()
    if how == "abort":
        engine.abort("A")
    else:
        forward, engine.runner.forward = engine.runner.forward, lambda plan: 1 / 0
        engine.step()
        engine.runner.forward = forward
    for name in "CD":
        engine.add_request([1, 2, 3], greedy(20, ignore_eos=True), request_id=name)
    engine.step()
    names = [lane and lane.name for lane in recorder.steps[-1]]
    assert names == (["C", "B"] if how == "abort" else ["C", "D"])


def test_it_keeps_the_last_steps_only_and_sees_those_that_ran_before_it_came():
    engine = an_engine(max_num_seqs=2)
    engine.add_request([1, 2], greedy(30, ignore_eos=True), request_id="A")
    engine.step()
    recorder = LaneRecorder(engine, most_steps=4)
    engine.core.observers.append(recorder)
    for _ in range(9):
        engine.step()
    assert list(recorder.steps) == [(Lane("A", DECODE),)] * 4


def test_the_pool_is_used_by_those_that_hold_blocks_and_remembers_the_others():
    engine, _ = recorded(num_blocks=8, block_size=4, share_prefixes=True)
    engine.add_request([1] * 9, greedy(2, ignore_eos=True), request_id="A")
    engine.step()
    use = pool_use(engine)
    assert use.num_blocks == 8 and set(use.owners) == engine.scheduler.pool.used and not use.cached
    assert set(use.owners.values()) == {("A",)}
    engine.step()
    use = pool_use(engine)
    assert not use.owners and len(use.cached) == 2, "the two full blocks"
