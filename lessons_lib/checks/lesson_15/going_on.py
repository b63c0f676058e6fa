"""Judges 15.2, `request_to_go_on`: what another replica is asked for, so that it gives the tokens that are missing."""

from lessons_lib.checks.exercise import Mistake, call, short

REQUEST = {"prompt": [5, 6, 7], "max_tokens": 10, "temperature": 0.8, "seed": 4, "stop": ["the end"]}


def check_request_to_go_on(attempt) -> None:
    for check in (
        _check_kind, _check_begun, _check_nothing_yet, _check_again, _check_repeated, _check_limit, _check_own_list,
        _check_none, _check_any_request,
    ):  # fmt: skip
        check(attempt)


def _go_on(attempt, request: dict, token_ids: list[int]):
    case = f"request_to_go_on({request}, {token_ids})"
    old = request.get("output_token_ids")
    before = list(old) if isinstance(old, list) else None
    try:
        got = call(attempt, request, token_ids, case=case)
    except Mistake as mistake:
        if before is not None and request.get("output_token_ids") is old and old != before:
            mistake.idea = (
                'The list in "output_token_ids" is the caller\'s, and `+=`, `extend` and `append` change it; a copy of '
                "the dict shares it. Make a new list: `[*old, *token_ids]`."
            )
        raise
    if got is not None and not isinstance(got, dict):
        raise Mistake(
            f"expected a dict like the request; yours returned {short(got, 60)}.",
            case=case,
            idea='Return a dict with the same fields and "output_token_ids", or None if no token is missing.',
        )
    return got, case


TOO_FEW = "The completion isn't complete: it has fewer than `max_tokens` tokens."


def _expect(attempt, request: dict, token_ids: list[int], if_none: str = TOO_FEW) -> None:
    want = {**request, "output_token_ids": [*request.get("output_token_ids", ()), *token_ids]}
    got, case = _go_on(attempt, request, token_ids)
    if got is None:
        raise Mistake(
            "expected a request; yours returned None.",
            case=case,
            idea=if_none,
        )
    if not want["output_token_ids"]:
        got = {"output_token_ids": [], **got}  # an empty list may be left out
    fields = ["prompt", "max_tokens", "output_token_ids", *want]
    for field in dict.fromkeys(fields):
        if field not in got:
            raise Mistake(f"{field!r} is missing in your request.", case=case, idea=_missing(field))
        value = list(got[field]) if isinstance(got[field], (list, tuple)) else got[field]
        if value != (list(want[field]) if isinstance(want[field], (list, tuple)) else want[field]):
            idea = _different(field, value, request, token_ids)
            if field == "prompt" and got.get("max_tokens") != request["max_tokens"]:
                idea += " And with the tokens in `output_token_ids`, `max_tokens` stays as it is."
            raise Mistake(
                f"{field!r} should be {short(want[field])}; yours is {short(got[field])}.", case=case, idea=idea
            )
    if extra := sorted(set(got) - set(want)):
        raise Mistake(
            f"your request has a field {extra[0]!r} that the first one doesn't have.",
            case=case,
            idea='The only new field is "output_token_ids". A server refuses fields that it doesn\'t know.',
        )


def _missing(field: str) -> str:
    if field == "output_token_ids":
        return "Without it, the other replica begins again, and the reader gets the beginning twice."
    if field in ("seed", "temperature"):
        return "Without it, the other replica draws other tokens than the first one would have drawn."
    if field == "stop":
        return "The strings that end the completion still end it, also if one of them began before the cut."
    return "All other fields stay as they are."


def _different(field: str, got, request: dict, token_ids: list[int]) -> str:
    if field == "prompt" and got == [*request["prompt"], *token_ids]:
        return (
            "As part of the prompt, the tokens don't count as generated: the seed starts again with its first random "
            "number, penalties don't see them, and a stop string that began before the cut isn't found."
        )
    if field == "prompt":
        return "The prompt stays the same."
    if field == "max_tokens":
        return (
            "`max_tokens` limits the whole completion, and the tokens in `output_token_ids` count. Leave it as it is."
        )
    if field == "output_token_ids" and any(isinstance(each, list | tuple) for each in got):
        return "A list of tokens is in it as one element. `extend` or `+` adds its tokens one by one."
    if field == "output_token_ids" and got == [*request["prompt"], *token_ids]:
        return "Only generated tokens belong there, not the prompt."
    if field == "output_token_ids" and got == list(token_ids):
        return (
            "This request had `output_token_ids` already: its completion was moved once before. The completion so far "
            "is "
            "those and the new ones."
        )
    if field == "output_token_ids" and got == list(request.get("output_token_ids", ())):
        return "The tokens that the reader got since then are missing."
    if field == "output_token_ids" and sorted(got) == sorted([*request.get("output_token_ids", ()), *token_ids]):
        return "In the order in which they were generated: the old ones first."
    if field == "seed":
        return "A random number depends on the seed and on how many tokens the completion has. So the seed stays."
    return "All other fields stay as they are."


def _check_kind(attempt) -> None:
    got, case = _go_on(attempt, dict(REQUEST), [8, 9])
    if got is None:
        raise Mistake(
            "expected a request; yours returned None.",
            case=case,
            idea="Two of ten tokens have arrived. The request to go on asks for the rest: `return {**request, ...}`.",
        )


