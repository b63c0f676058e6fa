"""The stretch task of lesson 12: which requests should be given up, so that as many as possible meet their deadlines?
Scored on requests that the learner hasn't seen.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lessons_lib.checks.engine_trial import Letters
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.viz.tables.table import Table

SEEDS = (31, 32, 33)
NUM_REQUESTS = 120
MAX_NUM_SEQS, BUDGET = 8, 64


@dataclass(frozen=True)
class Waiting:
    """A request to come: it arrives before the step `arrives`, and its last token must come in the step `deadline` at
    the latest."""

    arrives: int
    deadline: int
    prompt: int
    answer: int


@dataclass(frozen=True)
class UnfinishedRequest:
    """What a rule knows about a request; see lesson 12."""

    id: str
    steps_left: int
    prompt_left: int
    answer_left: int
    waited: int
    is_running: bool


Rule = Callable[[list[UnfinishedRequest]], Iterable[UnfinishedRequest]]


class NoModel(ModelRunner):
    """Always predicts token 1."""

    def forward(self, scheduler_output: Any) -> torch.Tensor:
        logits = torch.zeros(len(scheduler_output.num_scheduled_tokens), VOCAB_SIZE)
        logits[:, 1] = 1.0
        return logits


def nothing(requests: list[UnfinishedRequest]) -> list[UnfinishedRequest]:
    """Serve all requests to the end."""
    return []


def too_late(requests: list[UnfinishedRequest]) -> list[UnfinishedRequest]:
    """Those whose deadline has passed."""
    return [request for request in requests if request.steps_left <= 0]


@cache
def workload(seed: int) -> list[Waiting]:
    """More requests than can be served in time: chats, and now and then a burst of long ones."""
    draw, step, found = random.Random(seed), 0.0, []
    while len(found) < NUM_REQUESTS:
        step += draw.expovariate(0.42)
        is_long = draw.random() < 0.3
        prompt = draw.randint(60, 200) if is_long else draw.randint(4, 40)
        answer = draw.randint(30, 70) if is_long else draw.randint(4, 25)
        arrives = int(step)
        found.append(Waiting(arrives, arrives + -(-prompt // BUDGET) + answer + draw.randint(2, 45), prompt, answer))
    return found


def served_in_time(requests: list[Waiting], rule: Rule) -> tuple[int, int]:
    """Serve the requests with a rule. Returns (requests that met their deadline, tokens computed for the others)."""
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=BUDGET, num_blocks=256, share_prefixes=False, probe=False,
        make_runner=lambda model, num_blocks, config: NoModel(model, num_blocks, config.block_size),
    )  # fmt: skip
    engine = LLMEngine(tiny_model("qwen2", context=512), Letters(), config, clock=lambda: 0.0)
    in_time = wasted = step = 0
    coming = [(str(index), request) for index, request in enumerate(requests)]
    by_id = dict(coming)
    while coming or engine.has_unfinished():
        while coming and coming[0][1].arrives <= step:
            name, request = coming.pop(0)
            params = SamplingParams(max_tokens=request.answer, ignore_eos=True, detokenize=False)
            engine.add_request([3] * request.prompt, params, request_id=name)
        ended = []
        if engine.requests:
            seen = [_seen(engine, name, by_id[name], step) for name in engine.requests]
            for given_up in list(rule(seen)):
                wasted += _computed(engine, given_up.id)
                engine.abort(given_up.id)
        if engine.has_unfinished():
            ended = engine.step()
        for output in ended:
            if step <= by_id[output.request_id].deadline:
                in_time += 1
            else:
                wasted += by_id[output.request_id].prompt + by_id[output.request_id].answer - 1
        step += 1
    engine.close()
    return in_time, wasted


def _computed(engine: LLMEngine, name: str) -> int:
    return engine.requests[name].completions[0].num_computed_tokens if name in engine.requests else 0


def _seen(engine: LLMEngine, name: str, request: Waiting, step: int) -> UnfinishedRequest:
    sequence = engine.requests[name].completions[0]
    return UnfinishedRequest(
        id=name, steps_left=request.deadline - step + 1,
        prompt_left=max(0, request.prompt - sequence.num_computed_tokens),
        answer_left=request.answer - len(sequence.output_ids), waited=step - request.arrives,
        is_running=bool(sequence.blocks),
    )  # fmt: skip


def deadline_scoreboard(rule: Rule) -> Table:
    """The rule next to two simple ones.

    Args:
        rule: function of a list of UnfinishedRequest, called before each step; returns those to abort.
    """
    rows = [[name, *_score(one)] for name, one in (("nothing", nothing), ("those whose deadline has passed", too_late))]
    try:
        rows.append(["yours", *_score(rule)])
        verdict = f"Yours: {rows[-1][1] - rows[1][1]:+} requests, compared with the second rule."
    except Exception as error:
        rows.append(["yours", None, None])
        verdict = f"Your rule raised {type(error).__name__}: {error}"
    count = len(SEEDS) * NUM_REQUESTS
    return Table(
        columns=["given up", "answered in time", "tokens computed for the others"],
        rows=rows,
        caption=f"{count} requests in {len(SEEDS)} hidden workloads",
        verdict=verdict,
    )


def _score(rule: Rule) -> list[int]:
    results = [served_in_time(workload(seed), rule) for seed in SEEDS]
    return [sum(found) for found in zip(*results)]
