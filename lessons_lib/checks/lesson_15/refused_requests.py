"""Judges 15.3 when a replica runs, but doesn't serve the request: no other one is asked."""

from itertools import islice

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_15.fake_replica import TOKENS, FakeReplica
from lessons_lib.checks.lesson_15.relayed_chunks import relayed, start_relay
from lessons_lib.serving.failover import Chunk

REFUSAL = ValueError("max_tokens is -1")


def check_refused(attempt) -> None:
    case = "A's stream raises ValueError('max_tokens is -1') at its first chunk; B's would raise the same."
    replicas = [FakeReplica(name, 0, "refuse") for name in "AB"]
    try:
        chunks = relayed(attempt, replicas, case, want=[])
    except ValueError:
        idea = "The reader gets an error as a chunk: `yield Chunk([], 'error', str(error))`."
        if _is_caught_at_the_call(attempt, case):
            idea += " Yours does so if `A.stream(...)` raises. The loop over the chunks may raise too."
        raise Mistake("your code raised ValueError.", case=case, idea=idea) from None
    if replicas[1].requests:
        raise Mistake(
            "B was asked too.",
            case=case,
            idea="A wasn't lost: it refused the request. Every other replica would refuse it too. Only ReplicaLost "
            "means that another one should be asked.",
        )
    _must_say_why(chunks, case)


def _is_caught_at_the_call(attempt, case: str) -> bool:
    try:
        list(islice(start_relay(attempt, [FakeReplica("A", refuses=REFUSAL)], case), 40))
    except Exception:
        return False
    return True


def _must_say_why(chunks: list[Chunk], case: str) -> None:
    if chunks[-1].finish_reason != "error" or "max_tokens is -1" not in (chunks[-1].error or ""):
        raise Mistake(
            f"the last chunk should say why: 'max_tokens is -1'; yours is {chunks[-1]}.",
            case=case,
            idea="The message of the exception tells the reader what to change: `str(error)`.",
        )


def check_refused_at_the_call(attempt) -> None:
    at_once = "`A.stream(...)` raises ValueError('max_tokens is -1'); B would raise the same."
    other = "`A.stream(...)` raises TypeError('max_tokens is -1'); B would raise the same."
    moved = "A is lost after 2 chunks; `B.stream(...)` raises ValueError('max_tokens is -1'); C would raise the same."
    for case, replicas, num_asked in (
        (at_once, [FakeReplica(name, refuses=REFUSAL) for name in "AB"], 1),
        (other, [FakeReplica(name, refuses=TypeError("max_tokens is -1")) for name in "AB"], 1),
        (moved, [FakeReplica("A", 2), FakeReplica("B", refuses=REFUSAL), FakeReplica("C", refuses=REFUSAL)], 2),
    ):
        try:
            chunks = relayed(attempt, replicas, case, want=TOKENS[: 2 * (num_asked - 1)])
        except (ValueError, TypeError) as error:
            raise Mistake(
                f"your code raised {type(error).__name__}.",
                case=case,
                idea="The reader gets it as a chunk, whatever its type is, and wherever it was raised: around the call "
                "of `stream` and the loop over the chunks, `except Exception as error`.",
            ) from None
        if sum(bool(each.requests) for each in replicas) != num_asked:
            raise Mistake(
                f"replica {replicas[num_asked].name} was asked too.",
                case=case,
                idea=f"{replicas[num_asked - 1].name} wasn't lost: it refused the request, and so would every other.",
            )
        _must_say_why(chunks, case)


def check_refused_between(attempt) -> None:
    """After some chunks, an exception other than ReplicaLost ends the answer, too."""
    for num_chunks in (1, 3):
        case = (
            f"A yields {TOKENS[:num_chunks]}, one token a chunk; then its stream raises ValueError('max_tokens is -1')."
        )
        b = FakeReplica("B")
        try:
            chunks = relayed(attempt, [FakeReplica("A", num_chunks, "refuse"), b], case, want=TOKENS[:num_chunks])
        except Mistake:
            if not b.requests:
                raise
        except ValueError:
            raise Mistake(
                "your code raised ValueError, after the first tokens.",
                case=case,
                idea="The reader gets it as a chunk, as it does before the first token.",
            ) from None
        if b.requests:
            raise Mistake(
                "B was asked, though A wasn't lost.",
                case=case,
                idea="Only ReplicaLost says that a replica has gone, before the first token and after it. Any other "
                "exception ends the answer: `yield Chunk([], 'error', str(error))`, and `return`.",
            )
        _must_say_why(chunks, case)


def check_message(attempt) -> None:
    case = "A's stream raises ValueError('max_tokens is -1') at its first chunk."
    last = relayed(attempt, [FakeReplica("A", 0, "refuse")], case, want=[])[-1]
    if last.error == repr(REFUSAL):
        raise Mistake(
            f"the last chunk should say {str(REFUSAL)!r}; yours says {last.error!r}.",
            case=case,
            idea="That is how Python writes the exception, made for programmers. Its message is `str(error)`.",
        )


def check_error_chunk(attempt) -> None:
    case = "A yields five chunks, and Chunk([], 'error', 'out of memory')."
    b = FakeReplica("B")
    chunks = relayed(attempt, [FakeReplica("A", last=Chunk([], "error", "out of memory")), b], case)
    if chunks[-1].error != "out of memory" or b.requests:
        raise Mistake(
            f"the last chunk should be A's own; yours is {chunks[-1]}.",
            case=case,
            idea="A chunk with a reason is the last one, whatever the reason is. A still runs; it wasn't lost.",
        )
