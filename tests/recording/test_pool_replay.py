"""The cache of a recorded run counted in blocks, and its pool step by step."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.recording.pool_states import replay
from lessons_lib.recording.serving import RecordedRun, counted_in_blocks
from lessons_lib.recording.trace import RowWork, Step, Trace, tokens_held


def trace_of(held):
    """A trace in which these requests hold so many tokens after each step."""
    before, steps = {}, []
    for now in held:
        new = {name: tokens - before.get(name, 0) for name, tokens in now.items()}
        rows = [RowWork(name, "decode", count, count) for name, count in new.items()]
        steps.append(Step(tuple(rows) or (RowWork(None, "idle", 0, 0),), 0.0, (), 1, cache_reserved=0, cache_used=0))
        before = now
    return Trace(steps)


@st.composite
def runs(draw):
    """Requests that come, grow and leave, up to four at a time."""
    held, running, number = [], {}, 0
    for _ in range(draw(st.integers(0, 15))):
        running = {name: tokens for name, tokens in running.items() if draw(st.integers(0, 3))}
        running = {name: tokens + draw(st.integers(0, 3)) for name, tokens in running.items()}
        while len(running) < 4 and draw(st.booleans()):
            running[f"r{number}"] = draw(st.integers(0, 9))
            number += 1
        held.append(dict(running))
    return held


@settings(max_examples=30)
@given(held=runs())
def test_a_trace_says_what_each_request_held(held):
    assert tokens_held(trace_of(held)) == held


def test_the_ledger_s_row_counts_blocks():
    result = counted_in_blocks(RecordedRun([[1]], trace_of([{"A": 17}, {"A": 18, "B": 1}])), 16)
    assert [(step.cache_reserved, step.cache_used) for step in result.trace.steps] == [(32, 17), (48, 19)]
    assert result.outputs == [[1]]


@settings(max_examples=30)
@given(held=runs(), block_size=st.integers(1, 8))
def test_a_replay_shows_every_change_of_the_pool(held, block_size):
    states = replay(trace_of(held), BlockPool(200, block_size))
    assert states[0].free_queue == tuple(range(200)) and not states[0].tables
    for before, after in pairwise(states):
        moved = set(before.free_queue) ^ set(after.free_queue)
        assert moved == set(after.changed)
        assert bool(moved) == ("every new token fits" not in after.event)
    for state in states:
        in_tables = [block for table in state.tables for block in table.blocks]
        assert sorted([*in_tables, *state.free_queue]) == list(range(200))
        assert all(len(table.blocks) == blocks_for(table.num_tokens, block_size) for table in state.tables)
    if held:
        assert {table.request: table.num_tokens for table in states[-1].tables} == {
            name: tokens for name, tokens in held[-1].items() if tokens
        }


def test_a_replay_in_words():
    states = replay(trace_of([{"A": 5}, {"A": 6}, {"A": 9, "B": 1}, {"B": 2}]), BlockPool(8, 4))
    assert [state.event for state in states] == [
        "The pool is empty; all blocks are free.",
        "Step 1: A, now 5 tokens, arrives and takes blocks 0, 1.",
        "Step 2: every new token fits into a block that its request has.",
        "Step 3: A, now 9 tokens, grows and takes block 2.",
        "Step 3: B, now 1 token, arrives and takes block 3.",
        "Step 4: A has finished and frees blocks 0 to 2.",
    ]
    assert states[-1].free_queue == (4, 5, 6, 7, 2, 1, 0)
