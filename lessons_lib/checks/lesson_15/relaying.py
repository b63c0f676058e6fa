"""Judges 15.3, `relay`, with replicas that fail at every point of a stream."""

from itertools import islice

from lessons_lib.checks.exercise import Mistake, reached
from lessons_lib.checks.lesson_15.fake_replica import REQUEST, TOKENS, FakeReplica
from lessons_lib.checks.lesson_15.lost_replicas import (
    check_after_the_last_token,
    check_arrives_complete,
    check_begun,
    check_chosen_again,
    check_connection_cut,
    check_larger_chunks,
    check_lost_anywhere,
    check_lost_twice,
    check_max_moves,
    check_none_left,
    check_opening,
    check_over_before_the_next,
)
from lessons_lib.checks.lesson_15.refused_requests import (
    check_error_chunk,
    check_message,
    check_refused,
    check_refused_at_the_call,
    check_refused_between,
)
from lessons_lib.checks.lesson_15.relayed_chunks import check_nothing_left, close_reader, relayed, start_relay
from lessons_lib.checks.lesson_15.relayed_seeds import check_drawn_seeds, check_seed
from lessons_lib.serving.failover import Chunk


def check_relay(attempt) -> None:
    for check in (
        _check_one,
        _check_as_it_comes,
        _check_choice,
        _check_other_streams,
        _check_reader_leaves,
        _check_reason,
    ):
        check(attempt)
    with reached("(Streams without a loss are right already. This is about a loss or a refusal.)"):
        for check in (
            check_lost_anywhere, check_connection_cut, check_lost_twice, check_begun, check_larger_chunks,
            check_chosen_again, check_after_the_last_token, check_none_left, check_max_moves, check_refused,
            check_refused_between, check_message, check_seed, check_over_before_the_next,
        ):  # fmt: skip
            check(attempt)
    for check in (check_error_chunk, check_drawn_seeds, check_arrives_complete, _check_last_with_tokens):
        check(attempt)
    # Last, so that a call outside of the `try`, which is common, hides no other mistake.
    with reached("(All is right as long as `stream` returns. This is about a call of `stream` that raises.)"):
        check_opening(attempt)
        check_refused_at_the_call(attempt)


def _check_one(attempt) -> None:
    replica = FakeReplica("A")
    case = "one replica that doesn't fail. It yields five chunks of one token, and Chunk([], 'length')."
    chunks = relayed(attempt, [replica], case)
    if chunks[-1].finish_reason != "length":
        raise Mistake(
            f"the last chunk's reason should be 'length'; yours is {chunks[-1].finish_reason!r}.",
            case=case,
            idea="Pass the replica's last chunk on as it is.",
        )
    if len(replica.requests) != 1:
        raise Mistake(
            f"the replica should be asked once; it was asked {len(replica.requests)} times.",
            case=case,
            idea="The stream was complete. There is nothing to ask for.",
        )
    if replica.log[0][1] != 1:
        raise Mistake(
            f"while the replica serves the stream, its load should be 1; it was {replica.log[0][1]} when it was asked.",
            case=case,
            idea="Raise the load *before* you ask, so that the next choice counts this request.",
        )
    if list(replica.requests[0].get("output_token_ids", ())):
        raise Mistake(
            f"the first request should have no output tokens; yours is {replica.requests[0]}.",
            case=case,
            idea="Nothing has been generated yet.",
        )


def _check_reason(attempt) -> None:
    case = "one replica, which ends an answer of 5 tokens with Chunk([], 'stop'); max_tokens is 9."
    request = {**REQUEST, "max_tokens": 9}
    chunks = relayed(attempt, [FakeReplica("A", last=Chunk([], "stop"))], case, request)
    if chunks[-1].finish_reason != "stop":
        raise Mistake(
            f"the last chunk's reason should be 'stop'; yours is {chunks[-1].finish_reason!r}.",
            case=case,
            idea="The replica knows why it stopped: pass its last chunk on as it is.",
        )


def _check_last_with_tokens(attempt) -> None:
    case = "one replica that doesn't fail. It yields chunks of three and two tokens, the second one with the reason."
    last = relayed(attempt, [FakeReplica("A", in_chunk=3)], case)[-1]
    if list(last.token_ids) != TOKENS[3:]:
        raise Mistake(
            f"the last chunk should have the tokens {TOKENS[3:]} and the reason 'length'; yours is {last}.",
            case=case,
            idea="A chunk with a reason is passed on as it is, with all its tokens: `yield chunk`.",
        )


def _check_as_it_comes(attempt) -> None:
    case = "one replica that doesn't fail; the reader takes one chunk and looks."
    replica = FakeReplica("A")
    reader = start_relay(attempt, [replica], case)
    next(reader)
    if replica.streams[0].num_sent > 1:
        raise Mistake(
            f"the reader has taken 1 chunk, and your code has read {replica.streams[0].num_sent} from the replica.",
            case=case,
            idea="Pass each chunk on before you read the next one. Otherwise it isn't a stream.",
        )
    close_reader(reader, case)


def _check_choice(attempt) -> None:
    case = "replicas A, B and C; `choose` returns 2."
    seen: list = []

    def last(replicas):
        seen.append(list(replicas))
        return len(replicas) - 1

    replicas = [FakeReplica(name) for name in "ABC"]
    relayed(attempt, replicas, case, choose=last)
    if not seen:
        raise Mistake("`choose` was not called.", case=case, idea="Which replica is asked is the policy's decision.")
    if [bool(each.requests) for each in replicas] != [False, False, True]:
        asked = [each.name for each in replicas if each.requests]
        raise Mistake(
            f"replica C should be asked; {' and '.join(asked)} was.",
            case=case,
            idea="`choose` returns an index of its list.",
        )


def _check_other_streams(attempt) -> None:
    case = "A serves three other streams: its load is 3. It doesn't fail."
    replica = FakeReplica("A", load=3)
    list(islice(start_relay(attempt, [replica], case), 40))
    for when, load, want in (("when it is asked", replica.log[0][1], 4), ("afterwards", replica.load, 3)):
        if load != want:
            raise Mistake(
                f"{when}, its load should be {want}; it is {load}.",
                case=case,
                idea="Other streams count too: `replica.load += 1` before, `replica.load -= 1` afterwards.",
            )
    case = "A serves this stream; after the first chunk, another stream begins on A and goes on. A doesn't fail."
    replica = FakeReplica("A")
    reader = start_relay(attempt, [replica], case)
    next(reader)
    replica.load += 1
    list(islice(reader, 40))
    if replica.load != 1:
        raise Mistake(
            f"afterwards, its load should be 1; it is {replica.load}.",
            case=case,
            idea="Other streams change the load too, so don't put back what it was before: `replica.load -= 1`.",
        )


def _check_reader_leaves(attempt) -> None:
    case = "one replica; the reader takes two chunks and leaves (`close()` of your generator)."
    replica = FakeReplica("A")
    reader = start_relay(attempt, [replica], case)
    next(reader), next(reader)
    close_reader(reader, case)
    check_nothing_left([replica], case)
