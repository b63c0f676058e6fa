"""Judges 14.3, `sse_events`: what goes over the wire, event by event."""

import json
from collections.abc import Iterator

from lessons_lib.checks.exercise import Mistake, call, current_case, short
from lessons_lib.engine.outputs import NewToken
from lessons_lib.serving.http.chat_events import sse_events
from lessons_lib.viz.words import marked

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "lessons-bundled"}
ROLE = {"role": "assistant", "content": ""}


class ModelFailed(RuntimeError):
    pass


class EngineGone(Exception):
    """Not a RuntimeError: what `batches` raises may be of any type."""


def tokens(*texts: str, finish: str | None = None) -> list[NewToken]:
    return [
        NewToken("A", 0, 100 + index, text, finish if index == len(texts) - 1 else None)
        for index, text in enumerate(texts)
    ]


ONE = [tokens(" ran", finish="stop")]
THREE = [tokens(" ran"), tokens(" to"), tokens(" Tim", finish="length")]
UNEVEN = [tokens(" ran"), tokens(" to", " the", " red"), tokens(" ball", ".", finish="stop")]
HARD = [tokens("5 €\n"), tokens('say "hi"\n\ndata: x\u2028'), tokens("\\", finish="stop")]
HELD = [tokens(""), tokens(" dog", finish="stop")]


def check_sse_events(attempt) -> None:
    _streams(attempt, ONE, None, "one token, “ ran”, with finish_reason “stop”.")
    _streams(attempt, THREE, None, "three batches of one token: “ ran”, “ to”, “ Tim” (“length”).")
    _lazily(attempt)
    _streams(attempt, UNEVEN, None, "batches of 1, 3 and 2 tokens: a slow reader.")
    _streams(attempt, HELD, None, "a first batch whose text is empty, then “ dog” (“stop”).")
    _streams(attempt, HARD, None, "texts with line breaks, quotes, “€” and U+2028.")
    _streams(attempt, UNEVEN, 7, "batches of 1, 3 and 2 tokens; prompt_tokens=7.")
    _streams(attempt, ONE, 0, "one token; prompt_tokens=0.")
    _fails_at_once(attempt)
    _fails_later(attempt)
    _left_early(attempt)
    _another_head(attempt)


def _events(attempt, batches, prompt_tokens, case: str, head=HEAD) -> list[bytes]:
    own = dict(head)
    got = call(attempt, own, batches, prompt_tokens, case=case)
    if isinstance(got, (bytes, str)):
        raise Mistake(
            f"expected the events one after another; yours returned {type(got).__name__}.",
            case=case,
            idea="`yield` each event as soon as it is known. In one piece, nothing is streamed.",
        )
    try:
        events = list(got)
    except TypeError:
        raise Mistake(
            f"expected an iterator of events; yours returned {short(got)}.", case=case, idea="`yield` each event."
        ) from None
    if own != head:
        raise Mistake(
            f"your code changed `head`: it is {short(own)} now.",
            case=case,
            idea="The caller still uses it. Make a new dict for each event: `{**head, ...}`.",
        )
    return [_checked_bytes(each, case) for each in events]


def _checked_bytes(event, case: str) -> bytes:
    if isinstance(event, str):
        raise Mistake(
            f"events should be bytes; yours has the str {short(event, 60)}.",
            case=case,
            idea="Text becomes bytes with `.encode()`.",
        )
    if not isinstance(event, (bytes, bytearray)):
        raise Mistake(
            f"events should be bytes; yours yielded {short(event)}.",
            case=case,
            idea='`f"data: {json.dumps(fields)}\\n\\n".encode()`.',
        )
    return bytes(event)


