"""What holds for every stream of 15.3: all tokens once, one reason at the end, and nothing left open."""

from itertools import islice

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_15.fake_replica import REQUEST, TOKENS
from lessons_lib.serving.failover import Chunk
from lessons_lib.viz.words import marked


def choose_first(replicas) -> int:
    return 0


def start_relay(attempt, replicas, case: str, request=None, choose=choose_first, **options):
    log: list = []
    for replica in replicas:
        replica.log = log
    got = call(attempt, dict(REQUEST) if request is None else request, replicas, choose, case=case, **options)
    if isinstance(got, (list, tuple)):
        raise Mistake(
            f"expected an iterator of chunks; yours returned a {type(got).__name__}.",
            case=case,
            idea="The reader should get each chunk as soon as it is there: `yield chunk`.",
        )
    if not hasattr(got, "__next__"):
        raise Mistake(
            f"expected an iterator of chunks; yours returned {short(got, 60)}.",
            case=case,
            idea="A function that contains `yield` returns a generator. Pass chunks on with `yield chunk`.",
        )
    return got


def relayed(attempt, replicas, case: str, request=None, choose=choose_first, want=None, **options) -> list[Chunk]:
    """All chunks; the tokens must be `want` (all of them if None), with one reason at the end and nothing left open."""
    given, request = list(replicas), dict(request or REQUEST)
    before, stale = dict(request), []
    try:
        chunks = list(islice(start_relay(attempt, replicas, case, request, _noting(choose, stale), **options), 40))
    except Exception:
        _refuse_stale(stale, case)  # an index of that list may be none of another one
        raise
    _refuse_stale(stale, case)
    if replicas != given:
        raise Mistake(
            f"your code changed its argument `replicas`: it was {given}, and is {replicas}.",
            case=case,
            idea="The balancer needs the list for other requests. Make a copy first: `list(replicas)`.",
        )
    if request != before:
        raise Mistake(
            f"your code changed its argument `request`: it was {before}, and is {request}.",
            case=case,
            idea='Make a new dict: `request = {**request, "seed": ...}`.',
        )
    check_not_asked_for_none(replicas, case)
    for chunk in chunks:
        if not isinstance(chunk, Chunk):
            raise Mistake(
                f"expected Chunks; yours yielded {short(chunk, 60)}.",
                case=case,
                idea="Pass a replica's chunks on as they are, and make new ones with `Chunk(token_ids, "
                "finish_reason)`.",
            )
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    want = TOKENS if want is None else want
    if tokens != want:
        raise Mistake(
            f"the reader should get the tokens {want}; yours got {marked(want, tokens)}{_and_error(chunks)}.",
            case=case,
            idea=_why_asked(replicas, chunks, want) or _why_error(replicas, chunks) or _why_tokens(tokens, want),
        )
    reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason]
    if len(reasons) != 1 or not chunks[-1].finish_reason:
        raise Mistake(
            f"the last chunk, and only that one, should have a finish_reason; yours have {reasons}"
            f"{'' if not reasons or chunks[-1].finish_reason else ', and another chunk follows'}.",
            case=case,
            idea="A reader waits for the reason. Without one it can't tell a complete answer from one that was cut off."
            if not reasons
            else "After a chunk with a reason nothing follows: `return`.",
        )
    check_nothing_left(replicas, case)
    return chunks


def _noting(choose, stale: list):
    """`choose`, which adds to `stale` each list that it gets with no replica in it, or a lost one, and the lost ones of
    it."""

    def choose_and_note(replicas) -> int:
        if isinstance(replicas, (list, tuple)):
            lost = [each for each in replicas if each.is_lost]
            if lost or not replicas:
                stale.append((list(replicas), lost))
        return choose(replicas)

    return choose_and_note


