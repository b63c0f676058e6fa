"""Lesson 14: the stream of one chat completion, event by event. `generation` does the same for several at once, with
log-probabilities and all other fields."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lessons_lib.engine.outputs import NewToken

DONE = b"data: [DONE]\n\n"


class ChatChunks:
    """Writes the events of one streamed chat completion. It knows the fields, and not when an event is due.

    Each event is bytes, from "data: " to the empty line. All of it is ASCII.
    """

    def __init__(self, head: Mapping[str, Any], prompt_tokens: int | None = None):
        """
        Args:
            head: the first fields of each event: id, object, created, model.
            prompt_tokens: None if the client didn't ask for usage; otherwise all events have the field.
        """
        self.head, self.prompt_tokens = head, prompt_tokens

    def role(self) -> bytes:
        """Says that the assistant speaks."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def text(self, text: str, finish_reason: str | None = None) -> bytes:
        """Text that is new."""
        return self._chunk({"content": text}, finish_reason)

    def usage(self, completion_tokens: int) -> bytes:
        """The number of tokens of prompt and completion."""
        assert self.prompt_tokens is not None, "the client didn't ask for usage: prompt_tokens is None."
        total = self.prompt_tokens + completion_tokens
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
        return _event({**self.head, "choices": [], "usage": usage})

    def error(self, error: Exception) -> bytes:
        """Says that the answer isn't complete."""
        return _event({"error": {"message": str(error), "type": "server_error"}})

    def _chunk(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        usage = {} if self.prompt_tokens is None else {"usage": None}
        return _event({**self.head, "choices": [choice], **usage})


def _event(fields: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode("ascii")


def sse_events(
    head: Mapping[str, Any], batches: Iterable[list[NewToken]], prompt_tokens: int | None = None
) -> Iterator[bytes]:
    """The events of one streamed chat completion, each as soon as it can be sent.

    Args:
        head, prompt_tokens: see `ChatChunks`. `prompt_tokens` is None if the client didn't ask for usage.
        batches: lists of tokens, as a stream of `AsyncEngine` yields them. Each has `text`; the very last token has a
            `finish_reason`, all others None. May raise at any time.

    Yields:
        bytes: an event.
    """
    chunks, num_tokens = ChatChunks(head, prompt_tokens), 0
    try:
        for tokens in batches:
            if not num_tokens:
                yield chunks.role()
            num_tokens += len(tokens)
            yield chunks.text("".join(token.text for token in tokens), tokens[-1].finish_reason)
    except Exception as error:
        if not num_tokens:
            raise  # nothing was sent, so the error can still have a status of its own
        yield chunks.error(error)
    else:
        if prompt_tokens is not None:
            yield chunks.usage(num_tokens)
    yield DONE
