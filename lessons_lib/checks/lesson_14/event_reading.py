"""Reads what an answer to 14.4 sends: bytes, one line of JSON each, and an end."""

import json

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.engine.outputs import NewToken

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "lessons-bundled"}
ROLE = {"role": "assistant", "content": ""}


def tokens(*texts: str, finish: str | None = None) -> list[NewToken]:
    return [
        NewToken("A", 0, 100 + index, text, finish if index == len(texts) - 1 else None)
        for index, text in enumerate(texts)
    ]


THREE = [tokens(" ran"), tokens(" to"), tokens(" Tim", finish="length")]


def events_of(attempt, batches, prompt_tokens, case: str, head=HEAD) -> list[bytes]:
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
    except AssertionError as error:
        if prompt_tokens is None or "didn't ask for usage" not in str(error):
            raise
        raise Mistake(
            f"your code raised AssertionError: {error}",
            case=case,
            idea="`ChatChunks` has to know the length of the prompt: `ChatChunks(head, prompt_tokens)`.",
        ) from None
    if own != head:
        raise Mistake(
            f"your code changed `head`: it is {short(own)} now.",
            case=case,
            idea="The caller still uses it. Make a new dict for each event: `{**head, ...}`.",
        )
    return [checked_bytes(each, case) for each in events]


def checked_bytes(event, case: str) -> bytes:
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


def data_of(event: bytes, number: int, case: str):
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


def texts_of(data: list) -> list[str | None]:
    return [delta_of(each).get("content") for each in data if isinstance(each, dict) and each.get("choices")]


def delta_of(event: dict) -> dict:
    choice = event["choices"][0] if event.get("choices") else {}
    return choice.get("delta") or {}


def reasons_of(data: list) -> list:
    return [each["choices"][0].get("finish_reason") for each in data if isinstance(each, dict) and each.get("choices")]


def check_ends(got: list, case: str) -> None:
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
