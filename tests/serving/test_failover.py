"""A stream that is cut anywhere goes on in another engine, and its reader gets the tokens of the uncut one."""

import inspect

import pytest
from engine_cases import an_engine

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.balancer import Balancer
from lessons_lib.serving.continuation import MAX_MOVES
from lessons_lib.serving.failover import Chunk, ReplicaLost, relay, request_to_go_on

PROMPT = [5, 9, 13, 7, 5, 9]
KINDS = {
    "greedy": {},
    "drawn": dict(temperature=1.0, seed=4),
    "penalties": dict(presence_penalty=1.5, repetition_penalty=1.3),
    "minimum": dict(min_tokens=8, temperature=1.0, seed=1),
}


class EngineReplica:
    def __init__(self, lost_after=None):
        self.load, self.lost_after, self.engine = 0, lost_after, an_engine()

    def stream(self, request):
        fields = dict(request)
        prompt, so_far = fields.pop("prompt"), fields.pop("output_token_ids", ())
        tokens = self.engine.stream(prompt, SamplingParams(**fields), output_ids=so_far)
        for count, token in enumerate(tokens):
            if count == self.lost_after:
                raise ReplicaLost("gone")
            yield Chunk([token.token], token.finish_reason)


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


def test_a_refused_request_is_refused_once():
    replicas = [EngineReplica(), EngineReplica()]
    (chunk,) = relay(dict(prompt=PROMPT, max_tokens=4, temperature=-1.0), replicas, lambda remaining: 0)
    assert chunk.finish_reason == "error" and "temperature is -1.0" in chunk.error


def test_a_reader_that_leaves_aborts_the_request():
    replica = EngineReplica()
    stream = relay(dict(prompt=PROMPT, max_tokens=12), [replica], lambda remaining: 0)
    next(stream)
    assert replica.load == 1 and replica.engine.requests
    stream.close()
    assert replica.load == 0 and not replica.engine.requests


def test_the_rest_of_a_request():
    request = dict(prompt=PROMPT, max_tokens=4)
    assert request_to_go_on(request, [1, 2]) == request | {"output_token_ids": [1, 2]}
    begun = request | {"output_token_ids": [8]}
    assert request_to_go_on(begun, [1, 2]) == request | {"output_token_ids": [8, 1, 2]}
    assert begun["output_token_ids"] == [8], "what was asked stays as it was"
    assert request_to_go_on(begun, [1, 2, 3]) is None, "it has all its tokens"
    assert request_to_go_on(request, []) == request | {"output_token_ids": []}


def test_a_replica_that_is_lost_after_the_last_token():
    class Lost:
        load = 0

        def stream(self, request):
            for token in (1, 30):
                yield Chunk([token])
            raise ReplicaLost("gone")

    replicas = [Lost(), None]  # the second one isn't asked
    *_, last = relay(dict(prompt=PROMPT, max_tokens=2), replicas, lambda remaining: 0)
    assert last == Chunk([], "length")


def test_a_request_that_arrives_complete_gets_its_reason_and_no_replica_is_asked():
    complete = dict(prompt=PROMPT, max_tokens=4, output_token_ids=[7, 8, 9, 7])
    assert list(relay(complete, [None], lambda remaining: 0)) == [Chunk([], "length")]


def test_a_begun_request_whose_replica_is_lost_after_the_last_token():
    class Lost:
        load = 0

        def stream(self, request):
            yield Chunk([7])
            raise ReplicaLost("gone")

    request = dict(prompt=PROMPT, max_tokens=3, output_token_ids=[30, 8])
    assert list(relay(request, [Lost(), None], lambda remaining: 0))[-1] == Chunk([], "length")


def test_a_bad_limit_is_refused_by_the_replica_and_is_no_complete_answer():
    (chunk,) = relay(dict(prompt=PROMPT, max_tokens=-1), [EngineReplica()], lambda remaining: 0)
    assert chunk.finish_reason == "error" and "max_tokens is -1" in chunk.error

    class Lost:
        load = 0

        def stream(self, request):
            raise ReplicaLost("gone")

    (chunk,) = relay(dict(prompt=PROMPT, max_tokens=0), [Lost()], lambda remaining: 0)
    assert chunk == Chunk([], "length"), "no token is asked for"


def test_relay_and_the_balancer_move_a_stream_equally_often():
    for function in (relay, Balancer.__init__):
        assert inspect.signature(function).parameters["max_moves"].default == MAX_MOVES