def _data(event: bytes, number: int, case: str):
    """The JSON of an event, or "[DONE]"."""
    told = f"event {number + 1} is {short(event, 100)}"
    if not event.startswith(b"data:"):
        raise Mistake(
            f"{told}; it should begin with `data: `.",
            case=case,
            idea="A line of server-sent events begins with the name of its field.",
        )
    if not event.endswith(b"\n\n"):
        raise Mistake(
            f"{told}; it should end with an empty line.",
            case=case,
            idea="The empty line ends the event: `\\n\\n`. Until it comes, a client waits for more of the same event.",
        )
    if not event.isascii():
        raise Mistake(
            f"{told}: not all of it is ASCII.",
            case=case,
            idea="Some clients take U+2028 in a text for the end of a line. `json.dumps` escapes it, unless it is told `ensure_ascii=False`.",  # noqa: E501
        )
    body = event[5:].strip()
    if b"\n" in body:
        raise Mistake(
            f"{told}: it has line breaks inside.",
            case=case,
            idea="An event is one line here. `json.dumps` writes a line break of the text as `\\n`, so never put text into an event without it.",  # noqa: E501
        )
    if body == b"[DONE]":
        return "[DONE]"
    try:
        data = json.loads(body)
    except ValueError:
        raise Mistake(
            f"{told}; its data isn't JSON.",
            case=case,
            idea="`json.dumps(fields)`: `str` of a dict has single quotes and `None`.",
        ) from None
    if data == "[DONE]":
        raise Mistake(
            f"{told}: a JSON string.", case=case, idea="The last event is not JSON: `data: [DONE]`, without quotes."
        )
    if not isinstance(data, dict):
        raise Mistake(f"{told}; its data should be a JSON object.", case=case)
    return data


def _streams(attempt, batches, prompt_tokens, case: str, head=HEAD) -> None:
    events = _events(attempt, [list(batch) for batch in batches], prompt_tokens, case, head)
    wanted = [_data(event, 0, case) for event in sse_events(head, batches, prompt_tokens)]
    got = [_data(event, number, case) for number, event in enumerate(events)]
    _compare(got, wanted, batches, prompt_tokens, case)


def _texts(data: list) -> list[str | None]:
    return [_delta(each).get("content") for each in data if isinstance(each, dict) and each.get("choices")]


def _delta(event: dict) -> dict:
    choice = event["choices"][0] if event.get("choices") else {}
    return choice.get("delta") or {}


def _reasons(data: list) -> list:
    return [each["choices"][0].get("finish_reason") for each in data if isinstance(each, dict) and each.get("choices")]


def _compare(got: list, wanted: list, batches, prompt_tokens, case: str) -> None:
    _check_ends(got, case)
    for number, each in enumerate(got[:-1]):
        _check_fields(each, number, case)
    chunks, want_chunks = (
        [each for each in got if each != "[DONE]" and each.get("choices")],
        [each for each in wanted if each != "[DONE]" and each["choices"]],
    )
    _check_roles(chunks, case)
    _check_texts(_texts(got), _texts(wanted), batches, case)
    _check_reasons(_reasons(got), _reasons(wanted), case)
    _check_usage([each for each in got[:-1] if not each.get("choices")], got, wanted, batches, prompt_tokens, case)
    for number, (one, other) in enumerate(zip(chunks, want_chunks)):
        if one["choices"][0].get("index") != 0:
            raise Mistake(
                f"the choice of event {number + 1} should have the index 0; its fields are {short(one['choices'][0])}.",
                case=case,
                idea="With n = 2, the index says which completion a piece belongs to.",
            )
        more = sorted(set(one) - set(other) - {"system_fingerprint"})
        if more:
            raise Mistake(
                f"event {number + 1} has fields that weren't asked for: {', '.join(more)}.",
                case=case,
                idea="Without `prompt_tokens`, no event has `usage`."
                if "usage" in more
                else "Write the head, `choices`, and `usage` if it was asked for.",
            )
    if len(got) != len(wanted):
        raise Mistake(
            f"{len(wanted)} events should come; yours are {len(got)}.",
            case=case,
            idea="The role, one event per batch, the usage if asked for, and [DONE].",
        )


