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
from lessons_lib.checks.lesson_03.books import counted
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
                idea="Call the argument, `forward(batch, packed)`, once, and not a function of the library: a caller "
                "may pass another one.",
            )
        for request, part in zip(self.running, self.row):
            self._check(request, part)
        self._check_lists()
        return sum(map(len, self.row))

    def forward(self, batch: RaggedBatch, packed: PackedBatch) -> torch.Tensor:
        """Stand in for a model: the next token depends on all tokens of the request that the rows, so far, have had."""
        if self.row is not None:
            raise Mistake(
                "a step should compute one row; yours started a second.",
                idea="A step calls `forward` once, with the prompts and the single tokens of all running requests. The "
                "caller makes the next step.",
            )
        if not isinstance(packed, PackedBatch):
            what = f"`forward` takes the batch and a PackedBatch; you passed {type(packed).__name__}."
            raise Mistake(what, idea="`pack(new_tokens, cached_lens)` makes it.")
        now, before, parts = ids(batch.running), ids(self.running), len(packed.new_lens)
        if now != before:
            raise Mistake(
                f"{told(before)} were running; when you called `forward`, `batch.running` was {told(now)}.",
                idea="Leave the list as it is until the row is computed: the logits and the caches follow its order. "
                "To go over the requests in another order, sort a copy.",
            )
        if parts != len(before):
            raise Mistake(
                f"{told(before)} should be in the row; yours has {counted(parts, 'part')}.",
                idea="`forward` joins the caches of all running requests, so each needs a part of the row, at least "
                "one token: prompts and single tokens together.",
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
        if part != want or not part:
            others = [each for each in self.running if each is not request]
            if part and any(part == self._rest(each)[: len(part)] for each in others):
                idea = "That is another request's part. The logits and the caches follow `batch.running`, so the row "
                idea += "must, too: don't sort it."
            elif not part:
                idea = "Each running request needs at least one token in the row: the next of its known tokens, prompt "
                idea += "and answer, that isn't computed."
            else:
                idea = "You compute cached tokens again. " if part[-len(rest) :] == rest else ""
                idea += (
                    f"{name} has {counted(stored, 'token')} in its cache. Take its known tokens from there on, in a "
                )
                idea += "prompt or not: `(prompt_ids + output_ids)[num_computed_tokens:]`."
            begins = "be" if self.limit is None else "begin with"
            raise Mistake(f"{name}'s part of the row should {begins} {short(rest)}; yours is {short(part)}.", idea=idea)
        if cached != stored:
            changed = request.num_computed_tokens != stored
            raise Mistake(
                f"{name} has {counted(stored, 'token')} in its cache; you passed {cached} to `pack`"
                f"{', and have changed `num_computed_tokens`' if changed else ''}.",
                idea="Pass `request.num_computed_tokens`, as it is *before* the pass, in the middle of a prompt, too. "
                "Increase it after `forward`.",
            )

    def _check_size(self, rests: list[int]) -> None:
        size, limit, parts = sum(map(len, self.row or [])), self.limit or sum(rests), len(rests)
        fits = min(limit, sum(rests))
        if size != fits:
            left = f"the limit is {limit}" if size > fits else f"{limit} fit, and {sum(rests)} are left to compute"
            raise Mistake(
                f"the row has {counted(size, 'token')}; {left}.",
                idea=f"A limit of {limit} for {counted(parts, 'running request')}: one token each, and {limit - parts} "
                "more to share. What one request takes is gone, and what it doesn't need is for the next.",
            )

    def _check(self, request: Request, part: list[int]) -> None:
        name, answer, stored = request.id, self.answers[request.id], len(self.computed[request.id])
        got = request.output_ids
        if request.prompt_ids != self.prompts[name]:
            raise Mistake(
                f"{name}'s prompt had {len(self.prompts[name])} tokens before the step and has "
                f"{len(request.prompt_ids)} after it.",
                idea="Don't assign to `request.prompt_ids`, and don't use `+=` on it: `prompt_ids + output_ids` makes "
                "a new list.",
            )
        if request.num_computed_tokens != stored:
            raise Mistake(
                f"{name}'s num_computed_tokens should be {stored}; it is {request.num_computed_tokens}.",
                idea=f"{name} had {counted(stored - len(part), 'token')} in its cache, and this row adds {len(part)}, "
                "even if the request has finished. The new token isn't among them: its key and value are computed in "
                "the next step.",
            )
        if any(type(token) is not int for token in got):
            kind = type(next(token for token in got if type(token) is not int)).__name__
            raise Mistake(
                f"{name}'s answer should be {answer}; yours contains a {kind}.",
                idea="A token id is a plain int. `argmax(dim=-1)` gives a tensor with one token for each request, and "
                "`.tolist()` converts it.",
            )
        if got != answer:
            if not answer:
                idea = f"Only {stored} of the prompt's {len(self.prompts[name])} tokens are computed, so the logits "
                idea += "predict a token that you know already. Append one only once all known tokens are computed."
            elif len(got) < len(answer):
                idea = "All its known tokens are computed now, so it gets a token, `request.append_token(token)`, in "
                idea += "this step: a prompt gives the first one. Ask what is computed *after* the pass."
            elif len(got) > len(answer):
                idea = "One token a step: `request.append_token(token)` appends it. Leave `output_ids` alone."
            else:
                idea = "Row i of the logits belongs to request i of `batch.running`, and the index of its largest "
                idea += "logit is the next token."
            raise Mistake(f"{name}'s answer should be {short(answer)}; it is {short(got)}.", idea=idea)
        is_done = len(answer) == request.max_new_tokens or request.eos_token_id in answer
        decoding = RequestState.DECODING if answer else RequestState.PREFILLING
        if request.state is not (want := RequestState.FINISHED if is_done else decoding):
            raise Mistake(
                f"{name} should be {want.value} after the step; it is {request.state.value}.",
                idea="`request.append_token(token)` also updates the state, so call it once for each new token. "
                "Changing `output_ids` doesn't.",
            )

    def _check_lists(self) -> None:
        batch = self.batch
        stay = [request for request in self.running if request.state is not RequestState.FINISHED]
        new = self.waiting[: batch.max_num_seqs - len(stay)]
        if (got := ids(batch.running)) != (want := ids([*stay, *new])):
            done = [request.id for request in self.running if request.id in got and request not in stay]
            idea = (
                f"{told(done)} finished, at the limit or with the end token: call `retire(batch)` once all tokens are "
                "appended, in the same step."
                if done
                else "End with `retire(batch)` and then `admit(batch)`, so that the next row has the prompts of those "
                "that wait. Yours admits too early, too late, or not at all."
            )
            raise Mistake(f"{told(want)} should be running after the step; yours: {told(got)}.", idea=idea)
        if (got := ids(batch.waiting)) != (left := ids(self.waiting[len(new) :])):
            raise Mistake(
                f"{told(left)} should still be waiting after the step; yours: {told(got)}.",
                idea="Only `admit(batch)` takes requests from the queue, and only as many as there is room for.",
            )
        caches = sorted(batch.caches)
        if caches != sorted(want) or any(each.state is not RequestState.PREFILLING for each in new):
            should = f"caches should exist for {told(want)} after the step; yours: {told(caches)}."
            raise Mistake(
                should if caches != sorted(want) else f"{told(ids(new))} should be prefilling after the step.",
                idea="Let `retire(batch)` and `admit(batch)` change `batch.running`: they also remove and make the "
                "caches, and update the states.",
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
    row = "" if limit is None else f", a limit of {counted(limit, 'token')}"
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
