"""What the readers of streams got, while one of two replicas is lost."""

import pytest
from engine_cases import an_engine

from lessons_lib.recording.replica_streams import EngineReplica, record_streams
from lessons_lib.serving.failover import relay

PROMPTS = {"A": [5, 9, 13, 7], "B": [3, 3, 8], "C": [1, 2, 6, 20, 4]}


def streams(max_moves, lost_at):
    replicas = [EngineReplica(an_engine(), block_size=2), EngineReplica(an_engine(), block_size=2)]

    def least_loaded(remaining):
        return min(range(len(remaining)), key=lambda index: remaining[index].load)

    readers = {
        name: relay(dict(prompt=prompt, max_tokens=8, ignore_eos=True), replicas, least_loaded, max_moves)
        for name, prompt in PROMPTS.items()
    }
    return record_streams(readers, replicas, lost=0, lost_at=lost_at), replicas


@pytest.mark.parametrize("lost_at", [0, 1, 3, 7])
def test_a_moved_stream_has_the_tokens_of_one_that_stayed(lost_at):
    stayed, _ = streams(max_moves=2, lost_at=99)
    assert {replica for record in stayed for _, replica in record.tokens} == {0, 1}
    moved, replicas = streams(max_moves=2, lost_at=lost_at)
    assert [record.token_ids for record in moved] == [record.token_ids for record in stayed]
    assert all(len(record.tokens) == 8 and record.end == (7, "length") for record in moved)
    assert all(replica == 1 for record in moved for time, replica in record.tokens if time >= lost_at)
    assert [replica.load for replica in replicas] == [0, 0]


def test_without_moves_the_streams_of_the_lost_replica_end_with_an_error():
    records, _ = streams(max_moves=0, lost_at=3)
    assert [len(record.token_ids) for record in records] == [3, 8, 3]
    assert [record.end for record in records] == [(3, "error"), (7, "length"), (3, "error")]
