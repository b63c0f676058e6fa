"""Lesson 12's player: who was in which batch slot, who uses the blocks, and each text, after every step."""

import pytest
from engine_cases import alone, an_engine, greedy, letter

from lessons_lib.recording.engine_moments import DECODE, PREFILL, Slot, Told, engine_moments


def run(trouble=None, limits=(3, 4), **config):
    """An engine with prompts of 6, 5, ... tokens, named A, B, ..., and its moments."""
    engine = an_engine(**{"max_num_seqs": 2, "max_num_batched_tokens": 8, **config})
    for n, most in enumerate(limits):
        engine.add_request([1] * (6 - n), greedy(most, ignore_eos=True), request_id=chr(65 + n))
    return engine, engine_moments(engine, trouble(engine) if trouble else {})


def names(moments, slot):
    return [each.slots[slot] and each.slots[slot].name if slot < len(each.slots) else None for each in moments]


def test_a_sequence_keeps_its_slot_from_prefill_to_its_last_token_and_the_next_takes_it():
    _, moments = run(limits=(3, 6, 2))
    assert [each.slots[0] for each in moments[:3]] == [Slot("A", PREFILL), Slot("A", DECODE), Slot("A", DECODE)]
    assert moments[0].slots[1].work == PREFILL, "the first chunk of B"
    assert names(moments, 0) == ["A"] * 3 + ["C"] * 2 + [None] * (len(moments) - 5)
    assert moments[0].waiting == ("C",) and moments[2].event == "A ended: length"
    assert max(len(each.slots) for each in moments) == 2


def test_texts_grow_to_what_each_request_gets_alone():
    _, moments = run()
    expected = "".join(map(letter, alone("qwen2", [1] * 6, 3, ignore_eos=True)))
    texts = [each.texts["A"] for each in moments]
    assert [len(told.text) for told in texts[:3]] == [1, 2, 3] and texts[-1] == Told(expected, "length")


def test_the_pool_is_used_by_those_that_hold_blocks_and_remembers_the_others():
    _, moments = run(limits=(3,), num_blocks=8, block_size=4, share_prefixes=True)
    assert moments[0].num_blocks == 8 and set(moments[0].owners.values()) == {("A",)} and not moments[0].cached
    assert not moments[-1].owners and len(moments[-1].cached) == 2, "the two full blocks"


@pytest.mark.parametrize("how", ["aborted", "RuntimeError: no memory"])
def test_trouble_frees_the_slot_for_the_next_and_is_told(how):
    def trouble(engine):
        def fail(*_):
            engine.runner.forward = forward
            raise RuntimeError("no memory")

        def act():
            if how == "aborted":
                engine.abort("A")
            else:
                engine.runner.forward = fail
            return "trouble"

        forward = engine.runner.forward
        return {3: act}

    _, moments = run(trouble, limits=(9, 9, 2))
    ended = "AB" if "Error" in how else "A"
    assert [name for name, told in moments[2].texts.items() if told.end == how] == list(ended)
    assert moments[2].event == ("trouble; A, B ended: RuntimeError: no memory" if "Error" in how else "trouble")
    assert names(moments, 0)[2:5] == (["C", "C", None] if how == "aborted" else [None, "C", "C"])
