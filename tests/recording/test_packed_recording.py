"""The text form of one step of a ragged batch: who is in the row, and the mask of the pass in characters."""

from lessons_lib.attention.packing import pack
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.packed_steps import PackedStep, packed_text
from lessons_lib.recording.serving import record_run


class NoTokenizer:
    eos_token_id = None


def test_a_prefill_beside_decodes():
    packed = pack([[7], [8], [1, 2, 3]], [3, 2, 0])
    step = PackedStep(("A", "B", "C"), packed, (4, 5, 6), joined=("C",), left=("B",), waiting=("D", "E"))
    assert packed_text(step).splitlines() == [
        "A decode: 1 new after 3 cached · B decode: 1 new after 2 cached · C prefill: 3 new after 0 cached",
        "left: B · waiting: D, E",
        "    AAABB|ABCCC",
        "A 3 ###..|#....",
        "B 2 ...##|.#...",
        "C 0 .....|..#..",
        "C 1 .....|..##.",
        "C 2 .....|..###",
    ]


def test_a_recorded_run_can_be_printed_step_by_step():
    prompts = [[5, 6, 7], [8], [9, 10]]
    serve = dict(max_new_tokens=[2, 3, 1], max_num_seqs=2, names="ABC")
    result = record_run(ragged_generate, tiny_model("llama"), NoTokenizer(), prompts, **serve)
    first, second, third = (packed_text(step).splitlines() for step in result.packed)
    assert first[:2] == ["A prefill: 3 new after 0 cached · B prefill: 1 new after 0 cached", "waiting: C"]
    assert second[:2] == [
        "A decode: 1 new after 3 cached · B decode: 1 new after 1 cached",
        "left: A · in the next row: C",
    ]
    assert [step.admitted for step in result.packed] == [(), ("C",), ()]
    assert third[:2] == ["B decode: 1 new after 2 cached · C prefill: 2 new after 0 cached", "left: B, C"]
    assert third[2:] == ["    BB|BCC", "B 2 ##|#..", "C 0 ..|.#.", "C 1 ..|.##"]
