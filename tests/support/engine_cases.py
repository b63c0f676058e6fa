"""Engines over tiny models, and what must hold of one when all is done."""

import functools
import time

from oracle import END, generate_alone

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import tiny_model

FAMILIES = ("gpt2", "llama", "qwen2")


class LetterTokenizer:
    """A character for each token of the tiny models, so that texts and tokens can be read off each other."""

    eos_token_id = END

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(letter(token) for token in token_ids)


def letter(token):
    return chr(ord("!") + token)


def a_model(family="qwen2"):
    return tiny_model(family, seed=3)


def an_engine(family="qwen2", clock=time.perf_counter, model=None, tokenizer=None, **config):
    config = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4, "num_blocks": 60, **config}
    return engine_of_kind("waits", model or a_model(family), tokenizer, clock, **config)


def measured(engine):
    """The engine, with its metrics."""
    engine.metrics = EngineMetrics(engine)
    return engine


KINDS = ("waits", "overlaps")


def engine_of_kind(kind, model=None, tokenizer=None, clock=time.perf_counter, **config):
    """An engine that waits for each step, or one that launches a step before it has the tokens of the last."""
    if kind == "overlaps":
        config = {"overlap": True, "make_runner": gpu_model_runner(compiled=False, capture=rerun), **config}
    return measured(LLMEngine(model or a_model(), tokenizer or LetterTokenizer(), EngineConfig(**config), clock))


class Clock:
    """A second later at every look."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@functools.cache
def _alone(family, prompt):
    return generate_alone(a_model(family), list(prompt), 40, None)


def alone(family, prompt, max_tokens, ignore_eos=False):
    """The greedy answer that a prompt gets from `generate` alone; `max_tokens` is 40 at most."""
    answer = _alone(family, tuple(prompt))[:max_tokens]
    return answer[: answer.index(END) + 1] if END in answer and not ignore_eos else answer


def run_out(engine, most_steps=2000):
    """Steps until no request is left, with the books checked after each. Returns id -> output."""
    outputs = {}
    for _ in range(most_steps):
        if not engine.has_unfinished():
            return outputs
        for output in engine.step():
            assert output.request_id not in outputs, f"{output.request_id} has ended twice"
            outputs[output.request_id] = output
        audit(engine.scheduler)
    raise AssertionError(f"not done after {most_steps} steps")


class Broken(RuntimeError):
    pass


def run_out_with_an_observer_that_raises(engine, check):
    """Steps until no request is left, `check()` after each, while an observer raises in every other step. Returns (id ->
    output, how often it raised)."""
    outputs, errors = {}, 0

    def observer(step, requests):
        if engine.metrics.steps % 2:
            raise Broken("observer")

    engine.core.observers.append(observer)
    while engine.has_unfinished():
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except Broken:
            errors += 1
        check()
    engine.core.observers.remove(observer)
    return outputs, errors


def check_that_nothing_is_left(engine):
    scheduler = engine.scheduler
    audit(scheduler)
    assert not engine.requests and not engine.has_unfinished()
    assert not scheduler.running and not list(scheduler.waiting)
    assert not scheduler.pool.used and len(scheduler.pool.free_queue) == scheduler.pool.num_blocks
    assert not scheduler.swap_space.used


def greedy(max_tokens=12, **kwargs):
    return SamplingParams(max_tokens=max_tokens, **kwargs)