def _check_ends(got: list, case: str) -> None:
    if "[DONE]" not in got:
        raise Mistake(
            "the stream should end with `data: [DONE]`; yours doesn't.",
            case=case,
            idea="Without it, a client can't tell the end from a cut connection.",
        )
    if got.count("[DONE]") > 1 or got[-1] != "[DONE]":
        raise Mistake(
            f"`data: [DONE]` should come once, as the last event; yours is event {got.index('[DONE]') + 1} of {len(got)}.",  # noqa: E501
            case=case,
            idea="Clients stop reading there.",
        )


def _check_fields(event: dict, number: int, case: str) -> None:
    missing = [name for name in HEAD if name not in event]
    if missing:
        raise Mistake(
            f"event {number + 1} has no {', '.join(missing)}; its fields are {short(list(event))}.",
            case=case,
            idea="Every event begins with the fields of `head`: `{**head, ...}`.",
        )
    if "choices" not in event:
        raise Mistake(
            f"event {number + 1} has no `choices`; its fields are {short(list(event))}.",
            case=case,
            idea="Clients loop over `choices` in every event. The usage event has an empty list.",
        )
    if event["choices"] and "delta" not in event["choices"][0]:
        raise Mistake(
            f"the choice of event {number + 1} has no `delta`; its fields are {short(list(event['choices'][0]))}.",
            case=case,
            idea="`message` is for a response in one piece; a stream has `delta`.",
        )
    if event["choices"] and "finish_reason" not in event["choices"][0]:
        raise Mistake(
            f"the choice of event {number + 1} has no `finish_reason`.",
            case=case,
            idea="It is null in all events but the last one of the text.",
        )


def _check_roles(chunks: list, case: str) -> None:
    if not chunks:
        raise Mistake("no event has text.", case=case, idea="One event for each batch, after the one with the role.")
    if _delta(chunks[0]) != ROLE:
        if "role" in _delta(chunks[0]):
            raise Mistake(
                f"the first delta should be {ROLE}; yours is {short(_delta(chunks[0]))}.",
                case=case,
                idea="The role comes in an event of its own, with an empty text.",
            )
        raise Mistake(
            f"the first delta should be {ROLE}; yours is {short(_delta(chunks[0]))}.",
            case=case,
            idea="Begin with the role: clients make the message from it.",
        )
    later = [number for number, each in enumerate(chunks[1:], start=2) if "role" in _delta(each)]
    if later:
        raise Mistake(
            f"event {later[0]} names the role again.",
            case=case,
            idea="A delta says what is new. Clients append: some would show “assistantassistant”.",
        )


def _check_texts(got: list, want: list, batches, case: str) -> None:
    if got == want:
        return
    whole = "".join(token.text for batch in batches for token in batch)
    one_each = ["", *(token.text for batch in batches for token in batch)]
    cumulative, text = [""], ""
    for part in want[1:]:
        text += part
        cumulative.append(text)
    if got == ["", *(part for part in want[1:] if part)]:
        idea = "A batch without text gets an event too; here it is the first sign of life."
    elif got == one_each:
        idea = "That is an event for each token. A reader that is behind gets all of a batch in one event: it costs as much to send as one token."  # noqa: E501
    elif got == cumulative:
        idea = "A delta has only what is new; clients append it to what they have."
    elif got == ["", *(batch[-1].text for batch in batches)]:
        idea = "A batch has several tokens. Join the texts of all of them."
    elif got == ["", *(batch[0].text for batch in batches)]:
        idea = "A batch has several tokens. Yours sends only the first of each."
    elif got == ["", whole]:
        idea = "That is the whole text in one event. Send each batch as it comes."
    elif got[:-1] == want:
        idea = "An extra event carries no text. The `finish_reason` belongs in the event of the last batch."
    else:
        idea = "One event for each batch; its text is that of the batch's tokens, joined."
    raise Mistake(f"the deltas' texts should be {short(want)}; yours are {marked(want, got)}.", case=case, idea=idea)


