"""Judges 15.3 when replicas are lost: before, in and after their streams."""

from contextlib import suppress
from itertools import islice

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_15.fake_replica import REQUEST, TOKENS, AskedAfter, FakeReplica
from lessons_lib.checks.lesson_15.relayed_chunks import check_not_asked_for_none, relayed, start_relay
from lessons_lib.serving.failover import ReplicaLost
from lessons_lib.viz.words import marked


def check_lost_anywhere(attempt) -> None:
    for lost_after in range(5):
        case = f"A is lost (ReplicaLost) after {lost_after} chunk{'s' * (lost_after != 1)}; B is fine."
        a = FakeReplica("A", lost_after=lost_after)
        reader = start_relay(attempt, [a, FakeReplica("B")], case)
        with suppress(Exception):  # `relayed` lets it out
            list(islice(reader, 40))
        if len(a.requests) > 1:
            raise Mistake(
                "replica A was asked again after it was lost.",
                case=case,
                idea="`choose` gets only the replicas that haven't failed: take a lost one out of the list.",
            )
        relayed(attempt, [FakeReplica("A", lost_after=lost_after), FakeReplica("B")], case)


def check_connection_cut(attempt) -> None:
    for lost_after in (0, 3):
        case = f"A's stream simply ends after {lost_after} chunks, without a finish_reason; B is fine."
        chunks = list(islice(start_relay(attempt, [FakeReplica("A", lost_after, "end"), FakeReplica("B")], case), 40))
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        if tokens != TOKENS:
            raise Mistake(
                f"the reader should get {TOKENS}; yours got {marked(TOKENS, tokens)}.",
                case=case,
                idea="A complete stream ends with a finish_reason. One that ends without it was cut: treat the "
                "replica as "
                "lost.",
            )
        relayed(attempt, [FakeReplica("A", lost_after, "end"), FakeReplica("B")], case)


def check_opening(attempt) -> None:
    case = "A can't even be asked: `A.stream(...)` raises ReplicaLost; B is fine."
    try:
        relayed(attempt, [FakeReplica("A", refuses=ReplicaLost("no connection")), FakeReplica("B")], case)
    except ReplicaLost:
        raise Mistake(
            "your code raised ReplicaLost.",
            case=case,
            idea="`replica.stream(...)` may raise too, not only the loop over its chunks. It belongs inside the `try`.",
        ) from None


def check_lost_twice(attempt) -> None:
    case = "A is lost after 2 chunks, B after 1 more; C is fine; max_moves is 2."
    c = FakeReplica("C")
    relayed(attempt, [FakeReplica("A", 2), FakeReplica("B", 1), c], case)
    if list(c.requests[0].get("output_token_ids", ())) != TOKENS[:3]:
        raise Mistake(
            f"C should go on behind {TOKENS[:3]}; it was asked {c.requests[0]}.",
            case=case,
            idea="Two tokens from A and one from B: collect the tokens of all replicas.",
        )


def check_begun(attempt) -> None:
    request = {**REQUEST, "output_token_ids": TOKENS[:2]}
    case = f"the completion had begun before: the request is {request}; A is lost after 1 chunk; B is fine."
    a, b = FakeReplica("A", 1), FakeReplica("B")
    list(islice(start_relay(attempt, [a, b], case, request), 40))
    check_not_asked_for_none([a, b], case)
    for replica, want in ((a, TOKENS[:2]), (b, TOKENS[:3])):
        got = [list(asked.get("output_token_ids", ())) for asked in replica.requests]
        if got != [want]:
            raise Mistake(
                f"{replica} should be asked once, with the output tokens {want}; yours asked with {got}.",
                case=case,
                idea="Ask the first replica for the request as it is. `request_to_go_on` puts the earlier tokens "
                "before those that the reader got in answer to `request`.",
            )
    relayed(attempt, [FakeReplica("A", 1), FakeReplica("B")], case, request, want=TOKENS[2:])


def check_arrives_complete(attempt) -> None:
    request = {**REQUEST, "output_token_ids": list(TOKENS)}
    case = f"the request arrives complete: it is {request}; A is fine."
    a = FakeReplica("A")
    list(islice(start_relay(attempt, [a], case, request), 40))
    check_not_asked_for_none([a], case)
    if a.requests:
        raise Mistake(
            "no replica should be asked; A was.",
            case=case,
            idea="It has all of its `max_tokens` tokens, so nothing is left to generate, and a replica would refuse "
            "it. What does `request_to_go_on(request, [])` return?",
        )
    chunks = relayed(attempt, [FakeReplica("A")], case, request, want=[])
    if chunks[-1].finish_reason != "length":
        raise Mistake(
            f"the reason should be 'length'; yours is {chunks[-1].finish_reason!r}.",
            case=case,
            idea="No token is missing, as after a loss behind the last token.",
        )


