"""Lesson 14: the stream of one chat completion, event by event. `generation` does the same for several at once, with
log-probabilities and all other fields."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lessons_lib.engine.outputs import NewToken


def sse_events(
    head: Mapping[str, Any], batches: Iterable[list[NewToken]], prompt_tokens: int | None = None
) -> Iterator[bytes]:
    """The events of one streamed chat completion, each as soon as it can be sent.

    Args:
        head: the first fields of each event: id, object, created, model.
        batches: lists of tokens, as a reader finds them in its mailbox. Each has `text`; the very last token has a
            `finish_reason`, all others None. May raise at any time.
        prompt_tokens: for the usage event; None if the client didn't ask for one.

    Yields:
        bytes: an event, from "data: " to the empty line. All of it is ASCII.
    """
    usage = {} if prompt_tokens is None else {"usage": None}

    def event(fields: Mapping[str, Any]) -> bytes:
        return f"data: {json.dumps(fields)}\n\n".encode("ascii")

    def chunk(delta: dict[str, str], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return event({**head, "choices": [choice], **usage})

    completion_tokens = 0
    try:
        for tokens in batches:
            if not completion_tokens:
                yield chunk({"role": "assistant", "content": ""}, None)
            completion_tokens += len(tokens)
            yield chunk({"content": "".join(token.text for token in tokens)}, tokens[-1].finish_reason)
    except Exception as error:
        if not completion_tokens:
            raise  # nothing was sent, so the error can still have a status of its own
        yield event({"error": {"message": str(error), "type": "server_error"}})
    else:
        if prompt_tokens is not None:
            total = prompt_tokens + completion_tokens
            counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
            yield event({**head, "choices": [], "usage": counts})
    yield b"data: [DONE]\n\n"
