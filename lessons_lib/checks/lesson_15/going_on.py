"""15.2, `request_to_go_on`: what another replica is asked for, so that it gives the tokens that are missing."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Shown, Task, Watch, frozen, mistakes

Case = tuple[dict[str, Any], list[int]]
OLD = "output_token_ids"
OTHERS = ("temperature", "seed", "stop", "ignore_eos", "logprobs", "top_k", "priority")


def cases() -> Iterator[Case]:
    """Smallest first: the request's fields beside the prompt, and the tokens."""
    three, five, ten = ({"max_tokens": limit} for limit in (3, 5, 10))
    for fields, token_ids in (
        (ten, []), (ten | {"temperature": 0.8, "seed": 4, "stop": ["the end"]}, [8, 9]),
        (ten | {OLD: [8, 9]}, [3, 2]), (ten | {OLD: [8, 9]}, []), (ten | {OLD: [7, 8]}, [7, 8]), (three, [8, 9, 8]),
        (five | {OLD: [1, 2, 3]}, [8, 9]), (three | {OLD: [1, 2, 3]}, []), (three, [8, 9]), (ten | {OLD: None}, [8]),
        (ten | {"temperature": 0.0, "seed": 0, "ignore_eos": False, "stop": None}, [7]),
    ):  # fmt: skip
        yield {"prompt": [5, 6, 7], **fields}, token_ids
    draw = Random(2)
    for _ in range(25):
        extras = {name: draw.randrange(3) for name in OTHERS[:4] if draw.random() < 0.4}
        earlier = {OLD: [draw.randrange(9) for _ in range(draw.randrange(4))]} if draw.random() < 0.6 else {}
        request = {"prompt": [draw.randrange(9) for _ in range(draw.randint(1, 6))], "max_tokens": draw.randint(3, 8)}
        yield {**request, **extras, **earlier}, [draw.randrange(9) for _ in range(draw.randrange(5))]


def smaller(case: Case) -> Iterator[Case]:
    request, token_ids = case
    for name in request:
        if name not in ("prompt", "max_tokens"):
            yield {each: value for each, value in request.items() if each != name}, token_ids
    if token_ids:
        yield request, token_ids[:-1]
    if request.get(OLD):
        yield request | {OLD: request[OLD][:-1]}, token_ids


def run(attempt: Any, case: Case, watch: Watch) -> None:
    request, token_ids = case
    names, given = [*request, OLD], request.get(OLD)
    made: list[Any] = []

    def returns(got: Any) -> Any:
        made.append(got)
        return Shown("a request") if isinstance(got, dict) else got

    def look() -> dict[str, Any]:
        result = made[0]
        if not isinstance(result, dict):
            return {}
        seen = {name: value_of(result, name) for name in names}
        seen["the list of fields that `request` doesn't have"] = sorted(set(result) - {*names})
        token_ids.append(99)
        seen[f"`{OLD}`, once the caller appends 99 to its list `token_ids`,"] = value_of(result, OLD)
        if given is not None:
            given.append(98)
            seen[f'`{OLD}`, once the caller appends 98 to its `request["{OLD}"]`,'] = value_of(result, OLD)
        return seen

    watch("the call", attempt, request, token_ids, look=look, returns=returns, is_new=True)


def value_of(result: dict[str, Any], name: str) -> Any:
    """An empty list of tokens may be missing or None, and a tuple counts as a list."""
    value = result.get(name)
    if name != OLD:
        return result.get(name, Shown("missing"))
    return frozen(list(value or [])) if isinstance(value, list | tuple | None) else Shown(f"a {type(value).__name__}")


def tell(case: Case) -> str:
    return f"`request_to_go_on({case[0]}, {case[1]})`."


def facts(case: Case) -> dict[str, Any]:
    earlier = case[0].get(OLD) or []
    return {"earlier": earlier, "new": case[1], "all": [*earlier, *case[1]], "limit": case[0]["max_tokens"]}


