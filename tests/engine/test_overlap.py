"""Steps that are started before the tokens of the one before are known."""

from types import SimpleNamespace

import pytest
import torch
from overlap_cases import BLOCK, answers, mover, ragged, sharing_scheduler

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler


class Counting:
    """A runner without a model: the token after n tokens is n. It writes down what happened in which order."""

    def __init__(self):
        self.log, self.launched = [], 0

    def forward(self, scheduler_output):
        self.log.append(f"launch {self.launched}")
        self.launched += 1
        scheduled = scheduler_output.num_scheduled_tokens.items()
        after = torch.tensor([sequence.num_computed_tokens + count for sequence, count in scheduled])
        return torch.nn.functional.one_hot(after)

    def keep_tokens(self, scheduler_output, tokens):
        number = self.launched - 1
        return SimpleNamespace(wait=lambda: self.log.append(f"tokens {number}") or tokens.tolist())


def log_of(*sequences, scheduler=None):
    """What happens in which order while these are served with a step in flight."""
    scheduler = scheduler or Scheduler(BlockPool(200, BLOCK), max_num_seqs=5, max_num_batched_tokens=24)
    runner = Counting()
    serve_greedily(runner, scheduler, sequences, depth=1)
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    return runner.log


@pytest.mark.parametrize("num_blocks, swap_blocks", [(200, 0), (20, 0), (20, 10)])
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_one_step_after_the_other(seed, num_blocks, swap_blocks):
    model = tiny_model("qwen2")
    runner = GPUModelRunner(model, num_blocks, BLOCK, max_num_seqs=5, compiled=False, capture=rerun)
    scheduler = sharing_scheduler(num_blocks, swap_blocks=swap_blocks)
    assert serve_greedily(runner, scheduler, ragged(seed), 1, mover(runner, scheduler)) == answers(model, ragged(seed))
    audit(scheduler)
    assert not scheduler.pool.ref_count and bool(scheduler.num_preempted) == (num_blocks == 20)
    assert len(scheduler.pool.free_queue) == num_blocks
    runner.close()


def test_the_next_step_starts_before_the_tokens_of_the_last_one_are_asked_for():
    """And an answer that ends at its limit costs no further step."""
    log = log_of(Sequence("A", range(3), 4))
    assert log == ["launch 0", "launch 1", "tokens 0", "launch 2", "tokens 1", "launch 3", "tokens 2", "tokens 3"]


def test_the_token_after_a_stop_token_is_thrown_away():
    sequence = Sequence("A", range(3), 10, frozenset({4}))
    assert "launch 2" in log_of(sequence), "that it had ended could not be known yet"
    assert sequence.output_ids == [3, 4] and sequence.finish_reason == "stop"


def test_blocks_are_hashed_once_their_tokens_are_known():
    sequences = [Sequence(str(n), range(n, n + 5), 18) for n in range(3)]
    scheduler = sharing_scheduler(100)
    log_of(*sequences, scheduler=scheduler)
    whole = [Sequence("whole", [*sequence.prompt_ids, *sequence.output_ids[:-1]], 1) for sequence in sequences]
    assert set(scheduler.pool.hash_to_block) == {hash for each in whole for hash in hash_full_blocks(each, BLOCK)}


def test_tokens_of_a_victim_are_waited_for():
    """Admission that takes the last blocks, so that a sequence with a token in flight is preempted."""
    scheduler = sharing_scheduler(6, admission=lambda scheduler, sequence: True)
    sequences = [Sequence("A", range(11), 8), Sequence("B", range(50, 62), 8)]
    log_of(*sequences, scheduler=scheduler)
    assert scheduler.num_preempted
    assert [each.output_ids for each in sequences] == [list(range(11, 19)), list(range(12, 20))]
