"""A stream that is cut anywhere goes on in another engine, and its reader gets the tokens of the uncut one. The checks of
exercises 15.2 and 15.3 have the single cases."""

import pytest
from engine_replica import EngineReplica

from lessons_lib.serving.failover import relay

PROMPT = [5, 9, 13, 7, 5, 9]
KINDS = {
    "greedy": {},
    "drawn": dict(temperature=1.0, seed=4),
    "penalties": dict(presence_penalty=1.5, repetition_penalty=1.3),
    "minimum": dict(min_tokens=8, temperature=1.0, seed=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_in_other_engines(kind):
    request = dict(prompt=PROMPT, max_tokens=12, **KINDS[kind])
    whole = list(relay(request, [EngineReplica()], lambda remaining: 0))
    tokens = [token for chunk in whole for token in chunk.token_ids]
    for first in range(0, len(tokens), 3):
        replicas = [EngineReplica(first), EngineReplica(1), EngineReplica()]
        moved = list(relay(request, replicas, lambda remaining: 0))
        assert [token for chunk in moved for token in chunk.token_ids] == tokens
        assert moved[-1].finish_reason == whole[-1].finish_reason
        assert [replica.load for replica in replicas] == [0, 0, 0]
        assert not any(replica.engine.requests for replica in replicas)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"max_tokens": -1}], ids=str)
def test_a_refused_request_is_refused_once(wrong):
    replicas = [EngineReplica(), None]  # the second one isn't asked
    (chunk,) = relay(dict(prompt=PROMPT, max_tokens=4) | wrong, replicas, lambda remaining: 0)
    (name, value), *_ = wrong.items()
    assert chunk.finish_reason == "error" and f"{name} is {value}" in chunk.error


def test_a_reader_that_leaves_aborts_the_request():
    replica = EngineReplica()
    stream = relay(dict(prompt=PROMPT, max_tokens=12), [replica], lambda remaining: 0)
    next(stream)
    assert replica.load == 1 and replica.engine.requests
    stream.close()
    assert replica.load == 0 and not replica.engine.requests
