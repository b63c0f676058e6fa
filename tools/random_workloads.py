"""Random workloads: whatever the scheduler does, each greedy answer must equal the one that its prompt
gets alone.

    python -m tools.random_workloads --count 5000 --seed 0

Every workload draws an engine (with or without a step in flight), a policy, an admission rule, a pool that is too
small, a swap space, a block size, and a few requests, some with several completions and some that are aborted. Tiny
random models answer on the CPU. The pool is audited after every step, and must be empty at the end. `--seed N --count
1` repeats one workload.
"""

import argparse
import functools
import random
import sys
import time
import traceback
from collections import Counter

import torch

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAging, ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.sequence import FirstComeFirstServed

FAMILIES = ("qwen2", "llama", "gpt2")
END = 12
LONGEST_ANSWER = 12
MOST_STEPS = 1000
POLICIES = (
    FirstComeFirstServed(),
    ShortestJobFirst(),
    StrictPriority(),
    PriorityWithAging(1.0, head_start=0.5),
    BalancedLengths(16, window=4),
)


class NoText:
    """The tokenizer of a model that writes nonsense."""

    eos_token_id = END

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return ""


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Prompts of 1 to 24 tokens; many share a prefix, and some are a prefix of another."""
    rng = random.Random(5)
    words = tuple(rng.randrange(VOCAB_SIZE) for _ in range(100))
    whole = [words[:length] for length in (1, 2, 3, 4, 7, 8, 12, 16, 17, 24)]
    branches = [words[:shared] + words[40 + own : 40 + own + 4] for shared in (4, 8, 16) for own in (0, 7)]
    return (*whole, *branches, words[60:61], words[62:65], words[66:70], words[72:80])


@functools.cache
@torch.inference_mode()
def generated_alone(family: str, prompt: tuple[int, ...]) -> list[int]:
    """The greedy answer of `LONGEST_ANSWER` tokens from Hugging Face `generate`, which doesn't stop at the end token
    here."""
    ids = torch.tensor([prompt])
    model = tiny_model(family, seed=3)
    options = dict(max_new_tokens=LONGEST_ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def expected_answer(family: str, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    answer = generated_alone(family, prompt)[: params.max_tokens]
    if END in answer and not params.ignore_eos:
        answer = answer[: answer.index(END) + 1]
    return answer


class Workload:
    """One engine and its requests.

    Attributes:
        seed: everything is drawn from it.
        happened: event -> how often it happened.
    """

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.family = rng.choice(FAMILIES)
        self.happened: Counter[str] = Counter()
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.to_come = [self.draw_request() for _ in range(rng.randint(2, 6))]
        self.abort_rate = rng.choice([0.0, 0.0, 0.1])
        self.engine = self.draw_engine()
        self.metrics = EngineMetrics(self.engine)

    def draw_request(self) -> tuple[tuple[int, ...], SamplingParams, dict[str, object]]:
        rng = self.rng
        params = SamplingParams(
            max_tokens=rng.choice([1, 3, 8, LONGEST_ANSWER]),
            n=rng.choice([1, 1, 1, 2, 3]),
            ignore_eos=rng.random() < 0.5,
            logprobs=1 if rng.random() < 0.05 else None,
        )
        options = {
            "tier": rng.randrange(2),
            "expected_tokens": rng.choice([None, 2.0, 9.0]),
            "is_interactive": rng.random() < 0.3,
        }
        return rng.choice(prompts()), params, options

    def draw_config(self) -> dict[str, object]:
        rng, block_size = self.rng, self.rng.choice([1, 2, 3, 4, 8, 16])
        needed = max(
            blocks_for(len(prompt) + (params.max_tokens or 1) - 1, block_size) for prompt, params, _ in self.to_come
        )
        num_blocks = needed + rng.choice([0, 0, 1, 2, 5, 40])
        max_num_seqs = rng.choice([1, 2, 4, 8])
        return dict(
            block_size=block_size,
            num_blocks=num_blocks,
            num_swap_blocks=rng.choice([0, 6, 40]),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + rng.choice([0, 2, 8, 40]),
            max_model_len=max(2, min(64, num_blocks * block_size + 1)),
            policy=rng.choice(POLICIES),
            admission=rng.choice([conservative, optimistic]),
            watermark=rng.choice([0.0, 0.1]),
            share_prefixes=rng.random() < 0.75,
        )

    def draw_engine(self) -> LLMEngine:
        config = self.draw_config()
        model, overlapped = tiny_model(self.family, seed=3), self.rng.random() < 0.5
        self.happened["overlapped"] += overlapped
        if overlapped:
            config |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
        return LLMEngine(model, NoText(), EngineConfig(**config))

    def play(self) -> Counter[str]:
        """Serve everything.

        Raises:
            AssertionError: an answer is wrong, a request failed or never finished, or a block was lost.
        """
        engine, scheduler = self.engine, self.engine.scheduler
        steps = 0
        with engine:
            while self.to_come or engine.has_unfinished():
                self.add_some()
                for output in engine.step():
                    self.check(output)
                audit(scheduler)
                if engine.requests and self.rng.random() < self.abort_rate:
                    self.check(engine.abort(self.rng.choice(list(engine.requests))), is_aborted=True)
                steps += 1
                assert steps < MOST_STEPS, f"not done after {steps} steps"
            audit(scheduler)
            assert not self.asked, f"{list(self.asked)} never finished"
            assert not scheduler.pool.used and not scheduler.swap_space.used, "blocks are still in use"
        self.happened.update(steps=steps, preemptions=scheduler.num_preempted, swaps=scheduler.num_swapped)
        self.happened["cached tokens"] += self.metrics.cached_tokens
        return self.happened

    def add_some(self) -> None:
        while self.to_come and self.rng.random() < 0.5:
            prompt, params, options = self.to_come.pop()
            name = self.engine.add_request(prompt, params, **options)
            self.asked[name] = prompt, params
            self.happened["requests"] += 1

    def check(self, output, is_aborted: bool = False) -> None:
        prompt, params = self.asked.pop(output.request_id)
        if output.error:
            raise AssertionError(f"request {output.request_id} failed") from output.error
        expected = expected_answer(self.family, prompt, params)
        assert is_aborted or len(output.completions) == params.n
        for completion in output.completions:
            tokens = completion.token_ids
            wanted = expected[: len(tokens)] if is_aborted else expected
            assert tokens == wanted, f"prompt {prompt}: {tokens}; alone {expected}"
            self.happened["answers compared"] += 1
        self.happened["aborted" if is_aborted else "finished"] += 1


def run(count: int, seed: int, show=print) -> tuple[Counter[str], list[int]]:
    """Run the workloads `seed` to `seed + count - 1`.

    Returns:
        (event -> count; the seeds that failed).
    """
    happened: Counter[str] = Counter()
    failed: list[int] = []
    for number in range(seed, seed + count):
        try:
            happened += Workload(number).play()
        except Exception:
            failed.append(number)
            show(f"seed {number}:\n{traceback.format_exc(limit=-4)}")
    return happened, failed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_workloads", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the models are tiny
    started = time.perf_counter()
    happened, failed = run(options.count, options.seed)
    print(f"{options.count} workloads in {time.perf_counter() - started:.0f} s")
    print(", ".join(f"{what}: {count:,}" for what, count in sorted(happened.items())))
    print(f"failed: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