def _check_begun(attempt) -> None:
    _expect(attempt, dict(REQUEST), [8, 9])


def _check_nothing_yet(attempt) -> None:
    request = dict(REQUEST)
    got, case = _go_on(attempt, request, [])
    if got is request:
        raise Mistake(
            "expected a new dict; yours returned the request itself.",
            case=case,
            idea="A change of one of the two would change the other. Make a new dict, also if no token came.",
        )
    if got is None or list(got.get("output_token_ids", [])):
        raise Mistake(
            f"expected the same request, with no output tokens; yours returned {short(got)}.",
            case=case,
            idea="The replica failed before its first token. The other one starts from the beginning.",
        )
    if {**got, "output_token_ids": []} != {**REQUEST, "output_token_ids": []}:
        raise Mistake(
            f"expected the same request; yours is {short(got)}.", case=case, idea="All other fields stay as they are."
        )


def _check_again(attempt) -> None:
    _expect(attempt, {**REQUEST, "output_token_ids": [8, 9]}, [3, 2])


def _check_repeated(attempt) -> None:
    for before, token_ids in (([7], [7, 8]), ([7, 8], [8]), ([7, 8], [7, 8])):
        request, want = {**REQUEST, "output_token_ids": before}, [*before, *token_ids]
        got, case = _go_on(attempt, request, token_ids)
        output = got.get("output_token_ids") if got is not None else None
        if isinstance(output, (list, tuple)) and list(output) != want and set(output) == set(want):
            raise Mistake(
                f"'output_token_ids' should be {want}; yours is {short(output)}.",
                case=case,
                idea="A model may generate a token twice in a row. The new tokens come after the old ones, and none of "
                "them was counted before: drop nothing.",
            )
        _expect(attempt, {**REQUEST, "output_token_ids": list(before)}, token_ids)


def _check_limit(attempt) -> None:
    for request, token_ids in (
        ({**REQUEST, "max_tokens": 3}, [8, 9, 8]),
        ({**REQUEST, "max_tokens": 5, "output_token_ids": [1, 2, 3]}, [8, 9]),
        ({**REQUEST, "max_tokens": 3, "output_token_ids": [1, 2, 3]}, []),
    ):
        got, case = _go_on(attempt, request, token_ids)
        if got is not None:
            idea = (
                "The completion has `max_tokens` tokens. Only the last message was lost, and no replica has anything "
                "left to generate."
            )
            if request.get("output_token_ids"):
                since = "two since: the completion has all five" if token_ids else "none since: that is all of them"
                idea = f"Three tokens before this request and {since}. {idea}"
            raise Mistake(f"expected None; yours returned {short(got)}.", case=case, idea=idea)
    prompt = (
        "The completion has one of four tokens. The prompt has more: does your code count those, too? `max_tokens` "
        "limits the completion alone."
    )
    _expect(attempt, {**REQUEST, "prompt": [5, 6, 7, 5, 6], "max_tokens": 4}, [8], if_none=prompt)
    _expect(attempt, {**REQUEST, "max_tokens": 3}, [8, 9])
    _expect(attempt, {**REQUEST, "max_tokens": 5, "output_token_ids": [1, 2]}, [8])


def _check_own_list(attempt) -> None:
    token_ids = [8, 9]
    got, case = _go_on(attempt, dict(REQUEST), token_ids)
    if got.get("output_token_ids") is token_ids:
        raise Mistake(
            '"output_token_ids" is the same list object as `token_ids`.',
            case=f"{case}; afterwards the balancer appends further tokens to its list.",
            idea="Both would grow together, and the request would change after it was sent. Make a new list.",
        )
    before = [8, 9]
    got, case = _go_on(attempt, {**REQUEST, "output_token_ids": before}, [])
    if got is not None and got.get("output_token_ids") is before:
        raise Mistake(
            '"output_token_ids" is the same list object as that of the first request.',
            case=case,
            idea="What is added to one of them would be added to the other. Make a new list, also if no token came.",
        )


def _check_none(attempt) -> None:
    request = {**REQUEST, "output_token_ids": None}
    case = f"request_to_go_on({request}, [8, 9])"
    idea = '"output_token_ids" is None, which means the same as a missing field.'
    try:
        got = call(attempt, request, [8, 9], case=case)
    except (TypeError, AttributeError) as error:
        raise Mistake(
            f"your code raised {type(error).__name__}: {error}",
            case=case,
            idea=f"{idea} `request.get(name, default)` returns None then, not the default.",
        ) from None
    if got is None or list(got.get("output_token_ids") or ()) != [8, 9]:
        raise Mistake(
            f"expected a request with the output tokens [8, 9]; yours returned {short(got)}.", case=case, idea=idea
        )


def _check_any_request(attempt) -> None:
    _expect(attempt, {"prompt": [1], "max_tokens": 4}, [7])
    _expect(attempt, {"prompt": [1], "max_tokens": 4, "frequency_penalty": 0.5, "user": "x", "min_tokens": 3}, [0, 0])
    _expect(attempt, {"prompt": [1], "max_tokens": 4, "temperature": 0.0, "seed": 0, "ignore_eos": False}, [7])
