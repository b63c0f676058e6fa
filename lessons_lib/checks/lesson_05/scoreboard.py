"""The stretch task of lesson 05: steps with a limited number of tokens, in which prompts are computed in pieces. A few
requests are served without a model and by a tiny one, to compare their tokens; then many without a model, to count.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any

import torch

from lessons_lib.attention.packing import PackedBatch, pack
from lessons_lib.batching.ragged_batching import RaggedBatch, admit, forward, ragged_step, retire
from lessons_lib.batching.request import Request
from lessons_lib.checks.exercise import short
from lessons_lib.checks.lesson_05.requests import a_request, answer_alone, make_batch
from lessons_lib.viz.tables.table import Table
from lessons_lib.viz.words import marked

Step = Callable[..., None]  # (batch, max_num_batched_tokens, forward=forward)

MAX_TOKENS, MAX_SEQS, VOCABULARY = 32, 8, 97
SEEDS = (51, 52, 53)
MOST_STEPS = 5_000


class WrongStep(Exception):
    """A step did something that it must not do; the message says what."""


@dataclass
class Log:
    """What one run counts. A clock counts the tokens of all steps.

    Attributes:
        rows: tokens of each step.
        tokens_at: request id -> the clock after each of its new tokens.
        submitted_at: request id -> the clock when it was submitted.
    """

    rows: list[int] = field(default_factory=list)
    tokens_at: dict[str, list[int]] = field(default_factory=dict)
    submitted_at: dict[str, int] = field(default_factory=dict)

    @property
    def clock(self) -> int:
        return sum(self.rows)

    def waits(self) -> list[int]:
        """For each request, the tokens computed from its submission to its first token."""
        return [self.tokens_at[name][0] - submitted for name, submitted in self.submitted_at.items()]

    def gaps(self) -> list[int]:
        """The tokens computed between two tokens of a request, over all requests."""
        return [after - before for times in self.tokens_at.values() for before, after in pairwise(times)]


class CountedForward:
    """Stands in for a model: the next token depends on all tokens of the sequence that the row, so far, has had."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.computed: dict[str, list[int]] = {}
        self.row: int | None = None

    def __call__(self, batch: RaggedBatch, packed: PackedBatch) -> torch.Tensor:
        if self.row is not None:
            raise WrongStep("the step calls `forward` twice; compute everything in one row.")
        if len(packed.new_lens) != len(batch.running):
            raise WrongStep(
                f"the row has {len(packed.new_lens)} sequences, and {len(batch.running)} requests are running. "
                "`forward` joins the caches of all running requests, so each needs at least one token."
            )
        self.row = sum(packed.new_lens)
        if self.row > self.limit:
            raise WrongStep(f"a row has {self.row} tokens, more than {self.limit}.")
        logits = torch.zeros(len(batch.running), VOCABULARY)
        for index, (request, tokens) in enumerate(zip(batch.running, packed.input_ids.split(packed.new_lens))):
            known = self.computed.setdefault(request.id, [])
            if packed.cached_lens[index] != len(known):
                raise WrongStep(
                    f"{request.id} has {len(known)} tokens in its cache; the row says {packed.cached_lens[index]}."
                )
            known += tokens.tolist()
            logits[index, next_token(known)] = 1
        batch.packed = packed
        return logits


def next_token(known: list[int]) -> int:
    return hash(tuple(known)) % VOCABULARY


def first_come_first_served(batch: RaggedBatch, max_num_batched_tokens: int, forward: Callable = forward) -> None:
    """Every request has one token; what is left of the row goes to the prompts in order of admission."""
    uncomputed = [(request.prompt_ids + request.output_ids)[request.num_computed_tokens :] for request in batch.running]
    left = max_num_batched_tokens - len(uncomputed)
    parts = []
    for tokens in uncomputed:
        parts.append(tokens[: 1 + left])
        left -= len(parts[-1]) - 1
    packed = pack(parts, [request.num_computed_tokens for request in batch.running])
    next_tokens = forward(batch, packed).argmax(dim=-1).tolist()
    for request, tokens, part, token in zip(batch.running, uncomputed, parts, next_tokens):
        request.num_computed_tokens += len(part)
        if len(part) == len(tokens):
            request.append_token(token)
    retire(batch)
    admit(batch)


def whole_prompts(batch: RaggedBatch, max_num_batched_tokens: int, forward: Callable = forward) -> None:
    ragged_step(batch, forward=forward)


def chunk_workload(seed: int) -> list[tuple[int, Request]]:
    """(clock, request): requests with short prompts, every fifth with a long one."""
    rng, clock, arrivals = Random(seed), 0, []
    for number in range(30):
        length = rng.randint(100, 300) if number % 5 == 2 else rng.randint(3, 40)
        prompt = [rng.randrange(VOCABULARY) for _ in range(length)]
        arrivals.append((clock, Request(f"request {number}", prompt, rng.randint(5, 40))))
        clock += rng.randint(0, 120)
    return arrivals