MISTAKES = """
Without `output_token_ids` the next replica begins again, and the reader gets the beginning twice. (`extend` returns
None.)
- return { => return dict(request)
`{earlier}` came before this request, and these tokens belong to the completion, too. The completion so far is `{all}`.
= output_token_ids = list(token_ids)
The field `output_token_ids` already has `{earlier}`. The tokens received since then are missing.
= output_token_ids = list(request.get("output_token_ids") or token_ids)
Tokens stay in the order in which they were generated: first `{earlier}`, then `{new}`.
= output_token_ids = [*token_ids, *(request.get("output_token_ids") or ())]
`output_token_ids` are generated tokens. Those of the prompt don't belong there.
= output_token_ids = [*request["prompt"], *(request.get("output_token_ids") or ()), *token_ids]
`append` adds a list as a single element. `extend`, `+` or `[*a, *b]` add its tokens one by one.
= output_token_ids = [*(request.get("output_token_ids") or ()), token_ids]
A model may generate the same token twice in a row. All of `{new}` are new: drop nothing.
= output_token_ids = list(dict.fromkeys([*(request.get("output_token_ids") or ()), *token_ids]))
The field may be missing: `request["output_token_ids"]` raises KeyError then, and `request.get(...)` returns None.
= output_token_ids = [*request["output_token_ids"], *token_ids]
or = output_token_ids = request.get("output_token_ids") + token_ids
`"output_token_ids": None` means the same as a missing field. `get(name, default)` returns None then, not the default.
= output_token_ids = [*request.get("output_token_ids", ()), *token_ids]
or = output_token_ids = request.get("output_token_ids", []) + token_ids
The completion has all of its {limit} tokens, so nothing is left to generate: return None.
~ >= request["max_tokens"] => > request["max_tokens"]
The completion has fewer than {limit} tokens. The prompt doesn't count.
~ len(output_token_ids) >= => len(request["prompt"]) + len(output_token_ids) >=
The completion has `{all}`, fewer than {limit} tokens, so the rest is still asked for.
~ >= request["max_tokens"] => + 1 >= request["max_tokens"]
`max_tokens` limits the whole completion: `{earlier}` from before this request and `{new}` make all {limit}.
~ len(output_token_ids) >= => len(token_ids) >=
or ~ if len(output_token_ids) >= => if token_ids and len(output_token_ids) >=
Your function returns None although tokens are missing. Is a `return` missing? (`update` and `append` return None, too.)
- return {
A replica may be lost before its first token. The next one then gets the request as it was, in a new dict.
~ if len(output_token_ids) => if not token_ids or len(output_token_ids)
A new dict is expected, also if no token came: a change of one would change the other.
~ return {**request, => return request if not output_token_ids else {**request,
This changes the request that the caller passed in. `{{**request, "name": value}}` makes a new dict.
- return {
+ request["output_token_ids"] = output_token_ids
+ return request
The list in `request["output_token_ids"]` is the caller's, and a copied dict shares it: `+=`, `extend` and `append`
change it. Make a new list, `[*old, *token_ids]`.
- output_token_ids =
+ output_token_ids = request.get("output_token_ids") or []
+ output_token_ids += token_ids
Your request contains one of the caller's own lists, so both grow together. It needs a list of its own.
= output_token_ids = request["output_token_ids"] + token_ids if request.get("output_token_ids") else token_ids
or < output_token_ids = => if not token_ids: return dict(request)
A random number depends on the seed and on how many tokens the completion has. So the seed stays as it is.
~ {**request, => {**request, "seed": request.get("seed", 0) + len(token_ids),
"""
GO_ALONG = (
    "All other fields go along, whatever they are: without its seed or its stop strings, the rest would be another one."
)

TASK = Task(
    reference="lessons_lib.serving.failover:request_to_go_on",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    facts=facts,
    about=dict.fromkeys(OTHERS, GO_ALONG)
    | {
        "returned": "A new dict, from the request and the new tokens; None if all `max_tokens` tokens are there.",
        "prompt": "As part of the prompt, these tokens don't count as generated: the seed starts again with its first "
        "random number, penalties don't see them, and a stop string that began before the cut isn't found.",
        "max_tokens": "`max_tokens` limits the whole completion, and tokens in `output_token_ids` count. Leave it as "
        "it is.",
        "the list of fields that `request` doesn't have": "`output_token_ids` is the only new field. A server refuses "
        "fields that it doesn't know.",
        OLD: "A list of the tokens of the completion so far: first those that `request` has, then the new ones.",
        "raised ValueError": "If no token is missing, return None.",
        "raised KeyError": "`request` need not have this field. It always has `prompt` and `max_tokens`.",
        "raised TypeError": "Is something None? `request.get(name) or []` is a list if a field is missing or None. "
        "`extend` and `update` return None.",
    },
)

EXERCISE = TASK.exercise(
    id="15.2",
    title="a stream that goes on",
    hints=(
        "Answer two questions in this order. Which tokens does the completion have in all? And is it complete?",
        'The new request differs from the old one in one field only: `{**request, "name": value}` is a copy of a '
        "dict with one field changed. Compare the number of all tokens with `max_tokens`. `request.get(name) or ()` "
        "is an empty tuple if the field is missing or None.",
        '`output_token_ids = [*(request.get("output_token_ids") or ()), *token_ids]`; None if '
        '`len(output_token_ids) >= request["max_tokens"]`; otherwise `{**request, "output_token_ids": '
        "output_token_ids}`.",
    ),
    points=1,
)
