"""Judges 14.4, `sse_events`: what goes over the wire, event by event."""

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_14.broken_streams import (
    check_fails_at_once,
    check_fails_later,
    check_lazily,
    check_left_early,
)
from lessons_lib.checks.lesson_14.event_fields import compare_events
from lessons_lib.checks.lesson_14.event_reading import HEAD, THREE, data_of, events_of, tokens
from lessons_lib.serving.http.chat_events import sse_events

ONE = [tokens(" ran", finish="stop")]
UNEVEN = [tokens(" ran"), tokens(" to", " the", " red"), tokens(" ball", ".", finish="stop")]
HARD = [tokens("5 €\n"), tokens('say "hi"\n\ndata: x\u2028'), tokens("\\", finish="stop")]
HELD = [tokens(""), tokens(" dog", finish="stop")]


def check_sse_events(attempt) -> None:
    _streams(attempt, ONE, None, "one token, “ ran”, with finish_reason “stop”.")
    _streams(attempt, THREE, None, "three batches of one token: “ ran”, “ to”, “ Tim” (“length”).")
    check_lazily(attempt)
    _streams(attempt, UNEVEN, None, "batches of 1, 3 and 2 tokens: a slow reader.")
    _streams(attempt, HELD, None, "a first batch whose text is empty, then “ dog” (“stop”).")
    _streams(attempt, HARD, None, "texts with line breaks, quotes, “€” and U+2028.")
    _streams(attempt, UNEVEN, 7, "batches of 1, 3 and 2 tokens; prompt_tokens=7.")
    _streams(attempt, ONE, 0, "one token; prompt_tokens=0.")
    check_fails_at_once(attempt)
    check_fails_later(attempt)
    check_left_early(attempt)
    _another_head(attempt)


def _streams(attempt, batches, prompt_tokens, case: str, head=HEAD) -> None:
    events = events_of(attempt, [list(batch) for batch in batches], prompt_tokens, case, head)
    wanted = [data_of(event, 0, case) for event in sse_events(head, batches, prompt_tokens)]
    got = [data_of(event, number, case) for number, event in enumerate(events)]
    compare_events(got, wanted, batches, prompt_tokens, case)


def _another_head(attempt) -> None:
    head = {**HEAD, "id": "chatcmpl-2", "model": "another"}
    case = "two streams, one after the other, with different heads."
    events = [data_of(event, number, case) for number, event in enumerate(events_of(attempt, THREE, None, case, head))]
    wrong = [each for each in events[:-1] if any(each.get(name) != value for name, value in head.items())]
    if wrong:
        raise Mistake(
            f"an event should have the fields of `head`, {short(head)}; yours has {short(wrong[0])}.",
            case=case,
            idea="Take them from the argument.",
        )
