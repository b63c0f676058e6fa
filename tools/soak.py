"""`make soak`: thousands of requests through one engine, with aborts, faults, interrupts and too little memory. At the
end, nothing may be lost.

    python -m tools.soak --requests 10000 --seed 0

A tiny random model answers. The pool is audited after every step, and the greedy answers are compared with those that
`generate` returns for each prompt alone.
"""

import argparse
import mmap
import random
import time
from collections import Counter
from pathlib import Path

import torch

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.outputs import NewToken, RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_copies import BlockCopy
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import tiny_model
from tools.interrupts import Interrupter, Letters
from tools.random_workloads import LONGEST_ANSWER, expected_completions, prompts

FAMILY = "qwen2"
IN_FLIGHT = 40
CONFIG = EngineConfig(
    max_num_seqs=16, max_num_batched_tokens=48, block_size=4, num_blocks=36, num_swap_blocks=16, watermark=0.05
)
ABORT, MODEL_FAULT, COPY_FAULT, NOT_A_NUMBER, INTERRUPT = 0.1, 0.01, 0.05, 0.01, 0.04  # how likely in a step
LINES_OF_A_STEP = 1500  # an interrupt comes at one of them
BAD_CALLBACK, SAMPLED = 0.03, 0.3  # and for a request


class InjectedFault(RuntimeError):
    """Made on purpose."""


