"""Compares the events of 14.4 field by field: roles, texts, reasons and usage."""

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_14.event_reading import HEAD, ROLE, check_ends, delta_of, reasons_of, texts_of
from lessons_lib.viz.words import marked


def compare_events(got: list, wanted: list, batches, prompt_tokens, case: str) -> None:
    check_ends(got, case)
    for number, each in enumerate(got[:-1]):
        _check_fields(each, number, case)
    chunks, want_chunks = (
        [each for each in got if each != "[DONE]" and each.get("choices")],
        [each for each in wanted if each != "[DONE]" and each["choices"]],
    )
    _check_roles(chunks, case)
    _check_texts(texts_of(got), texts_of(wanted), batches, case)
    _check_reasons(reasons_of(got), reasons_of(wanted), case)
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
    if delta_of(chunks[0]) != ROLE:
        if "role" in delta_of(chunks[0]):
            raise Mistake(
                f"the first delta should be {ROLE}; yours is {short(delta_of(chunks[0]))}.",
                case=case,
                idea="The role comes in an event of its own, with an empty text.",
            )
        raise Mistake(
            f"the first delta should be {ROLE}; yours is {short(delta_of(chunks[0]))}.",
            case=case,
            idea="Begin with the role: clients make the message from it.",
        )
    later = [number for number, each in enumerate(chunks[1:], start=2) if "role" in delta_of(each)]
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
