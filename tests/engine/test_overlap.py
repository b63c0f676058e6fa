"""Steps that are started before the tokens of the one before are known."""

import pytest
from overlap_cases import BLOCK, answers, mover, ragged, sharing_scheduler

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.overlap import OverlappedSteps, serve_overlapped
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import hash_full_blocks
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import Scheduler
from lessons_lib.scheduling.sequence import Sequence


class Counting:
    """A runner without a model: the token after n tokens is n. It writes down what happened in which order."""

    def __init__(self):
        self.log = []

    def launch(self, scheduler_output):
        number = sum(entry.startswith("launch") for entry in self.log)
        self.log.append(f"launch {number}")
        tokens = [
            sequence.num_computed_tokens + count for sequence, count in scheduler_output.num_scheduled_tokens.items()
        ]
        return Arriving(self.log, number, tokens)


class Arriving:
    def __init__(self, log, number, arriving):
        self.log, self.number, self.arriving = log, number, arriving

    def wait(self):
        self.log.append(f"tokens {self.number}")
        return self.arriving


def counting_steps(*sequences, num_blocks=200, scheduler=None):
    scheduler = scheduler or Scheduler(BlockPool(num_blocks, BLOCK), max_num_seqs=5, max_num_batched_tokens=24)
    for sequence in sequences:
        scheduler.add(sequence)
    return OverlappedSteps(scheduler, Counting())


def run(steps):
    finished = []
    while steps.has_unfinished():
        finished += steps.step()
    return finished


@pytest.mark.parametrize("kind", ["plain", "sharing", "tight", "tight, swapping"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_one_step_after_the_other(seed, kind):
    model = tiny_model("qwen2")
    expected = answers(model, ragged(seed))
    num_blocks = 20 if "tight" in kind else 200
    runner = GPUModelRunner(model, num_blocks, BLOCK, max_num_seqs=5, compiled=False, capture=rerun)
    sequences = ragged(seed)
    if kind == "plain":
        scheduler = Scheduler(BlockPool(num_blocks, BLOCK), max_num_seqs=5, max_num_batched_tokens=24)
        assert serve_overlapped(runner, scheduler, sequences) == expected
    else:
        scheduler = sharing_scheduler(num_blocks, swap_blocks=10 if "swapping" in kind else 0)
        assert serve_overlapped(runner, scheduler, sequences, mover(runner, scheduler)) == expected
        audit(scheduler)
        assert not scheduler.pool.ref_count
    assert len(scheduler.pool.free_queue) == num_blocks
    runner.close()


def test_the_tight_pools_above_do_preempt():
    preempted = 0
    for seed in range(4):
        scheduler = sharing_scheduler(20)
        serve_overlapped(Counting(), scheduler, ragged(seed, stops=0))
        preempted += scheduler.num_preempted
    assert preempted


def test_the_next_step_starts_before_the_tokens_of_the_last_one_are_asked_for():
    steps = counting_steps(Sequence("A", range(3), 4))
    run(steps)
    assert steps.runner.log == [
        "launch 0",
        "launch 1",
        "tokens 0",
        "launch 2",
        "tokens 1",
        "launch 3",
        "tokens 2",
        "tokens 3",
    ]


def test_an_answer_that_ends_at_its_cap_costs_no_step_more():
    sequence = Sequence("A", range(3), 4)
    steps = counting_steps(sequence)
    assert run(steps) == [sequence] and sequence.output_ids == [3, 4, 5, 6] and sequence.finish_reason == "length"
    assert steps.runner.log.count("launch 3") == 1 and "launch 4" not in steps.runner.log


def test_the_token_after_a_stop_token_is_thrown_away():
    sequence = Sequence("A", range(3), 10, frozenset({4}))
    steps = counting_steps(sequence)
    assert run(steps) == [sequence] and sequence.output_ids == [3, 4] and sequence.finish_reason == "stop"
    assert "launch 2" in steps.runner.log, "that it had ended could not be known yet"
    assert len(steps.scheduler.pool.free_queue) == 200


def test_an_immediate_end_keeps_its_token():
    sequence = Sequence("A", range(3), 1)
    assert run(counting_steps(sequence)) == [sequence] and sequence.output_ids == [3]


def test_blocks_are_called_after_tokens_that_are_known():
    sequences = [Sequence(str(n), range(n, n + 5), 18) for n in range(3)]
    steps = counting_steps(*sequences, scheduler=sharing_scheduler(100))
    run(steps)
    whole = [Sequence("whole", [*sequence.prompt_ids, *sequence.output_ids[:-1]], 1) for sequence in sequences]
    assert set(steps.scheduler.pool.hash_to_block) == {
        name for sequence in whole for name in hash_full_blocks(sequence, BLOCK)
    }


def test_where_blocks_may_run_out_the_tokens_are_waited_for_first():
    steps = counting_steps(Sequence("A", range(3), 4), num_blocks=3)
    run(steps)
    assert steps.runner.log[:4] == ["launch 0", "tokens 0", "launch 1", "tokens 1"]


def test_who_has_tokens_under_way_is_never_preempted():
    """Admission that takes the last blocks, and a look at the pool that misses it."""
    scheduler = sharing_scheduler(6, admission=lambda scheduler, sequence: True)
    steps = counting_steps(Sequence("A", range(11), 8), scheduler=scheduler)
    steps.may_lack_blocks = lambda: False
    steps.step()
    scheduler.add(Sequence("B", range(50, 62), 8))
    with pytest.raises(RuntimeError, match="'B'|'A'"):
        run(steps)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_aborted_sequence_gets_nothing_more(after):
    aborted, other = Sequence("A", range(3), 3 if after == 3 else 9), Sequence("B", range(5), 9)
    steps = counting_steps(aborted, other)
    for _ in range(after):
        steps.step()
    steps.remove(aborted)
    aborted.finish_reason = "abort"
    known = list(aborted.output_ids)
    assert known == [3, 4, 5][: after - 1]
    assert run(steps) == [other] and aborted.output_ids == known
    assert len(steps.scheduler.pool.free_queue) == 200


def test_an_error_at_the_start_of_a_step_leaves_the_one_before():
    sequence = Sequence("A", range(3), 4)
    steps = counting_steps(sequence)
    steps.step()
    launch, steps.runner.launch = steps.runner.launch, None
    with pytest.raises(TypeError):
        steps.step()
    steps.runner.launch = launch
    assert run(steps) == [sequence] and sequence.output_ids == [3, 4, 5, 6]
