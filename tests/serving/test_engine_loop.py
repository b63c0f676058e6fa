"""The engine's side: commands in, one step, events out."""

import pickle

import pytest
from engine_cases import check_that_nothing_is_left, greedy
from fronts import Dead, counting_engine, tiny_engine

from lessons_lib.engine.outputs import NewToken
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.messages import (
    AbortRequest,
    Accepted,
    AddRequest,
    EngineStatus,
    NewTokens,
    Refused,
    RequestEnded,
)
from lessons_lib.serving.stream_text import TextRules

PLAIN_TEXT = TextRules({"skip_special_tokens": True}, shows_stop_token=False)


def kinds(events):
    return [type(event) for event in events]


def test_a_request_from_its_command_to_its_end():
    loop = EngineLoop(counting_engine())
    events = loop.turn([AddRequest("a", [1, 2, 3], greedy(3, ignore_eos=True))])
    assert kinds(events) == [Accepted, NewTokens, EngineStatus]
    assert events[0] == Accepted("a", 3, PLAIN_TEXT)
    assert events[1].tokens == [NewToken("a", 0, 4, "", None)], "its text is made where it is read"
    assert events[2].gauges.running == 1 and events[2].gauges.used_blocks > 0
    assert kinds(loop.turn([])) == [NewTokens, EngineStatus]
    events = loop.turn([])
    assert kinds(events) == [NewTokens, RequestEnded, EngineStatus]
    assert events[0].tokens[0].finish_reason == "length"
    (completion,) = events[1].completions
    assert (completion.token_ids, completion.text, completion.finish_reason) == ([4, 5, 6], "", "length")
    assert events[1].num_prompt_tokens == 3 and events[1].error is None
    assert events[2].metrics["new_tokens"] == 3 and events[2].gauges.used_blocks == 0
    assert loop.turn([]) == [], "an idle engine does nothing"
    check_that_nothing_is_left(loop.engine)


@pytest.mark.parametrize(
    "prompt, params, error",
    [([], None, BadRequest), ([200], None, BadRequest), ([1] * 200, greedy(50), OutOfBlocks), (3.5, None, BadRequest)],
)
def test_a_refused_request_leaves_nothing(prompt, params, error):
    loop = EngineLoop(counting_engine(num_blocks=20))
    (event,) = loop.turn([AddRequest("a", prompt, params)])
    assert isinstance(event, Refused) and type(event.error) is error and event.error.__traceback__ is None
    with pytest.raises(error) as raised:
        loop.engine.add_request(prompt, params, request_id="a")
    assert str(raised.value) == str(event.error)
    assert not loop.open
    check_that_nothing_is_left(loop.engine)


def test_an_abort_ends_the_request_at_once_and_only_once():
    loop = EngineLoop(counting_engine())
    loop.turn([AddRequest("a", [1], greedy(9)), AddRequest("b", [2], greedy(2))])
    ended, status, tokens, other, _ = loop.turn([AbortRequest("a")])
    assert ended.is_aborted and ended.completions[0].token_ids == [2] and status.gauges.running == 1
    assert {token.request_id for token in tokens.tokens} == {"b"} == {other.request_id}
    assert loop.turn([AbortRequest("a"), AbortRequest("never")]) == []
    events = loop.turn([AddRequest("c", [1], greedy(9)), AbortRequest("c")])
    assert kinds(events) == [Accepted, RequestEnded, EngineStatus]
    check_that_nothing_is_left(loop.engine)


def test_metrics_are_sent_now_and_then_and_when_the_engine_is_idle():
    now = [0.0]
    loop = EngineLoop(counting_engine(), clock=lambda: now[0])
    events = [loop.turn([AddRequest("a", [1], greedy(5, ignore_eos=True))]), *(loop.turn([]) for _ in range(2))]
    assert [each[-1].metrics is not None for each in events] == [True, False, False]
    now[0] = 0.3
    assert loop.turn([])[-1].metrics["new_tokens"] == 4
    assert loop.turn([])[-1].metrics["new_tokens"] == 5


def test_requests_of_another_caller_are_left_alone_and_its_aborts_end_ours():
    loop = EngineLoop(counting_engine())
    loop.turn([AddRequest("a", [1], greedy(9))])
    loop.engine.add_request([1], greedy(1), request_id="other")
    loop.engine.abort("a")
    ended, _ = loop.turn([])
    assert ended.request_id == "a" and ended.is_aborted and ended.completions[0].token_ids == [2]
    assert loop.turn([]) == [] and not loop.open


def test_close_goes_on_when_an_abort_fails():
    loop = EngineLoop(counting_engine())
    loop.turn([AddRequest(str(index), [1], greedy(9)) for index in range(4)])
    abort, asked = loop.engine.abort, []

    def sometimes(request_id):
        asked.append(request_id)
        if len(asked) % 2:
            raise Dead("no connection to the others")
        return abort(request_id)

    loop.engine.abort = sometimes
    loop.close()
    assert sorted(asked) == ["0", "1", "2", "3"] and not loop.open
    assert len(loop.engine.requests) == 2
    loop.close()
    assert len(asked) == 4, "nothing is left to abort"


def test_all_events_survive_pickling():
    loop = EngineLoop(tiny_engine())
    params = greedy(4, n=2, logprobs=2, prompt_logprobs=1, temperature=1.0, seed=3, ignore_eos=True)
    commands = [AddRequest("a", "hello", params), AddRequest("a", [1]), AddRequest("b", [])]
    events = loop.turn(pickle.loads(pickle.dumps(commands)))
    while loop.open:
        events += loop.turn([])
    again = pickle.loads(pickle.dumps(events))
    assert {Accepted, Refused, NewTokens, RequestEnded, EngineStatus} == set(kinds(again))
    for event, other in zip(events, again):
        if isinstance(event, Refused):
            assert type(other.error) is type(event.error) and str(other.error) == str(event.error)
        else:
            assert other == event
    (ended,) = [event for event in again if isinstance(event, RequestEnded)]
    assert len(ended.completions) == 2 and len(ended.prompt_logprobs) == 5 and len(ended.completions[1].logprobs) == 4
