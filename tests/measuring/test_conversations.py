"""How much of conversations a prefix cache finds, by the rule for copies of states."""

from lessons_lib.measuring.conversations import SIZE, Turn, conversations, every, replay, where_it_goes_on

FIRST, SECOND = Turn(0, "short", 300, 400), Turn(0, "short", 450, 500)
OTHERS = [Turn(name, "short", 310, 380) for name in (1, 2)]


def found(turns, rule, most=99):
    return [replay(turns[: n + 1], rule, most).found - replay(turns[:n], rule, most).found for n in range(len(turns))]


def test_a_conversation_goes_on_at_its_last_full_block_and_a_system_prompt_is_shared():
    turns = [FIRST, SECOND, *OTHERS]
    assert found(turns, None) == [0, 400, 192, 192], "200 tokens have 12 full blocks"
    assert found(turns, where_it_goes_on) == [0, 384, 0, 192], "the third finds the branch, the fourth its checkpoint"
    assert found(turns, every(SIZE)) == [0, 384, 192, 192], "the state after the last token has no checkpoint"
    assert found(turns, every(320)) == [0, 320, 0, 0]


def test_the_least_recently_used_copy_goes_first():
    turns = [FIRST, *OTHERS, SECOND]
    assert found(turns, where_it_goes_on, most=4)[-1] == 192
    assert replay(turns, where_it_goes_on, most=4).copies == 4
    assert found(turns, where_it_goes_on, most=9)[-1] == 384


def test_all_tokens_of_the_prompts_are_found_or_computed():
    turns = conversations(num=8, num_open=3)
    assert len(turns) == 48 and {turn.system for turn in turns} == {"short", "long"}
    for rule in (None, where_it_goes_on, every(528)):
        hits = replay(turns, rule, 20)
        assert hits.found + hits.computed == sum(turn.num_prompt for turn in turns) and hits.copies <= 20
