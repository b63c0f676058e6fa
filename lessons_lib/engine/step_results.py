"""Lesson 12: what a step has computed, sorted by completions: a token for each of them, log-probabilities for those who
asked, and the forks that begin once a prompt is computed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lessons_lib.engine.in_flight import InFlightStep
from lessons_lib.engine.input_batch import num_prompt_logits
from lessons_lib.engine.outputs import CompletionOutput
from lessons_lib.engine.sampling import choose_tokens, why_no_token
from lessons_lib.engine.stopwatch import StopWatch
from lessons_lib.scheduling.preemption import PreemptiveSchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.shared_blocks import fork

if TYPE_CHECKING:
    from lessons_lib.engine.llm_engine import LLMEngine


@dataclass
class LaunchedStep(InFlightStep):
    """A step of the engine that was launched.

    Attributes:
        watch: its laps so far.
        logits: what the runner's `forward` returned, until the next step is launched.
    """

    scheduler_output: PreemptiveSchedulerOutput
    watch: StopWatch
    logits: torch.Tensor | None


def completions_with_token(
    engine: "LLMEngine", scheduler_output: PreemptiveSchedulerOutput, gets_token: list[bool], tokens: list[int],
    logits: torch.Tensor | None = None,
) -> list[CompletionOutput]:  # fmt: skip
    """The completions that get a token: of every sequence whose tokens are all computed, and of the forks that begin
    with it.

    Args:
        gets_token: for each scheduled sequence, whether all its tokens are computed by this step.
        tokens: for each scheduled sequence. Sequences get theirs when the scheduler is updated, forks in here.
        logits: a row for each scheduled sequence, for log-probabilities and forks.
    """
    completions, scheduled = [], scheduler_output.num_scheduled_tokens
    if logits is not None and any(sequence.prompt_logits for sequence in scheduled):
        add_prompt_logprobs(engine, scheduled, logits)
    for row, (sequence, token, is_used) in enumerate(zip(scheduled, tokens, gets_token)):
        completion = engine.completions.get(sequence) if is_used else None
        if completion is None:
            continue  # also if its request has ended meanwhile, or has failed in this loop
        if token < 0:
            engine.end(completion.request, "error", why_no_token(token, completion.processor))
            continue
        completions.append(completion)
        if logits is not None:
            if completion.logprobs is not None:  # `logits[row]` takes a microsecond
                completion.add_logprobs(logits[row], token)
            if len(completion.request.completions) < completion.request.params.n:
                completions += forks_of(engine, completion, scheduled[sequence], logits[row])
    return completions


def add_prompt_logprobs(engine: "LLMEngine", scheduled: dict[Sequence, int], logits: torch.Tensor) -> None:
    """Note the log-probabilities of the tokens of prompts, for the requests that asked for them.

    Args:
        logits: [sequences + extra, vocabulary]: after the last token of each sequence, then after others of prompts.
    """
    own, others = logits[: len(scheduled)], logits[len(scheduled) :]
    for row, (sequence, count) in enumerate(scheduled.items()):
        extra = num_prompt_logits(sequence, count)
        if sequence.prompt_logits and sequence in engine.completions:
            rows = torch.cat([others[:extra], own[row : row + 1]])
            engine.completions[sequence].request.add_prompt_logprobs(sequence.num_computed_tokens, rows)
        others = others[extra:]


def forks_of(engine: "LLMEngine", first: CompletionOutput, count: int, logits: torch.Tensor) -> list[CompletionOutput]:
    """The prompt of a request with several completions is computed: the others begin here, on the same blocks.

    Args:
        first: the completion that has computed the prompt.
        count: how many tokens this step has computed for it.
        logits: [vocabulary], after the prompt.

    Returns:
        the other completions, each with its first token; none if the request has failed.
    """
    request, scheduler = first.request, engine.scheduler
    for start in range(1, request.params.n, scheduler.max_num_seqs):  # sampling more at once might take too much memory
        forks = []
        for index in range(start, min(start + scheduler.max_num_seqs, request.params.n)):
            child = fork(scheduler.pool, first.sequence, f"{request.id}/{index}")
            child.num_computed_tokens += count
            forks.append(request.make_completion(index, child, first.seed + index, engine.tokenizer))
        seeds, processors = [each.seed for each in forks], [each.processor for each in forks]
        params, positions = [request.params] * len(forks), [0] * len(forks)
        tokens = choose_tokens(logits.expand(len(forks), -1), params, seeds, positions, processors).tolist()
        for place, (completion, token) in enumerate(zip(forks, tokens)):
            child = completion.sequence
            request.completions.append(completion)
            if token < 0:
                for each in forks[place:]:
                    scheduler.release(each.sequence)
                child.finish_reason = "error"
                engine.end(request, "error", why_no_token(token, completion.processor))
                return []
            completion.add_logprobs(logits, token)
            child.append_token(token)
            (scheduler.release if child.finish_reason else scheduler.add)(child)
            engine.completions[child] = completion
    engine.note_request(request)
    return request.completions[1:]
