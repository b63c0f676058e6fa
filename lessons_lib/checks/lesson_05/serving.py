"""What 05.2, 05.3 and the scoreboard share: a batch without a model, and what each of its steps must do."""

from collections.abc import Callable, Iterator
from random import Random
from traceback import extract_tb
from typing import Any

import torch

from lessons_lib.attention.packing import PackedBatch, unpack
from lessons_lib.batching.ragged_batching import RaggedBatch
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.checks.diagnosis import Watch
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.models.tiny_models import tiny_model

VOCABULARY = 97
# Batch slots, the row's limit or None, requests, and how many steps. "A 3+9" is a request A with a prompt of 3 tokens
# and an answer of 9; "~2": 2 of its tokens are in the cache; "@1": it comes after one step; "$": its first token is its
# end token.
Case = tuple[int, int | None, str, int]


class Serving:
    """A batch that is served step by step. Each step is held to what the exercise asks for.

    Attributes:
        computed: request -> its tokens in the cache.
        answers: request -> its answer, as it should be.
        row: the new tokens of each request in this step's row; None before `forward` is called.
    """

    def __init__(self, max_num_seqs: int, limit: int | None = None, model: Any = None) -> None:
        self.batch, self.limit = RaggedBatch(model, max_num_seqs), limit
        self.prompts: dict[str, list[int]] = {}
        self.computed: dict[str, list[int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.row: list[list[int]] | None = None

    def submit(self, request: Request) -> None:
        self.prompts[request.id] = list(request.prompt_ids)
        self.computed[request.id] = request.prompt_ids[: request.num_computed_tokens]
        self.answers[request.id] = []
        self.batch.submit(request)

    def step(self, step: Callable[..., None]) -> int:
        """Make a step.

        Returns:
            the number of tokens in its row.

        Raises:
            Mistake: the step does what it shouldn't.
        """
        batch, self.row = self.batch, None
        self.running, self.waiting = list(batch.running), list(batch.waiting)
        try:
            step(batch, *([] if self.limit is None else [self.limit]), forward=self.forward)
        except ValueError as error:
            if "pack" not in [frame.name for frame in extract_tb(error.__traceback__)]:
                raise
            raise Mistake(
                f"`pack` rejected your arguments: {str(error)[:160]}",
                idea="`forward` joins the caches of all running requests, so each needs at least one token in the row.",
            ) from error
        if self.row is None:
            raise Mistake(
                "your step never called the `forward` that it was given.",
                idea="Pack the tokens of all running requests, and call the argument, `forward(batch, packed)`, once.",
            )
        for request in self.running:
            self._check(request)
        self._check_lists()
        return sum(map(len, self.row))

    def forward(self, batch: RaggedBatch, packed: PackedBatch) -> torch.Tensor:
        """Stand in for a model: the next token depends on all tokens of the request that the rows, so far, have had."""
        if self.row is not None:
            raise Mistake(
                "a step should compute one row; yours started a second.",
                idea="Prompts and single tokens go into the same row. What doesn't fit is for the next step.",
            )
        if not isinstance(packed, PackedBatch):
            what = f"`forward` takes the batch and a PackedBatch; you passed {type(packed).__name__}."
            raise Mistake(what, idea="`pack(new_tokens, cached_lens)` makes it.")
        now, before, parts = ids(batch.running), ids(self.running), len(packed.new_lens)
        if now != before:
            raise Mistake(
                f"{told(before)} were running; when you called `forward`, `batch.running` was {told(now)}.",
                idea="It is in the order of admission. Leave the list as it is until the row is computed.",
            )
        if parts != len(before):
            raise Mistake(
                f"{told(before)} are running; your row has parts for {parts}.",
                idea="`forward` joins the caches of all running requests, so each needs a part of the row: a prompt "
                "for one, a single token for another.",
            )
        self.row = [part.tolist() for part in unpack(packed, packed.input_ids)]
        rests = [self._rest(request) for request in self.running]
        for request, part, rest, cached in zip(self.running, self.row, rests, packed.cached_lens):
            self._check_part(request, part, rest, cached)
        self._check_size(list(map(len, rests)))
        logits = ((torch.arange(VOCABULARY) * 37 + 11) % VOCABULARY / VOCABULARY).repeat(parts, 1)
        for index, (request, part) in enumerate(zip(self.running, self.row)):
            self.computed[request.id] += part
            logits[index, next_token(self.computed[request.id])] = 2
            if len(part) == len(rests[index]):
                self.answers[request.id] = [*self.answers[request.id], next_token(self.computed[request.id])]
        batch.packed = packed
        return logits

    def _rest(self, request: Request) -> list[int]:
        known = self.prompts[request.id] + self.answers[request.id]
        return known[len(self.computed[request.id]) :]

    def _check_part(self, request: Request, part: list[int], rest: list[int], cached: int) -> None:
        name, stored = request.id, len(self.computed[request.id])
        want = rest if self.limit is None else rest[: len(part)]
        if part != want:
            begins = "" if self.limit is None else "begin with "
            raise Mistake(
                f"{name}'s part of the row should {begins or 'be '}{short(rest)}; yours is {short(part)}.",
                idea="The row takes known tokens, prompt and answer, that aren't in the cache yet, in their order: "
                "`(prompt_ids + output_ids)[num_computed_tokens:]`.",
            )
        if cached != stored:
            changed = request.num_computed_tokens != stored
            raise Mistake(
                f"{name} has {stored} tokens in its cache; you passed {cached} to `pack`"
                f"{', and have changed `num_computed_tokens`' if changed else ''}.",
                idea="The number of cached tokens is `request.num_computed_tokens`, as it is before the pass.",
            )

    def _check_size(self, rests: list[int]) -> None:
        size, limit = sum(map(len, self.row or [])), self.limit or sum(rests)
        if size > limit:
            raise Mistake(
                f"the row has {size} tokens; the limit is {limit}.",
                idea="Each running request has one token for sure. Only what is left of the limit can be given away.",
            )
        if size < min(limit, sum(rests)):
            raise Mistake(
                f"the row has {size} tokens, although the limit is {limit} and {sum(rests)} are left to compute.",
                idea="After one token for each request, give the rest of the row to the prompts that have more.",
            )

    def _check(self, request: Request) -> None:
        name, answer, stored = request.id, self.answers[request.id], len(self.computed[request.id])
        if request.prompt_ids != self.prompts[name]:
            raise Mistake(
                f"{name}'s prompt had {len(self.prompts[name])} tokens before the step and has "
                f"{len(request.prompt_ids)} after it.",
                idea="`request.prompt_ids += ...` changes the request's own list; `prompt_ids + output_ids` makes a "
                "new one.",
            )
        if any(type(token) is not int for token in request.output_ids):
            kind = type(next(token for token in request.output_ids if type(token) is not int)).__name__
            raise Mistake(
                f"{name}'s answer should be {answer}; yours contains a {kind}.",
                idea="A token id is a plain int. `argmax(dim=-1)` gives a tensor with one token for each request, and "
                "`.tolist()` converts it.",
            )
        if request.output_ids != answer:
            some = f" {stored} of the prompt's {len(self.prompts[name])} tokens are computed." if not answer else ""
            raise Mistake(
                f"{name}'s answer should be {short(answer)}; it is {short(request.output_ids)}.{some}",
                idea="Row i of the logits belongs to request i of `batch.running`; its argmax is the next token, once "
                "all known tokens are computed. `request.append_token(token)` appends it.",
            )
        if request.num_computed_tokens != stored:
            raise Mistake(
                f"{name}'s num_computed_tokens should be {stored}; it is {request.num_computed_tokens}.",
                idea="It counts the tokens that are in the cache. Increase it by the number of tokens that this "
                "request had in the row.",
            )
        is_done = len(answer) == request.max_new_tokens or request.eos_token_id in answer
        decoding = RequestState.DECODING if answer else RequestState.PREFILLING
        if request.state is not (want := RequestState.FINISHED if is_done else decoding):
            raise Mistake(
                f"{name} should be {want.value} after the step; it is {request.state.value}.",
                idea="`request.append_token(token)` also updates the request's state.",
            )

    def _check_lists(self) -> None:
        batch = self.batch
        stay = [request for request in self.running if request.state is not RequestState.FINISHED]
        new = self.waiting[: batch.max_num_seqs - len(stay)]
        if (got := ids(batch.running)) != (want := ids([*stay, *new])):
            raise Mistake(
                f"{told(want)} should be running after the step; yours: {told(got)}.",
                idea="End with `retire(batch)`, which removes finished requests, and then `admit(batch)`, which fills "
                "the room from the front of the queue.",
            )
        if sorted(batch.caches) != sorted(want) or any(each.state is not RequestState.PREFILLING for each in new):
            raise Mistake(
                f"{told(want)} should be running, each with a cache. Caches exist for {told(sorted(batch.caches))}, "
                f"and the admitted ones are {told([each.state.value for each in new])}.",
                idea="`retire(batch)` also removes caches, and `admit(batch)` makes new ones and updates the state.",
            )


def ids(requests: Any) -> list[str]:
    return [request.id for request in requests]


def told(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "none"


def next_token(known: list[int]) -> int:
    return hash(tuple(known)) % VOCABULARY


def requests_of(text: str) -> Iterator[tuple[int, Request]]:
    """(after how many steps, request) of each request of a case."""
    for name, lengths, *marks in (each.split() for each in text.split(", ")):
        prompt, answer = map(int, lengths.split("+"))
        draw = Random(ord(name))
        tokens = [draw.randrange(VOCABULARY) for _ in range(prompt)]
        given = {mark[0]: int(mark[1:] or 0) for mark in marks}
        end = next_token(tokens) if "$" in given else None
        yield given.get("@", 0), Request(name, tokens, answer, end, num_computed_tokens=given.get("~", 0))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    max_num_seqs, limit, text, steps = case
    serving, coming = Serving(max_num_seqs, limit, tiny_model("qwen2")), list(requests_of(text))

    def serve() -> None:
        for index in range(steps):
            for when, request in coming:
                if when == index:
                    serving.submit(request)
            if serving.batch.running:
                try:
                    serving.step(attempt)
                except Mistake as mistake:
                    raise Mistake(f"step {index + 1}: {mistake.what}", idea=mistake.idea) from mistake.__cause__

    watch("the steps", serve)  # as one: how many there are is up to the answer


def tell(case: Case) -> str:
    max_num_seqs, limit, text, steps = case
    parts = []
    for when, request in requests_of(text):
        marks = [f"prompt {len(request.prompt_ids)}", f"max_tokens {request.max_new_tokens}"]
        marks += [f"{request.num_computed_tokens} tokens in its cache"] if request.num_computed_tokens else []
        marks += ["its first token is its end token"] if request.eos_token_id is not None else []
        marks += [f"comes after step {when}"] if when else []
        parts.append(f"{request.id} ({', '.join(marks)})")
    row = "" if limit is None else f", a limit of {limit} tokens"
    return f"max_num_seqs={max_num_seqs}{row}: {', '.join(parts)}; up to step {steps}."


def smaller(case: Case) -> Iterator[Case]:
    max_num_seqs, limit, text, steps = case
    if steps > 1:
        yield max_num_seqs, limit, text, steps - 1
    requests = text.split(", ")
    for index in range(len(requests))[::-1]:
        if len(requests) > 1:
            yield max_num_seqs, limit, ", ".join(requests[:index] + requests[index + 1 :]), steps
    if limit is not None and limit > 8:
        yield max_num_seqs, limit // 2, text, steps


def random_case(seed: int, limit: int | None = None) -> Case:
    """Nine requests that come and go."""
    draw = Random(seed)
    requests = [f"{name} {draw.choice((1, 3, 8, 9))}+{draw.choice((1, 2, 5, 9))}" for name in "ABCDEFGHI"]
    coming = [f"{each} @{draw.randint(0, 6)}" for each in requests[4:]]
    return draw.randint(2, 4), limit, ", ".join(requests[:4] + coming), 60
