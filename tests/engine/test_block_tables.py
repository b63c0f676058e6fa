"""The block tables that a step reads are those of the scheduler, though only what may have changed is looked at."""

import random

import pytest
from engine_cases import run_out

from lessons_lib.engine.input_batch import BlockTables
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.tiny_models import VOCAB_SIZE
from lessons_lib.scheduling.sequence import Sequence
from tools.interrupts import DEPTHS, FLOORED, make_engine


def serve_at_random(depth, seed):
    """Requests with common beginnings, forks, swaps and preemptions, some of them aborted. Returns the scheduler."""
    rng = random.Random(seed)
    engine = make_engine(depth, num_blocks=rng.randint(16, 24), num_swap_blocks=rng.choice([0, 8]))
    beginnings = [[rng.randrange(VOCAB_SIZE) for _ in range(9)] for _ in range(2)]
    for number in range(14):
        prompt = rng.choice(beginnings)[: rng.randint(1, 9)] + [rng.randrange(VOCAB_SIZE)] * rng.randint(0, 5)
        params = SamplingParams(max_tokens=rng.randint(1, 16), n=rng.randint(1, 3), seed=number, ignore_eos=True)
        engine.add_request(prompt, params, request_id=str(number))
        for _ in range(rng.randint(0, 6)):
            engine.step()
        engine.abort(str(rng.randrange(100)))
    run_out(engine)
    engine.close()
    return engine.scheduler


@pytest.mark.parametrize("depth", DEPTHS)
def test_each_row_is_the_whole_table_of_its_sequence(depth, monkeypatch):
    rows_of, seen = BlockTables.rows, []

    def checked(tables, sequences, starts):
        rows = rows_of(tables, sequences, starts)
        for row, sequence in zip(rows, sequences, strict=True):
            held = tables.array[row, : len(sequence.blocks)].tolist()
            seen.append(len(held))
            assert held == sequence.blocks, f"{sequence.id}: {held}, not {sequence.blocks}"
        return rows

    monkeypatch.setattr(BlockTables, "rows", checked)
    schedulers = [serve_at_random(depth, seed) for seed in range(6)]
    assert len(seen) > 500 and max(seen) > 4
    assert sum(scheduler.num_preempted for scheduler in schedulers) > 5
    assert depth == FLOORED or sum(scheduler.num_swapped for scheduler in schedulers) > 2


def test_a_long_table_is_not_looked_at():
    class Blocks(list):
        """Notes how many of its elements were read."""

        read = 0

        def __getitem__(self, index):
            found = super().__getitem__(index)
            self.read += len(found) if isinstance(index, slice) else 1
            return found

        def __ne__(self, other):
            raise AssertionError("the whole table was compared")

    tables, sequence = BlockTables(), Sequence("A", [1], 9)
    sequence.blocks = blocks = Blocks(range(5000))
    (row,) = tables.rows([sequence], [4999])
    blocks.read = 0
    for block in range(5000, 5100):
        blocks.append(block)
        assert tables.rows([sequence], [block]) == [row]
    assert blocks.read <= 300 and tables.array[row, :5100].tolist() == list(range(5100))