def count_run(step: Step, arrivals: list[tuple[int, Request]], limit: int, max_num_seqs: int = MAX_SEQS) -> Log:
    """Serve the requests without a model.

    Raises:
        WrongStep: a row is too long, a request gets a wrong token, or a step computes nothing.
    """
    log, stand_in, waiting = Log(), CountedForward(limit), list(arrivals)
    batch = RaggedBatch(model=None, max_num_seqs=max_num_seqs)
    while waiting or batch.running:
        while waiting and (not batch.running or waiting[0][0] <= log.clock):
            _, request = waiting.pop(0)
            log.submitted_at[request.id] = log.clock
            batch.submit(request)
        running, stand_in.row = list(batch.running), None
        step(batch, limit, forward=stand_in)
        if stand_in.row is None or len(log.rows) == MOST_STEPS:
            raise WrongStep("a step computes nothing, or requests never finish.")
        log.rows.append(stand_in.row)
        for request in running:
            _check_tokens(request, stand_in.computed[request.id])
            times = log.tokens_at.setdefault(request.id, [])
            times += [log.clock] * (len(request.output_ids) - len(times))
    return log


def _check_tokens(request: Request, computed: list[int]) -> None:
    known = request.prompt_ids + request.output_ids
    case = f"{request.id} has a prompt of {len(request.prompt_ids)} tokens, {len(computed)} of them computed"
    if len(computed) < len(request.prompt_ids) and request.output_ids:
        raise WrongStep(f"{case}, and already a new token. Only the end of the prompt gives one.")
    if len(computed) == len(request.prompt_ids) and not request.output_ids:
        raise WrongStep(f"{case}, and no new token: the last piece gives one.")
    if request.num_computed_tokens != len(computed):
        raise WrongStep(f"{case}; its num_computed_tokens is {request.num_computed_tokens}.")
    if computed != known[: len(computed)]:
        raise WrongStep(f"{request.id}: the row had other tokens than its next known ones.")
    if request.output_ids and known[-1] != next_token(known[:-1]):
        raise WrongStep(f"{request.id} should get token {next_token(known[:-1])}; it got {known[-1]}.")


def why_wrong(step: Step) -> str | None:
    """What is wrong with the step, on the smallest case; None if nothing is."""
    for limit in (3, 7, 100):
        case = f"prompts of 3, 9, 1 and 6 tokens, at most 3 requests and {limit} tokens in a row: "
        try:
            count_run(step, [(0, request) for request in _small_requests()], limit, max_num_seqs=3)
            wrong = _wrong_answer(step, limit)
        except Exception as error:
            wrong = _words(error)
        if wrong:
            return case + wrong
    try:
        count_run(step, chunk_workload(SEEDS[0]), MAX_TOKENS)
    except Exception as error:
        return _words(error)
    return None


def _small_requests() -> list[Request]:
    return [a_request("A", 3, 4), a_request("B", 9, 3), a_request("C", 1, 2), a_request("D", 6, 1)]


def _wrong_answer(step: Step, limit: int) -> str | None:
    """Serve the small requests with a tiny model."""
    requests = _small_requests()
    batch = make_batch(requests, max_num_seqs=3)
    with torch.inference_mode():
        while batch.running:
            step(batch, limit, forward=forward)
    for request in requests:
        want = answer_alone(tuple(request.prompt_ids), request.max_new_tokens)
        if request.output_ids != want:
            return (
                f"{request.id} should get {short(want)}, as it does alone; it got {marked(want, request.output_ids)}."
            )
    return None


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, WrongStep) else f"it raised {type(error).__name__}: {error}"


def chunk_scoreboard(step: Step) -> Table:
    """The learner's step next to one with whole prompts, and next to pieces in order of arrival.

    Args:
        step: function of (batch, max_num_batched_tokens, forward=forward).
    """
    rows = [
        ["whole prompts (05.4)", *_counts(whole_prompts, limit=10**9)],
        ["pieces, first come first served", *_counts(first_come_first_served, MAX_TOKENS)],
    ]
    yours, verdict = ["–"] * 4, why_wrong(step)
    if verdict is None:
        yours = _counts(step, MAX_TOKENS)
        verdict = "Yours: all tokens are right."
    requests = len(chunk_workload(SEEDS[0]))
    return Table(
        columns=["way", "steps", "largest row", "longest gap", "wait for the first token, mean"],
        rows=[*rows, ["yours", *yours]],
        caption=f"{len(SEEDS)} hidden workloads of {requests} requests, at most {MAX_SEQS} at a time. "
        "Gaps and waits in computed tokens.",
        verdict=verdict,
    )


def _counts(step: Step, limit: int) -> list[Any]:
    logs = [count_run(step, chunk_workload(seed), limit) for seed in SEEDS]
    return [
        sum(len(log.rows) for log in logs),
        max(max(log.rows) for log in logs),
        max(max(log.gaps()) for log in logs),
        f"{mean(wait for log in logs for wait in log.waits()):.0f}",
    ]
