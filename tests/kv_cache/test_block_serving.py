"""The step with the oracle: room for whole answers, so no request starts over."""

from lessons_lib.kv_cache import BlockPool, serve_in_blocks, step_in_blocks, step_with_oracle

LENGTHS = [(2, 4), (3, 3), (1, 6)]  # 5, 5 and 6 tokens in the end


def test_the_oracle_admits_only_what_has_room_to_its_end():
    steps = serve_in_blocks(LENGTHS, BlockPool(10, 1), step=step_with_oracle)
    assert [step.running for step in steps[:4]] == [2, 2, 2, 1]
    assert not any(step.restarted for step in steps)
    assert len(steps) == 10  # the third starts when both others have left


def test_without_the_oracle_all_start_and_one_starts_over():
    steps = serve_in_blocks(LENGTHS, BlockPool(10, 1), step=step_in_blocks)
    assert steps[0].running == 3
    assert any(step.restarted for step in steps)
