"""Judges 14.4 when batches come late or fail, and when the reader leaves."""

from collections.abc import Iterator

from lessons_lib.checks.exercise import Mistake, current_case, short
from lessons_lib.checks.lesson_14.event_reading import (
    HEAD,
    THREE,
    check_ends,
    checked_bytes,
    data_of,
    reasons_of,
    tokens,
)
from lessons_lib.engine.outputs import NewToken


class ModelFailed(RuntimeError):
    pass


class EngineGone(Exception):
    """Not a RuntimeError: what `batches` raises may be of any type."""


def check_lazily(attempt) -> None:
    case = "three batches; the second isn't there before the events of the first were read."
    taken: list[int] = []

    def arriving() -> Iterator[list[NewToken]]:
        for number, batch in enumerate(THREE):
            taken.append(number)
            yield batch

    current_case.text = case
    got = attempt(dict(HEAD), arriving(), None)
    if isinstance(got, (list, tuple)) or not hasattr(got, "__next__"):
        raise Mistake(
            f"events should come one by one; yours returned a {type(got).__name__} with all of them.",
            case=case,
            idea="`yield` each event as soon as it is known: the reader wants the first word before the last is computed.",  # noqa: E501
        )
    next(got)
    if not taken:
        raise Mistake(
            "the first event was sent before there was a token.",
            case=case,
            idea="With the first event, the status 200 goes out. If the request fails before its first token, it is too late "  # noqa: E501
            "for a status like 400 or 503. Wait for the first batch, then send the role.",
        )
    next(got)
    if len(taken) > 1:
        raise Mistake(
            f"{len(taken)} batches were taken before the text of the first was sent.",
            case=case,
            idea="Send the text of a batch before you wait for the next one.",
        )
    list(got)


def check_fails_at_once(attempt) -> None:
    case = "`batches` raises before the first token."

    def failing() -> Iterator[list[NewToken]]:
        raise ModelFailed("the engine is dead")
        yield

    current_case.text = case
    try:
        events = list(attempt(dict(HEAD), failing(), None))
    except ModelFailed:
        return
    raise Mistake(
        f"the exception should come out; yours sent {short(b''.join(events) if all(isinstance(e, bytes) for e in events) else events, 90)}.",  # noqa: E501
        case=case,
        idea="Nothing has been sent, so the server can still answer with a status of its own. Let the exception out.",
    )


def check_fails_later(attempt) -> None:
    for prompt_tokens, failure in ((None, ModelFailed), (7, ModelFailed), (None, EngineGone)):
        case = f"`batches` raises {failure.__name__}(“the GPU is gone”) after its first batch" + (
            f"; prompt_tokens={prompt_tokens}." if prompt_tokens else "."
        )

        def failing() -> Iterator[list[NewToken]]:
            yield tokens(" ran")
            raise failure("the GPU is gone")

        current_case.text = case
        events = []
        try:
            for event in attempt(dict(HEAD), failing(), prompt_tokens):
                events.append(checked_bytes(event, case))
        except (ModelFailed, EngineGone):
            raise Mistake(
                f"after {len(events)} events the exception came out.",
                case=case,
                idea="The head with status 200 has gone out; all that the client would see is a cut connection. Send an "  # noqa: E501
                'event `{"error": {"message": …, "type": "server_error"}}`, then [DONE].',
            ) from None
        got = [data_of(event, number, case) for number, event in enumerate(events)]
        check_ends(got, case)
        errors = [each for each in got[:-1] if "error" in each]
        if not errors:
            raise Mistake(
                "the stream ended as if all was well.",
                case=case,
                idea="The client must learn that the answer isn't complete: an event with `error`, before [DONE].",
            )
        error = errors[0]["error"]
        if (
            not isinstance(error, dict)
            or error.get("message") != "the GPU is gone"
            or error.get("type") != "server_error"
        ):
            raise Mistake(
                f"the error should be {{'message': 'the GPU is gone', 'type': 'server_error'}}; yours is {short(error)}.",  # noqa: E501
                case=case,
                idea="The message is `str(error)`.",
            )
        more = sorted(set(errors[0]) - {"error"})
        if more:
            raise Mistake(
                f"the error event should have the field `error` only; yours also has {', '.join(more)}.",
                case=case,
                idea="It isn't a chunk of the completion, so it comes without `head`, `choices` and `usage`.",
            )
        if any(reasons_of(got)):
            raise Mistake(
                "a failed stream has no finish reason; yours has one.",
                case=case,
                idea="It would say that the choice is complete.",
            )
        if [each for each in got[:-1] if "choices" in each and not each["choices"]]:
            raise Mistake(
                "a failed stream has no usage event; yours has one.",
                case=case,
                idea="Usage comes at the regular end only: `else` of the `try`.",
            )
        if got[-2] is not errors[0] or len(errors) > 1:
            raise Mistake("the error should come once, right before [DONE].", case=case)


def check_left_early(attempt) -> None:
    for num_read in (1, 2):
        case = f"three batches; the reader leaves after {num_read} event{'s' if num_read > 1 else ''}: `close()`."
        current_case.text = case
        got = attempt(dict(HEAD), iter(THREE), None)
        for _ in range(num_read):
            next(got)
        try:
            getattr(got, "close", lambda: None)()
        except RuntimeError:
            raise Mistake(
                "the generator was closed, and yielded one more event.",
                case=case,
                idea="Closing raises GeneratorExit at the `yield`. A bare `except:`, `except BaseException` or a `yield` in "  # noqa: E501
                "`finally` answers it with an event that has no reader. `except Exception` lets it pass.",
            ) from None
