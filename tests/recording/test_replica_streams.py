"""What the readers of streams got, while one of two replicas is lost; and a server process as a replica."""

from contextlib import closing

import psutil
import pytest
from engine_replica import EngineReplica

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.recording.replica_streams import ProcessReplica, record_streams
from lessons_lib.serving.failover import ReplicaLost, relay
from lessons_lib.serving.http.server_process import ServerFailed, ServerProcess, start_together

PROMPTS = {"A": [5, 9, 13, 7], "B": [3, 3, 8], "C": [1, 2, 6, 20, 4]}


def least_loaded(remaining):
    return min(range(len(remaining)), key=lambda index: remaining[index].load)


def streams(max_moves, lost_at):
    replicas = [EngineReplica(), EngineReplica()]
    readers = {
        name: relay(dict(prompt=prompt, max_tokens=8, ignore_eos=True), replicas, least_loaded, max_moves)
        for name, prompt in PROMPTS.items()
    }
    return record_streams(readers, replicas, lost_at, replicas[0].lose), replicas


@pytest.mark.parametrize("lost_at", [0, 1, 3, 7])
def test_a_moved_stream_has_the_tokens_of_one_that_stayed(lost_at):
    stayed, _ = streams(max_moves=2, lost_at=99)
    assert {replica for record in stayed for _, replica in record.tokens} == {0, 1}
    moved, replicas = streams(max_moves=2, lost_at=lost_at)
    assert [record.token_ids for record in moved] == [record.token_ids for record in stayed]
    assert all(len(record.tokens) == 8 and record.end == (7, "length") for record in moved)
    assert all(replica == 1 for record in moved for time, replica in record.tokens if time >= lost_at)
    assert [record.has_moved for record in moved] == [lost_at > 0, False, lost_at > 0]
    assert [replica.load for replica in replicas] == [0, 0]


def test_without_moves_the_streams_of_the_lost_replica_end_with_an_error():
    records, _ = streams(max_moves=0, lost_at=3)
    ends = [(len(record.token_ids), record.end) for record in records]
    assert ends == [(3, (3, "error")), (8, (7, "length")), (3, (3, "error"))]


def small_server(*arguments):
    return ServerProcess("--model", BUNDLED_MODEL, "--device", "cpu", "--engine", "thread", *arguments)


def test_a_killed_process_is_a_lost_replica_and_nothing_is_left_of_it():
    server = small_server("--num-blocks", 64)
    request = dict(prompt=[5, 9, 13, 7], max_tokens=900, ignore_eos=True)
    with start_together(server):
        replica = ProcessReplica(server.url)
        with closing(replica.stream(request | {"max_tokens": 3})) as chunks:
            whole = list(chunks)
        assert sum(len(chunk.token_ids) for chunk in whole) == 3 and whole[-1].finish_reason == "length"
        assert replica.num_chunks == len(whole)
        with pytest.raises(ValueError, match="max_tokens"):
            next(replica.stream(request | {"max_tokens": -1}))
        stream = replica.stream(request)
        first = next(stream)
        nothing_yet = replica.stream(request | {"max_tokens": 3, "output_token_ids": []})
        assert [chunk.token_ids for chunk in nothing_yet] == [chunk.token_ids for chunk in whole]
        assert first.token_ids[:1] == whole[0].token_ids[:1]
        server.process.kill()
        with pytest.raises(ReplicaLost):
            assert all(chunk.finish_reason is None for chunk in stream)
            raise ReplicaLost  # the connection was closed between two events: an end without a reason
        server.process.wait()
        with pytest.raises(ReplicaLost):
            next(replica.stream(request))
    assert server.process.returncode is not None


@pytest.mark.nightly
def test_if_one_server_does_not_start_none_is_left():
    servers = [small_server("--num-blocks", 64), small_server("--num-blocks", -1)]
    with pytest.raises(ServerFailed), start_together(*servers):
        pass
    assert not any(psutil.pid_exists(server.process.pid) for server in servers)