def check_larger_chunks(attempt) -> None:
    case = (
        "A's and B's chunks have two tokens each, and the reason comes in the same chunk as the last tokens; A is lost "
        "after one chunk."
    )
    b = FakeReplica("B", in_chunk=2)
    got = list(islice(start_relay(attempt, [FakeReplica("A", 1, in_chunk=2), b], case), 40))
    if [token for chunk in got for token in chunk.token_ids] == TOKENS[:4]:
        raise Mistake(
            f"the reader should get the tokens {TOKENS}; yours got {TOKENS[:4]}.",
            case=case,
            idea="A chunk with a finish_reason can have tokens too. Yield it as it is.",
        )
    if b.requests and list((b.requests[0] or {}).get("output_token_ids", ())) != TOKENS[:2]:
        raise Mistake(
            f"B should go on behind {TOKENS[:2]}; it was asked {b.requests[0]}.",
            case=case,
            idea="A chunk can have several tokens. Note all of them: `token_ids += chunk.token_ids`.",
        )
    relayed(attempt, [FakeReplica("A", 1, in_chunk=2), FakeReplica("B", in_chunk=2)], case)


def check_chosen_again(attempt) -> None:
    case = "replicas A, B and C; `choose` returns the index of the last one in its list; C is lost after 2 chunks."
    seen: list = []

    def last(replicas):
        seen.append([each.name for each in replicas])
        return len(replicas) - 1

    replicas = [FakeReplica("A"), FakeReplica("B"), FakeReplica("C", 2)]
    relayed(attempt, replicas, case, choose=last)
    if replicas[0].requests or seen != [["A", "B", "C"], ["A", "B"]]:
        raise Mistake(
            "`choose` should be called with [A, B, C], then with [A, B], and B should be asked; yours called it with "
            f"{' and '.join('[' + ', '.join(names) + ']' for names in seen)}.",
            case=case,
            idea="`choose` also decides which replica goes on: ask it again for each move, with those that are left.",
        )


def check_after_the_last_token(attempt) -> None:
    for others, options in ((1, {}), (0, {}), (1, {"max_moves": 0})):
        left = "one other replica" if others else "no other replica"
        left += "; max_moves = 0" if options else ""
        case = f"A is lost after all five tokens, before its last chunk; {left}; {REQUEST}."
        replicas = [FakeReplica("A", 5), *(FakeReplica("B") for _ in range(others))]
        chunks = list(islice(start_relay(attempt, replicas, case, REQUEST, **options), 40))
        check_not_asked_for_none(replicas, case)
        if not chunks or chunks[-1].finish_reason != "length":
            got = chunks[-1].finish_reason if chunks else None
            raise Mistake(
                f"the last chunk's reason should be 'length'; yours is {got!r}.",
                case=case,
                idea="The reader has the whole completion: `request_to_go_on` returns None. Only the reason is "
                "missing.",
            )
        replicas = [FakeReplica("A", 5), *(FakeReplica("B") for _ in range(others))]
        relayed(attempt, replicas, case, REQUEST, **options)


def check_none_left(attempt) -> None:
    _check_none_left(
        attempt,
        [FakeReplica("A", 2), FakeReplica("B", 0)],
        TOKENS[:2],
        "A is lost after 2 chunks, B after none; there is no other replica.",
    )
    _check_none_left(attempt, [], [], "the list `replicas` is empty.")


def _check_none_left(attempt, replicas: list[FakeReplica], want: list[int], case: str) -> None:
    try:
        chunks = relayed(attempt, replicas, case, want=want)
    except ReplicaLost:
        raise Mistake(
            "your code raised ReplicaLost.",
            case=case,
            idea="No replica is left to ask. The reader gets that as a chunk: `yield Chunk([], 'error', '...')`.",
        ) from None
    if chunks[-1].finish_reason != "error" or not chunks[-1].error:
        raise Mistake(
            f"the last chunk should have the reason 'error' and say what happened in `error`; yours is {chunks[-1]}.",
            case=case,
            idea="The reader must learn that the answer is not complete: `yield Chunk([], 'error', '...')`.",
        )


def check_max_moves(attempt) -> None:
    for max_moves in (0, 1, 2):
        case = f"six replicas, and each is lost after one chunk; max_moves = {max_moves}."
        replicas = [FakeReplica(name, 1) for name in "ABCDEF"]
        start = start_relay(attempt, replicas, case, max_moves=max_moves)
        list(islice(start, 40))
        asked = sum(bool(replica.requests) for replica in replicas)
        if asked != max_moves + 1:
            raise Mistake(
                f"the number of replicas that are asked should be {max_moves + 1}; yours is {asked}.",
                case=case,
                idea="It may be the request that kills them. Without a limit, one request takes down every replica."
                if asked > max_moves + 1
                else "The first replica doesn't count: `max_moves` is how many *more* are asked.",
            )
        relayed(
            attempt,
            [FakeReplica(name, 1) for name in "ABCDEF"],
            case,
            want=TOKENS[: max_moves + 1],
            max_moves=max_moves,
        )


def check_over_before_the_next(attempt) -> None:
    case = "A is lost after 2 chunks; B notes A's load when it is asked."
    a, b = FakeReplica("A", 2), AskedAfter("B")
    b.before = a
    relayed(attempt, [a, b], case)
    if b.load_before != 0:
        raise Mistake(
            f"when B is asked, the load of A should be 0; it is {b.load_before}.",
            case=case,
            idea="This stream isn't on A any more. While B streams, A's load would keep other requests away from it. "
            "Lower it before the next replica is asked: in a `finally` inside the loop over replicas. (An `except` "
            "that asks the next one itself runs before its `finally`.)",
        )
