"""Random workloads for engines of learners' answers: every answer must equal the one of the reference engine.

Two sets of answers are put in: the reference's own source, and that of other_answers, which are written differently.
"""

import functools
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace

from other_answers import ANSWERS

from lessons_lib.checks.engine_trial import engine_of
from lessons_lib.checks.kept import standalone_source
from lessons_lib.checks.linking import Linked, link
from lessons_lib.checks.my_engine import LINKS, part_exercises
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.tiny_models import tiny_model
from tools.random_workloads import LETTERS, Workload

Answers = Mapping[str, str]


def reference_answers() -> dict[str, str]:
    """Reference -> its own source."""
    return {
        target: standalone_source(exercise.load_reference(), exercise.name)
        for target, exercise in part_exercises().items()
    }


def other_answers() -> dict[str, str]:
    """Reference -> the source of a right answer that is written differently."""
    parts = part_exercises()
    return {target: standalone_source(ANSWERS[target], exercise.name) for target, exercise in parts.items()}


def variants(answers: Answers) -> Iterator[tuple[str, Answers]]:
    """(name, answers): all, none, and each alone."""
    yield "all", answers
    yield "none", {}
    for target, source in answers.items():
        yield f"{target.partition(':')[2]} alone", {target: source}


class OwnWorkload(Workload):
    """A random workload, half of its requests sampled, for an engine of linked parts. Every second one overlaps its
    steps."""

    with_rules = 0

    def __init__(self, seed: int, linked: Linked):
        self.linked, self.overlaps = linked, seed % 2 == 1
        super().__init__(seed)

    def draw_request(self):
        prompt, params, options = super().draw_request()
        if self.rng.random() < 0.5:
            cuts = dict(top_k=self.rng.choice([0, 3, 20]), top_p=self.rng.choice([1.0, 0.7]))
            cuts["min_p"] = self.rng.choice([0.0, 0.05])
            params = replace(params, temperature=self.rng.choice([0.5, 1.0]), seed=self.rng.randrange(3), **cuts)
        return prompt, params, options

    def draw_engine(self) -> LLMEngine:
        config = EngineConfig(**self.draw_config() | dict(overlap=self.overlaps))
        return engine_of(self.linked, tiny_model(self.family, seed=3), LETTERS, config, time.perf_counter)

    def check(self, output, is_aborted: bool = False) -> None:
        prompt, params = self.asked.pop(output.request_id)
        if output.error:
            raise AssertionError(f"request {output.request_id} failed") from output.error
        expected = answered_alone(self.family, prompt, params)
        assert is_aborted or len(output.completions) == params.n
        for completion, wanted in zip(output.completions, expected):
            tokens = completion.token_ids
            assert tokens == (wanted[: len(tokens)] if is_aborted else wanted), f"prompt {prompt}: {tokens}; {wanted}"
            self.happened["answers compared"] += 1


@functools.cache
def answered_alone(family: str, prompt: tuple[int, ...], params: SamplingParams) -> list[list[int]]:
    """The completions of one request, by the reference engine with a large pool."""
    with LLMEngine(tiny_model(family, seed=3), LETTERS, EngineConfig(num_blocks=64)) as engine:
        (output,) = engine.generate([list(prompt)], params)
    return [completion.token_ids for completion in output.completions]


def run(answers: Answers, seeds: range) -> list[int]:
    """Serve the workloads of these seeds. Returns the seeds that failed."""
    linked, failed = link(LINKS, answers), []
    for seed in seeds:
        try:
            OwnWorkload(seed, linked).play()
        except Exception:
            failed.append(seed)
            print(f"seed {seed}:\n{traceback.format_exc(limit=-4)}")
    return failed
