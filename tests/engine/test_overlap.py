"""Steps that are started before the tokens of the one before are known."""

from types import SimpleNamespace

import torch
from overlap_cases import BLOCK, sharing_scheduler

from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
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


def log_of(sequence):
    """What happens in which order while it is served with a step in flight."""
    scheduler, runner = Scheduler(BlockPool(9, 4), max_num_seqs=5, max_num_batched_tokens=24), Counting()
    serve_greedily(runner, scheduler, [sequence], depth=1)
    assert len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    return runner.log


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
    serve_greedily(Counting(), scheduler, sequences, depth=1)
    whole = [Sequence("whole", [*sequence.prompt_ids, *sequence.output_ids[:-1]], 1) for sequence in sequences]
    assert set(scheduler.pool.hash_to_block) == {hash for each in whole for hash in hash_full_blocks(each, BLOCK)}
