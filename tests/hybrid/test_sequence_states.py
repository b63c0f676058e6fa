"""Slots, checkpoints and rules of `SequenceStates`, against a plain model: a state is the list of the tokens it saw."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.hybrid import sequence_states
from lessons_lib.hybrid.sequence_states import SequenceStates
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler

KEY = (0, "recurrent", 0)
SIZE = 4


def states_of(num_sequences=2, num_checkpoints=0):
    states = SequenceStates(SIZE)
    states.tensors[KEY] = torch.zeros(1, 1, dtype=torch.int64)
    states.resize(num_sequences, num_checkpoints)
    return states


def sequence_of(token_ids, name="s", **fields):
    sequence = Sequence(name, list(token_ids), 8, blocks=[0], **fields)
    hash_full_blocks(sequence, SIZE)
    return sequence


def digest(token_ids):
    """The state after some tokens: it depends on each of them, and on their order."""
    value = 7
    for token in token_ids:
        value = (value * 31 + token + 1) % 1_000_003
    return value


class Device:
    """Runs steps as a runner with one stateful layer would, and checks that it starts from the right state."""

    def __init__(self, states):
        self.states = states

    def run(self, output):
        states, scheduled = self.states, output.num_scheduled_tokens
        slots = {sequence: states.slot_of(sequence) for sequence in scheduled}
        kept = states.new_checkpoints(scheduled)
        for sequence, count in scheduled.items():
            start, slot, tensor = sequence.num_computed_tokens, slots[sequence], states.tensors[KEY]
            tokens = sequence.token_ids
            if start:
                assert tensor[slot] == digest(tokens[:start]), f"{sequence.id} starts at {start} from a wrong state"
            for at in range(start, start + count + 1):
                tensor[slot] = digest(tokens[:at])
                if at in kept.get(sequence, {}):
                    tensor[kept[sequence][at]] = tensor[slot]
        states.note_computed(scheduled)


@pytest.mark.parametrize("decodes_differ", [False, True])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=8),
    num_blocks=st.integers(10, 24), max_num_seqs=st.integers(1, 4), extra=st.integers(2, 9),
    num_checkpoints=st.integers(0, 6), swap=st.sampled_from([0, 3, 12]),
)  # fmt: skip
def test_every_sequence_starts_from_the_state_after_its_own_tokens(
    decodes_differ, lengths, num_blocks, max_num_seqs, extra, num_checkpoints, swap
):
    states = states_of(max_num_seqs, num_checkpoints)
    states.decodes_differ = decodes_differ
    scheduler = SwappingScheduler(
        PrefixCache(num_blocks, SIZE), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + extra,
        states=states, swap_space=BlockPool(swap, SIZE),
    )  # fmt: skip
    device = Device(states)
    for index, (prompt, new, family) in enumerate(lengths):
        scheduler.add(Sequence(f"{index}", [family * 1000 + place // 9 for place in range(prompt)], new))
    for _ in range(500):
        if not scheduler.has_unfinished():
            break
        output = scheduler.schedule()
        for sequence, count in output.num_scheduled_tokens.items():
            start, prompt = sequence.num_computed_tokens, len(sequence.prompt_ids)
            if decodes_differ and start < prompt:
                assert not (count == 1 and start), "a token of a prompt is computed alone"
                assert start + count != prompt - 1, "a token of a prompt is left over"
        device.run(output)
        scheduler.update(output, [3] * len(output.num_scheduled_tokens))
        slots = [held.slot for held in states.held.values()] + [*states.checkpoints.values(), *states.free]
        assert sorted(slots) == list(range(1, states.num_slots)), "a slot is lost, or has two owners"
        assert len(states.checkpoints) <= num_checkpoints
    assert not scheduler.has_unfinished()


def test_a_prefix_is_usable_up_to_its_last_checkpoint():
    states = states_of(num_checkpoints=3)
    sequence = sequence_of(range(20))
    sequence.num_computed_tokens = 0
    states._new_checkpoint(sequence, 8)
    assert [len(states.usable(sequence, [*range(count)])) for count in range(6)] == [0, 0, 2, 2, 2, 2]
    other = sequence_of([*range(9), 99, 98, 97, 96], name="other")
    assert states.usable(other, [5, 6]) == [5, 6] and states.usable(sequence_of([1] * 12), [5, 6]) == []


def test_where_a_prompt_branches_off_the_next_one_finds_a_checkpoint():
    states = states_of(num_checkpoints=8)
    first = sequence_of(range(40), name="first")
    assert states.cuts(first, 40) == [36]
    branch = sequence_of([*range(16), *range(100, 119)], name="branch")
    assert states.usable(branch, [0, 1, 2, 3]) == []
    assert states.cuts(branch, 35) == [16, 32]


def test_a_long_prompt_keeps_a_checkpoint_at_each_stride(monkeypatch):
    monkeypatch.setattr(sequence_states, "STRIDE", 10)
    assert states_of(num_checkpoints=8).cuts(sequence_of(range(40)), 27) == [12, 24]


def test_of_a_completion_only_the_last_checkpoint_is_kept():
    states = states_of(num_checkpoints=8)
    sequence = sequence_of(range(6))
    sequence.output_ids = list(range(6, 30))
    hash_full_blocks(sequence, SIZE)
    for at in (4, 8, 12, 16):
        states._new_checkpoint(sequence, at)
    hashes = sequence.block_hashes
    assert list(states.checkpoints) == [hashes[0], hashes[3]]


def test_the_least_recently_used_checkpoint_makes_room():
    states = states_of(num_checkpoints=2)
    first, second, third = (sequence_of([name] * 9, name=str(name)) for name in range(3))
    states._new_checkpoint(first, 8)
    states._new_checkpoint(second, 8)
    first.num_computed_tokens = 8
    states.slot_of(first)  # starts from its checkpoint
    states._new_checkpoint(third, 8)
    assert set(states.checkpoints) == {first.block_hashes[1], third.block_hashes[1]}


def test_a_sequence_that_failed_leaves_no_checkpoint():
    states = states_of(num_checkpoints=2)
    scheduler = PreemptiveScheduler(PrefixCache(8, SIZE), states=states)
    sequence = Sequence("s", list(range(9)), 4)
    scheduler.add(sequence)
    Device(states).run(scheduler.schedule())
    assert states.checkpoints
    sequence.finish_reason = "error"
    scheduler.discard(sequence)
    assert not states.checkpoints and states.usable(sequence, [0, 1]) == []


def test_a_swapped_out_state_waits_on_the_host_if_slots_run_out():
    states = states_of(num_sequences=1)
    sequence, other = sequence_of(range(9)), sequence_of(range(50, 60), name="other")
    sequence.num_computed_tokens = 0
    states.tensors[KEY][states.slot_of(sequence)] = 41
    states.note_computed({sequence: 9})
    sequence.num_computed_tokens, sequence.blocks, sequence.swapped = 9, [], [3]
    states.tensors[KEY][states.slot_of(other)] = 42
    other.blocks, sequence.blocks, sequence.swapped = [], [1], []
    assert states.tensors[KEY][states.slot_of(sequence)] == 41


def test_a_step_makes_no_more_checkpoints_than_there_are_slots():
    """The one that is copied now, before the pass, would be overwritten by one that the pass itself copies."""
    states = states_of(num_checkpoints=1)
    first, second = sequence_of(range(9), name="first"), sequence_of(range(50, 60), name="second")
    states.slot_of(first), states.slot_of(second)
    states.note_computed({second: 8})
    second.num_computed_tokens = 8
    assert [*states.new_checkpoints({first: 9, second: 1})] == [first]
    assert list(states.checkpoints) == [first.block_hashes[1]]
