"""One run of the engine's benchmark: the requests of nano-vllm's benchmark, and where the time of each step goes."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.greedy_loop import GreedyLoop
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from tools.gpu_bench.models import NoWords

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 256, 16384


def benchmark_requests(count: int = 256, longest: int = 1024) -> list[Sequence]:
    """The requests of nano-vllm's benchmark: 100 to 1,024 random tokens each, and then, drawn after all prompts, the
    lengths of the answers."""
    rng = random.Random(0)
    prompts = [[rng.randint(0, 10000) for _ in range(rng.randint(100, longest))] for _ in range(count)]
    return [Sequence(str(number), prompt, rng.randint(100, longest)) for number, prompt in enumerate(prompts)]


@dataclass
class StepTimes:
    """Where the time of each step went.

    Attributes:
        steps: for each, seconds of "schedule", "start" (and in it "prepare", in which the packed batch is built; the
            rest
            sends it and launches the model), "wait" (for the GPU) and "all"; "running", how many sequences it computes;
            "is_decode", whether one token of each.
    """

    steps: list[dict] = field(default_factory=list)

    def timed(self, name: str, function: Callable) -> Callable:
        def call(*args):
            began = time.perf_counter()
            result = function(*args)
            self.steps[-1][name] = time.perf_counter() - began
            return result

        return call

    def of_step(self, function: Callable) -> Callable:
        """A step, which is "all"; in it, the other functions are timed."""
        timed = self.timed("all", function)

        def call():
            self.steps.append({})
            return timed()

        return call

    def of_full_decodes(self) -> dict[str, float]:
        """Median milliseconds of the steps in which most sequences run and all decode; "update" is what is left over,
        "own" all but "wait"."""
        decodes = [step for step in self.steps if step.get("is_decode") and "wait" in step]
        most = max(step["running"] for step in decodes)
        full = [step for step in decodes if step["running"] == most]
        for step in full:
            step["launch"] = step["start"] - step["prepare"]
            step["own"] = step["all"] - step["wait"]
            step["update"] = step["own"] - step["start"] - step["schedule"]
        names = ("all", "wait", "own", "schedule", "prepare", "launch", "update")
        return {"running": most, "steps": len(full)} | {
            name: 1000 * statistics.median(step[name] for step in full) for name in names
        }


class TimedRunner:
    """A runner that times its starts and waits."""

    def __init__(self, runner: GPUModelRunner, times: StepTimes):
        self.runner, self.cache, self.reset, self.close = runner, runner.cache, runner.reset, runner.close
        runner.prepare = times.timed("prepare", partial(GPUModelRunner.prepare, runner))
        self.times = times

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        self.times.steps[-1] |= {
            "running": len(scheduler_output.num_scheduled_tokens),
            "is_decode": scheduler_output.num_tokens == len(scheduler_output.num_scheduled_tokens),
        }
        self.began = time.perf_counter()
        return self.runner.forward(scheduler_output)

    def keep_tokens(self, scheduler_output: SchedulerOutput, tokens: torch.Tensor) -> "TimedTokens":
        in_flight = self.runner.keep_tokens(scheduler_output, tokens)
        self.times.steps[-1]["start"] = time.perf_counter() - self.began
        return TimedTokens(self.times.timed("wait", in_flight.wait))


@dataclass
class TimedTokens:
    wait: Callable[[], list[int]]


def serve(runner: GPUModelRunner, sequences: list[Sequence], overlapped: bool) -> tuple[float, StepTimes]:
    """Serve all sequences. Returns the seconds it took, and where they went."""
    pool = PrefixCache(runner.null_block, runner.cache.block_size)
    scheduler = PreemptiveScheduler(pool, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
    for sequence in sequences:
        scheduler.add(sequence)
    times = StepTimes()
    scheduler.schedule = times.timed("schedule", scheduler.schedule)
    step = times.of_step(partial(overlapped_step, GreedyLoop(scheduler, TimedRunner(runner, times), int(overlapped))))

    def run():
        while scheduler.has_unfinished():
            step()

    return seconds_of(run), times


def serve_by_engine(runner: GPUModelRunner, sequences: list[Sequence]) -> tuple[float, StepTimes]:
    """Like `serve`, with the whole engine: token ids, greedy, ignoring the end token."""
    times = StepTimes()
    config = EngineConfig(
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=runner.cache.block_size,
        num_blocks=runner.null_block,
        make_runner=lambda *_: TimedRunner(runner, times),
        overlap=True,
    )
    engine = LLMEngine(runner.model, NoWords(), config)
    engine.scheduler.schedule = times.timed("schedule", engine.scheduler.schedule)
    step, outputs = times.of_step(engine.step), {}

    def run():
        for sequence in sequences:
            params = SamplingParams(max_tokens=sequence.max_new_tokens, ignore_eos=True)
            engine.add_request(sequence.prompt_ids, params, request_id=sequence.id)
        while engine.has_unfinished():
            outputs.update((output.request_id, output) for output in step())

    seconds = seconds_of(run)
    for sequence in sequences:
        output = outputs[sequence.id]
        if output.error:
            raise output.error
        sequence.output_ids = output.token_ids
    return seconds, times


def seconds_of(run: Callable[[], None]) -> float:
    """The seconds of some work, until the GPU has finished it."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began