class Soak:
    """The engine, the requests sent to it, and what happened to them.

    Attributes:
        asked: id -> (prompt, params) of requests that have not ended.
        counts: event -> how often it happened.
    """

    def __init__(self, requests: int, seed: int = 0):
        self.requests, self.rng = requests, random.Random(seed)
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.counts: Counter[str] = Counter()
        self.engine = LLMEngine(tiny_model(FAMILY, seed=3), Letters(), CONFIG)
        self.metrics = EngineMetrics(self.engine)
        self.forward, self.engine.runner.forward = self.engine.runner.forward, self.forward_with_faults
        self.copy_blocks, self.engine.core.copy_blocks = self.engine.core.copy_blocks, self.copies_with_faults

    def run(self) -> str:
        """Run everything, from the first request to the figures of what happened.

        Raises:
            AssertionError: an answer is wrong, a request was lost, or a block.
        """
        started = time.perf_counter()
        while self.counts["requests"] < self.requests or self.engine.has_unfinished():
            self.add_some()
            if self.engine.requests and self.rng.random() < ABORT:
                self.abort(self.rng.choice(list(self.engine.requests)))
            self.take(self.step())
            self.engine.core.settle()
            audit(self.engine.scheduler)
            if self.counts["requests"] >= self.requests // 5:
                self.counts["MiB after a fifth"] = self.counts["MiB after a fifth"] or resident_mib()
        seconds = time.perf_counter() - started
        self.counts["MiB at the end"] = resident_mib()
        self.check_that_nothing_is_lost()
        self.engine.close()
        return self.told(seconds)

    def step(self) -> list[RequestOutput]:
        """A step of the engine, now and then interrupted at any of its lines."""
        if self.rng.random() >= INTERRUPT:
            return self.engine.step()
        try:
            with Interrupter(self.rng.randrange(LINES_OF_A_STEP)):
                return self.engine.step()
        except KeyboardInterrupt:
            self.counts["interrupts"] += 1
            return []

    def add_some(self) -> None:
        while len(self.engine.requests) < IN_FLIGHT and self.counts["requests"] < self.requests:
            rng = self.rng
            prompt, is_sampled = rng.choice(prompts()), rng.random() < SAMPLED
            params = SamplingParams(
                max_tokens=rng.choice([1, 4, LONGEST_ANSWER]),
                temperature=rng.choice([0.7, 1.5]) if is_sampled else 0.0,
                top_k=rng.choice([0, 5]),
                top_p=rng.choice([1.0, 0.9]),
                seed=rng.randrange(1000),
                stop=("no",) if rng.random() < 0.1 else (),
                logprobs=2 if rng.random() < 0.1 else None,
                n=rng.choice([2, 3]) if is_sampled and rng.random() < 0.2 else 1,
            )
            on_token = self.bad_callback() if rng.random() < BAD_CALLBACK else None
            name = self.engine.add_request(prompt, params, on_token=on_token)
            self.asked[name] = prompt, params
            self.counts["requests"] += 1

    def bad_callback(self):
        """A callback that raises, or aborts its own request or any other."""
        left = self.rng.randint(1, 8)
        kind = self.rng.choice(["raise", "abort itself", "abort another"])

        def on_token(token: NewToken) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.counts[f"callbacks that {kind}"] += 1
                if kind == "raise":
                    raise InjectedFault(kind)
                names = [token.request_id] if kind == "abort itself" else list(self.engine.requests)
                self.abort(self.rng.choice(names))

        return on_token

    def abort(self, name: str) -> None:
        if output := self.engine.abort(name):
            self.take([output])

    def forward_with_faults(self, scheduler_output) -> torch.Tensor:
        if self.rng.random() < MODEL_FAULT:
            self.counts["faults of the model"] += 1
            raise InjectedFault("the model")
        logits = self.forward(scheduler_output)
        if self.rng.random() < NOT_A_NUMBER:
            self.counts["rows of NaN"] += 1
            logits = logits.clone()
            logits[self.rng.randrange(len(logits))] = float("nan")
        return logits

    def copies_with_faults(self, block_copies: list[BlockCopy]) -> None:
        if block_copies and self.rng.random() < COPY_FAULT:
            self.counts["faults of block copies"] += 1
            self.copy_blocks(block_copies[: len(block_copies) // 2])
            raise InjectedFault("copying")
        self.copy_blocks(block_copies)

    def take(self, outputs: list[RequestOutput]) -> None:
        """Each greedy answer, even one that was cut short, is a prefix of the answer that its prompt gets alone."""
        for output in outputs:
            assert output.request_id in self.asked, f"request {output.request_id} finished twice"
            prompt, params = self.asked.pop(output.request_id)
            reason = "error" if output.error else output.finish_reason
            expected = (InjectedFault, FloatingPointError, KeyboardInterrupt, type(None))
            assert isinstance(output.error, expected) or "interrupt" in str(output.error), repr(output.error)
            assert output.error or len(output.completions) == params.n or reason == "abort"
            self.counts[f"ended by {reason}"] += 1
            if params.temperature == 0:
                answer, alone = output.token_ids, expected_completions(FAMILY, prompt, params)[0].token_ids
                assert answer == alone[: len(answer)], f"{prompt}: {answer}; alone {alone}"
                self.counts["answers compared"] += 1
                self.counts["of them whole"] += len(answer) == len(alone)

    def check_that_nothing_is_lost(self) -> None:
        scheduler = self.engine.scheduler
        audit(scheduler)
        assert not self.asked, f"{len(self.asked)} requests never finished"
        assert not self.engine.requests and not scheduler.running and not scheduler.waiting
        assert not scheduler.pool.used and not scheduler.swap_space.used

    def told(self, seconds: float) -> str:
        scheduler = self.engine.scheduler
        figures = {
            "preemptions": scheduler.num_preempted,
            "by swap": scheduler.num_swapped,
            "tokens computed": self.metrics.tokens,
            "tokens returned": self.metrics.new_tokens,
            "tokens found in the cache": self.metrics.cached_tokens,
            "blocks evicted": scheduler.pool.evicted,
            "steps": self.metrics.steps,
            "seconds": round(seconds, 1),
        }
        return "\n".join(f"{what:36} {count:12,}" for what, count in [*sorted(self.counts.items()), *figures.items()])


def resident_mib() -> int:
    """Memory of this process, now; 0 where the system doesn't say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE >> 20 if statm.exists() else 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # more threads only slow each other down: the model is tiny
    print(Soak(options.requests, options.seed).run())


if __name__ == "__main__":
    main()
