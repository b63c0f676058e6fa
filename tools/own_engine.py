"""Random workloads for engines of learners' answers: every answer must equal the one of the reference engine.

    python -m tools.own_engine --count 200

Two sets of answers are put in: the reference's own source, and the answers of tests/support/other_answers.py, which are
written differently. Each set serves every workload with all its answers, with each of them alone, and with none.
"""

import argparse
import functools
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from lessons_lib.checks.engine_trial import engine_of
from lessons_lib.checks.kept import standalone_source
from lessons_lib.checks.linking import Linked, link
from lessons_lib.checks.my_engine import LINKS, part_exercises
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.tiny_models import tiny_model
from tools.random_workloads import NoText, Workload

TESTS = Path(__file__).parents[1] / "tests"
Answers = Mapping[str, str]


def reference_answers() -> dict[str, str]:
    """Reference -> its own source."""
    return {
        target: standalone_source(exercise.load_reference(), exercise.name)
        for target, exercise in part_exercises().items()
    }


def other_answers() -> dict[str, str]:
    """Reference -> the source of a right answer that is written differently."""
    sys.path += [path for path in (str(TESTS), str(TESTS / "support")) if path not in sys.path]
    from other_answers import ANSWERS

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
        return engine_of(self.linked, tiny_model(self.family, seed=3), NoText(), config, time.perf_counter)

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
    with LLMEngine(tiny_model(family, seed=3), NoText(), EngineConfig(num_blocks=64)) as engine:
        (output,) = engine.generate([list(prompt)], params)
    return [completion.token_ids for completion in output.completions]


def run(answers: Answers, seeds: range, show=print) -> list[int]:
    """Serve the workloads of these seeds. Returns the seeds that failed."""
    linked, failed = link(LINKS, answers), []
    for seed in seeds:
        try:
            OwnWorkload(seed, linked).play()
        except Exception:
            failed.append(seed)
            show(f"seed {seed}:\n{traceback.format_exc(limit=-4)}")
    return failed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.own_engine", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="variants with this in their name, such as 'all' or 'alone'")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the models are tiny
    all_failed: list[str] = []
    for set_name, answers in (("reference", reference_answers()), ("other", other_answers())):
        for name, used in variants(answers):
            if options.only not in name:
                continue
            started = time.perf_counter()
            failed = run(used, range(options.seed, options.seed + options.count))
            seconds = time.perf_counter() - started
            print(f"{set_name}, {name}: {options.count} workloads in {seconds:.0f} s, failed: {failed or 'none'}")
            all_failed += [f"{set_name}, {name}: {seed}" for seed in failed]
    sys.exit(bool(all_failed))


if __name__ == "__main__":
    main()