def _refuse_stale(stale: list, case: str) -> None:
    if not stale:
        return
    candidates, lost = stale[0]
    if not candidates:
        raise Mistake(
            "`choose` should get at least one replica; yours passed it an empty list.",
            case=case,
            idea="No replica is left, so there is nothing to choose: test that first, and tell the reader.",
        )
    left = [each.name for each in candidates if each not in lost]
    raise Mistake(
        f"the list passed to `choose` still contains replica {lost[0].name}, which was lost: it should be "
        f"[{', '.join(left)}]; yours is [{', '.join(each.name for each in candidates)}].",
        case=case,
        idea="`choose` gets the replicas that can still be asked, and its result is an index in the list that it gets. "
        "Pass it the list from which you then take the replica.",
    )


def check_not_asked_for_none(replicas, case: str) -> None:
    for replica in replicas:
        if None in replica.requests:
            raise Mistake(
                f"{replica} was asked for None, which is not a request.",
                case=case,
                idea="`request_to_go_on` returns None if the completion has all its tokens. Don't ask a replica then.",
            )


def _why_asked(replicas, chunks: list[Chunk], want: list[int]) -> str:
    twice = "`request_to_go_on` adds the tokens to those that its request has already."
    for replica in replicas:
        for asked in replica.requests:
            known = list(asked.get("output_token_ids", ()))
            if len(set(known)) < len(known):
                return f'{replica} was asked with "output_token_ids" {known}: some are in it twice. {twice}'
    got = sum(len(chunk.token_ids) for chunk in chunks)
    if chunks and chunks[-1].finish_reason in ("stop", "length") and got < len(want):
        return f"Yours took it for complete with {got} of {len(want)} tokens. Were some counted twice? {twice}"
    return ""


def _and_error(chunks: list[Chunk]) -> str:
    return f" and the error {short(chunks[-1].error, 90)}" if chunks and chunks[-1].error else ""


def _why_error(replicas, chunks: list[Chunk]) -> str:
    if any(each.is_lost or each.refuses or each.how == "refuse" for each in replicas):
        return ""
    if not chunks or chunks[-1].finish_reason != "error":
        return ""
    return (
        "No replica has failed here. If the message isn't one of yours, your own code raised an exception, and "
        "`except Exception` (yours, or the one in `stream_once`) turned it into a chunk."
    )


def _why_tokens(tokens: list[int], want: list[int]) -> str:
    if len(tokens) > len(want) or len(set(tokens)) < len(tokens):
        return (
            "Some tokens came twice. A replica that goes on must be asked for the rest: `request_to_go_on(request, "
            "token_ids)`, with *all* tokens that the reader has got, from every replica so far."
        )
    if tokens == want[: len(tokens)]:
        return (
            "The stream stopped too early. As long as a replica is left and moves are left, it goes on. `max_moves` is "
            "how many more replicas are asked *after* the first one."
        )
    return "Tokens are missing in the middle. Yield every chunk, and keep the list of what was yielded complete."


def check_nothing_left(replicas, case: str) -> None:
    for replica in replicas:
        if replica.load != 0:
            raise Mistake(
                f"afterwards, the load of {replica} should be 0; it is {replica.load}.",
                case=case,
                idea="It serves nothing any more. If its load stays up, it is never chosen again. If you use "
                "`stream_once`, it lowers the load when it ends or is closed, and yours is still open: "
                "`with closing(stream_once(replica, request)) as chunks:`. If not, `finally` runs in every case: after "
                "the last chunk, after an error, and if the reader leaves."
                if replica.load > 0
                else "Lower the load once for each time that you raised it.",
            )
        if any(not stream.is_closed for stream in replica.streams):
            raise Mistake(
                f"the stream of {replica} was not closed.",
                case=case,
                idea="`stream.close()` ends the connection. If a replica still runs, it aborts the request. Close it "
                "in "
                "every case, in `finally`.",
            )


def close_reader(reader, case: str) -> None:
    """What Python does when the reader leaves."""
    try:
        getattr(reader, "close", lambda: None)()
    except RuntimeError as error:
        raise Mistake(
            f"closing your generator raised RuntimeError: {error}.",
            case=case,
            idea="`close` raises GeneratorExit at the `yield`. Don't catch it (a bare `except:` does), and yield "
            "nothing after it.",
        ) from None