def _check_reasons(got: list, want: list, case: str) -> None:
    if got == want:
        return
    if got[-1] is None and not any(got):
        idea = "The last token has a `finish_reason`; without it a client believes the answer was cut."
    elif any(reason == "" for reason in got):
        idea = "While it goes on, `finish_reason` is null: `None`, not an empty string."
    elif got[:-1] == want[:-1]:
        idea = "The reason is the token's own: “stop”, “length”, …"
    else:
        idea = "null in all events but the last one with text, which has the last token's reason."
    raise Mistake(f"the finish reasons should be {want}; yours are {short(got)}.", case=case, idea=idea)


def _check_usage(extra: list, got: list, wanted: list, batches, prompt_tokens, case: str) -> None:
    if prompt_tokens is None:
        if extra:
            raise Mistake(
                f"the client didn't ask for usage; yours has an event without choices: {short(extra[0])}.",
                case=case,
                idea="Some clients take `choices[0]` of every event and would fail. Send it only if `prompt_tokens` is given.",  # noqa: E501
            )
        return
    if not extra:
        on_last = [each for each in got[:-1] if isinstance(each.get("usage"), dict)]
        idea = (
            "It has an event of its own, with `choices: []`, after the last text."
            if on_last
            else "`prompt_tokens` is given (0 is a number too), so the client has asked for it: an event with `choices: []` before [DONE]."  # noqa: E501
        )
        raise Mistake("the usage event is missing.", case=case, idea=idea)
    if len(extra) > 1 or got[-2] is not extra[0]:
        raise Mistake(
            "the usage event should come once, right before [DONE].",
            case=case,
            idea="Only then all tokens are counted.",
        )
    want, have = wanted[-2]["usage"], extra[0].get("usage")
    if have != want:
        num_batches = len(batches)
        idea = "prompt_tokens, completion_tokens and total_tokens, which is their sum."
        if (
            isinstance(have, dict)
            and have.get("completion_tokens") == num_batches
            and num_batches != want["completion_tokens"]
        ):
            idea = "You count events. Batches have several tokens: count those."
        elif isinstance(have, dict) and have.get("completion_tokens") == want["completion_tokens"] + 1:
            idea = "The event with the role has no token."
        raise Mistake(f"the usage should be {want}; yours is {short(have)}.", case=case, idea=idea)
    without = [number for number, each in enumerate(got[:-2], start=1) if each.get("usage", "absent") is not None]
    if without:
        raise Mistake(
            f"event {without[0]} should have `usage: null`.",
            case=case,
            idea="If usage was asked for, all events but the usage event have the field, with null: clients can rely on its being there.",  # noqa: E501
        )


def _lazily(attempt) -> None:
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


def _fails_at_once(attempt) -> None:
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


def _fails_later(attempt) -> None:
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
                events.append(_checked_bytes(event, case))
        except (ModelFailed, EngineGone):
            raise Mistake(
                f"after {len(events)} events the exception came out.",
                case=case,
                idea="The head with status 200 has gone out; all that the client would see is a cut connection. Send an "  # noqa: E501
                'event `{"error": {"message": …, "type": "server_error"}}`, then [DONE].',
            ) from None
        got = [_data(event, number, case) for number, event in enumerate(events)]
        _check_ends(got, case)
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
        if any(_reasons(got)):
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


def _left_early(attempt) -> None:
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


def _another_head(attempt) -> None:
    head = {**HEAD, "id": "chatcmpl-2", "model": "another"}
    case = "two streams, one after the other, with different heads."
    events = [_data(event, number, case) for number, event in enumerate(_events(attempt, THREE, None, case, head))]
    wrong = [each for each in events[:-1] if any(each.get(name) != value for name, value in head.items())]
    if wrong:
        raise Mistake(
            f"an event should have the fields of `head`, {short(head)}; yours has {short(wrong[0])}.",
            case=case,
            idea="Take them from the argument.",
        )
