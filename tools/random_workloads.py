"""Random workloads: whatever the scheduler does and a proposer guesses, each answer must equal the one that its prompt
gets alone: greedy ones that of Hugging Face `generate`, others that of an engine with nothing else to do.

    python -m tools.random_workloads --count 5000 --seed 0

Every workload draws an engine (with or without a step in flight), a policy, an admission rule, a pool that is too
small, a swap space, a block size, a proposer that is right now and then, and a few requests, some with several
completions and some that are aborted. Tiny random models answer on the CPU. The pool is audited after every step, and
must be empty at the end. `--seed N --count 1` repeats one workload.
"""

import argparse
import functools
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine, Parts
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.outputs import CompletionOutput, RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.engine.speculation import speculating
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.floors.segment_file import ENTRY_BYTES, PAGE, SegmentFile
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling.policies import BalancedLengths, PriorityWithAging, ShortestJobFirst, StrictPriority
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.sequence import FirstComeFirstServed

FAMILIES = ("qwen2", "llama", "gpt2")
can_guide = find_spec("llguidance") is not None
END = 12
LONGEST_ANSWER = 12
MOST_STEPS = 10_000
POLICIES = (
    FirstComeFirstServed(),
    ShortestJobFirst(),
    StrictPriority(),
    PriorityWithAging(1.0, head_start=0.5),
    BalancedLengths(16, window=4),
)


class Letters:
    """A tokenizer for a model that writes nonsense: one character per token."""

    eos_token_id = END

    def __init__(self) -> None:
        # The last ones have no letter that a grammar could ask for.
        vocab = {chr(33 + token) if token < 94 else f"<{token}>": token for token in range(VOCAB_SIZE)}
        self.backend_tokenizer = Tokenizer(models.BPE(vocab, []))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend_tokenizer.decoder = decoders.ByteLevel()

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(33 + token) for token in token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 33 for letter in text if letter > " "]


LETTERS: Any = Letters()  # one for all engines: the parser of grammars takes a second to learn a tokenizer
FORMS = (
    dict(regex="[A-Za-z]{2,9}[0-9]{1,3}"),
    dict(choice=("abc", "abQ", "XYZXYZXYZXYZ", "ab")),
    dict(grammar='start: "(" start ")" | /[a-d]{1,3}/'),
)


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Prompts of 1 to 24 tokens; many share a prefix, and some are a prefix of another."""
    rng = random.Random(5)
    words = tuple(rng.randrange(VOCAB_SIZE) for _ in range(100))
    whole = [words[:length] for length in (1, 2, 3, 4, 7, 8, 12, 16, 17, 24)]
    branches = [words[:shared] + words[40 + own : 40 + own + 4] for shared in (4, 8, 16) for own in (0, 7)]
    return (*whole, *branches, words[60:61], words[62:65], words[66:70], words[72:80])


# Family -> function (family) -> its tiny model; others may be added.
MAKERS: dict[str, Callable[[str], PreTrainedModel]] = dict.fromkeys(FAMILIES, functools.partial(tiny_model, seed=3))


@functools.cache
def model_of(family: str) -> PreTrainedModel:
    """The tiny model of a family."""
    return MAKERS[family](family)


@functools.cache
@torch.inference_mode()
def generated_alone(family: str, prompt: tuple[int, ...]) -> list[int]:
    """The greedy answer of `LONGEST_ANSWER` tokens from Hugging Face `generate`, which doesn't stop at the end token
    here."""
    ids = torch.tensor([prompt])
    model = model_of(family)
    options = dict(max_new_tokens=LONGEST_ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


@functools.cache
def engine_alone(family: str) -> LLMEngine:
    return LLMEngine(model_of(family), LETTERS, EngineConfig(num_blocks=64, block_size=4, max_model_len=64))


answers_alone: dict[tuple, list[CompletionOutput]] = {}


def expected_completions(family: str, prompt: tuple[int, ...], params: SamplingParams) -> list[CompletionOutput]:
    """What a request gets alone."""
    key = family, prompt, repr(params)
    if key not in answers_alone:
        found = engine_alone(family).generate([list(prompt)], params)[0].completions
        if params == SamplingParams(max_tokens=params.max_tokens, n=params.n, ignore_eos=params.ignore_eos):
            answer = generated_alone(family, prompt)[: params.max_tokens]
            if END in answer and not params.ignore_eos:
                answer = answer[: answer.index(END) + 1]
            assert all(each.token_ids == answer for each in found)
        answers_alone[key] = found
    return answers_alone[key]


class Knowing:
    """A proposer that knows the answers, and tells each token of them with some probability."""

    def __init__(self, workload: "Workload", right: float):
        self.workload, self.right, self.rng = workload, right, random.Random(workload.rng.random())

    def propose(self, sequences: list[Any], most: int) -> list[list[Guess]]:
        return [self.guess(each, self.rng.randint(0, most)) for each in sequences]

    def guess(self, request: Any, count: int) -> list[Guess]:
        prompt, params = self.workload.asked[request.group.id]
        whole = expected_completions(self.workload.family, prompt, params)[request.index].token_ids
        known, rng = len(request.output_ids), self.rng
        tokens = [*whole[known : known + count], *rng.choices(range(VOCAB_SIZE), k=count)][:count]
        return [
            Guess(token if rng.random() < self.right else rng.randrange(VOCAB_SIZE), rng.random()) for token in tokens
        ]


class Workload:
    """One engine and its requests.

    Attributes:
        seed: everything is drawn from it.
        happened: event -> how often it happened.
        families: the models to choose from.
        close: the largest difference of two log-probabilities.
        num_requests: at least, and at most.
        block_sizes, spare_blocks: the sizes to choose from, and how many blocks more than one request needs.
        with_rules: how likely a request has rules for its logits, and how likely a form for its text.
    """

    families: tuple[str, ...] = FAMILIES
    num_requests = 2, 6
    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 8, 16)
    spare_blocks: tuple[int, ...] = (0, 0, 1, 2, 5, 40)
    close, with_rules = 1e-4, 0.25

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.rng_of_rules = random.Random(-1 - seed)
        self.family = rng.choice(self.families)
        self.happened: Counter[str] = Counter()
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.to_come = [self.draw_request() for _ in range(rng.randint(*self.num_requests))]
        self.abort_rate = rng.choice([0.0, 0.0, 0.1])
        self.engine = self.draw_engine()
        self.metrics = EngineMetrics(self.engine)

    def draw_request(self) -> tuple[tuple[int, ...], SamplingParams, dict[str, object]]:
        rng = self.rng
        params: dict[str, Any] = dict(
            max_tokens=rng.choice([1, 3, 8, LONGEST_ANSWER]),
            n=rng.choice([1, 1, 1, 2, 3]),
            ignore_eos=rng.random() < 0.5,
        )
        if rng.random() < 0.4:
            params |= dict(
                temperature=rng.choice([0.0, 0.7, 1.0, 1.5]), seed=rng.randrange(3), top_p=rng.choice([1.0, 0.9]),
                top_k=rng.choice([0, 0, 20]), repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.3]),
                logprobs=rng.choice([None, None, 0, 2]), prompt_logprobs=rng.choice([None, None, None, 1]),
                stop=rng.choice([(), ("5",), ("Q", "zz")]), stop_token_ids=rng.choice([(), (30, 31, 32)]),
                min_tokens=rng.choice([0, 0, 2]) if params["max_tokens"] > 2 else 0,
            )  # fmt: skip
        params |= self.draw_rules()
        options = {
            "tier": rng.randrange(2),
            "expected_tokens": rng.choice([None, 2.0, 9.0]),
            "is_interactive": rng.random() < 0.3,
        }
        return rng.choice(prompts()), SamplingParams(**params), options

    def draw_rules(self) -> dict[str, object]:
        rng, rules = self.rng_of_rules, dict[str, object]()
        if rng.random() < self.with_rules:
            rules |= dict(
                logit_bias=rng.choice([None, {5: 4.0, 64: 3.0, 60: -100.0}]), bad_words=rng.choice([(), ("Q", "ab")]),
                allowed_token_ids=rng.choice([None, None, tuple(range(15, 92))]),
                presence_penalty=rng.choice([0.0, 1.5]), frequency_penalty=rng.choice([0.0, -0.5]),
            )  # fmt: skip
        if can_guide and rng.random() < self.with_rules:
            form = StructuredOutputsParams(**rng.choice(FORMS))
            rules |= dict(structured_outputs=form, min_tokens=0, ignore_eos=False)
        return rules

    def draw_config(self) -> dict[str, object]:
        rng, block_size = self.rng, self.rng.choice(self.block_sizes)
        needed = max(
            blocks_for(len(prompt) + (params.max_tokens or 1) - 1, block_size) for prompt, params, _ in self.to_come
        )
        num_blocks = needed + rng.choice(self.spare_blocks)
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
        model, overlapped = model_of(self.family), self.rng.random() < 0.5
        self.happened["overlapped"] += overlapped
        if overlapped:
            config |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
        parts, right = Parts(), self.rng.choice([None, 0.0, 0.5, 0.9, 1.0])
        if right is not None:
            self.happened["speculating"] += 1
            parts = speculating(Knowing(self, right), self.rng.randint(1, 5))
        return LLMEngine(model, LETTERS, EngineConfig(**config), parts=parts)

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
                for output in self.step():
                    self.check(output)
                self.audit()
                if engine.requests and self.rng.random() < self.abort_rate:
                    self.abort(self.rng.choice(list(engine.requests)))
                steps += 1
                assert steps < MOST_STEPS, f"not done after {steps} steps"
            self.audit()
            assert not self.asked, f"{list(self.asked)} never finished"
            assert not scheduler.pool.used and not scheduler.swap_space.used, "blocks are still in use"
        self.happened.update(steps=steps, preemptions=scheduler.num_preempted, swaps=scheduler.num_swapped)
        self.happened["cached tokens"] += self.metrics.cached_tokens
        self.happened["guesses"] += getattr(engine.core, "num_draft_tokens", 0)
        self.happened["right guesses"] += getattr(engine.core, "num_accepted_tokens", 0)
        return self.happened

    def step(self) -> list[RequestOutput]:
        return self.engine.step()

    def abort(self, name: str) -> None:
        if output := self.engine.abort(name):
            self.check(output, is_aborted=True)

    def audit(self) -> None:
        audit(self.engine.scheduler)

    def add_some(self) -> None:
        while self.to_come and self.rng.random() < 0.5:
            prompt, params, options = self.to_come.pop()
            name = self.engine.add_request(prompt, params, **options)
            self.asked[name] = prompt, params
            self.happened["requests"] += 1
            self.happened["forks"] += params.n > 1
            self.happened["guided"] += params.structured_outputs is not None
            self.happened["with rules"] += params.changes_logits
            self.happened["with log-probabilities"] += params.logprobs is not None

    def check(self, output: RequestOutput, is_aborted: bool = False) -> None:
        prompt, params = self.asked.pop(output.request_id)
        if output.error:
            raise AssertionError(f"request {output.request_id} failed") from output.error
        expected = expected_completions(self.family, prompt, params)
        assert is_aborted or len(output.completions) == params.n
        for found, alone in zip(output.completions, expected):
            tokens = found.token_ids
            wanted = alone.token_ids[: len(tokens)] if is_aborted else alone.token_ids
            assert tokens == wanted, f"prompt {prompt}, {params}: {tokens}; alone {alone.token_ids}"
            assert is_aborted or (found.finish_reason, found.text) == (alone.finish_reason, alone.text)
            assert (found.logprobs is None) == (params.logprobs is None)
            if found.logprobs:
                assert len(found.logprobs) == len(tokens)
                pairs = zip(found.logprobs, alone.logprobs)
                assert all(abs(own.logprob - other.logprob) < self.close for own, other in pairs)
            self.happened["answers compared"] += 1
        self.happened["aborted" if is_aborted else "finished"] += 1


class FlooredWorkload(Workload):
    """A workload whose pool has floors below it, so small that most blocks move. All of its requests come back, and
    once more after a restart, before which the file may be damaged. Some copies, reads and writes fail halfway."""

    block_sizes, spare_blocks, disk_slots = (1, 2, 3, 4, 8), (0, 0, 1, 2, 5), (0, 1, 3, 10, 100)

    def __init__(self, seed: int):
        self.folder, self.is_mortal, self.num_open = tempfile.TemporaryDirectory(), False, open_files()
        super().__init__(seed)
        again = list(self.to_come)
        self.after_restart = self.rng.sample(again, len(again))
        self.to_come += self.rng.sample(again, len(again))

    def draw_request(self) -> tuple[tuple[int, ...], SamplingParams, dict[str, object]]:
        prompt, params, options = super().draw_request()
        salt = {"cache_salt": self.rng.choice("abcd")}  # most prompts share their first blocks
        return max(prompt, self.rng.choice(prompts()), key=len), params, options | salt

    def draw_config(self) -> dict[str, object]:
        config, rng = super().draw_config(), self.rng
        size = block_bytes(model_of(self.family).config, config["block_size"])
        floors = dict(host_cache_bytes=size * rng.choice([1, 2, 5, 40]), cache_dir=self.folder.name)
        floors["disk_cache_bytes"] = (size + ENTRY_BYTES) * rng.choice(self.disk_slots)
        return config | floors | dict(share_prefixes=True, num_swap_blocks=0)

    @property
    def segment(self) -> SegmentFile:
        return self.engine.scheduler.pool.below.below.segment

    def audit(self) -> None:
        super().audit()
        audit_floors(self.engine.scheduler.pool)
        if self.engine.requests and self.rng.random() < 0.1:
            request = self.rng.choice(list(self.engine.requests.values())).completions[0]
            self.engine.scheduler.pool.below.pin(self.engine.scheduler.hashes_of(request), self.rng.choice([0, 9, 99]))

    def play(self) -> Counter[str]:
        with self.folder:
            self.play_once()
            if self.happened["file"]:
                self.happened["damages"] += damage(self.segment.path, self.rng, 0.5)
            self.restart()
            self.play_once()
        return self.happened

    def restart(self) -> None:
        self.to_come, self.asked = list(self.after_restart), {}
        self.engine = LLMEngine(model_of(self.family), LETTERS, self.engine.config)
        self.metrics = EngineMetrics(self.engine)

    def play_once(self) -> None:
        host = self.engine.scheduler.pool.below
        host.clock = itertools.count().__next__
        for name in ("store", "load"):
            self.let_fail(host.mover, name)
        if host.below:
            self.happened["file"] += 1
            for name in ("put", "read"):
                self.let_fail(self.segment, name)
        super().play()
        self.happened["loaded blocks"] += self.engine.scheduler.pool.num_loaded

    def let_fail(self, what: Any, name: str) -> None:
        """Let a method fail now and then, or always, when it has done a half. A mortal process ends there."""
        whole, rate = getattr(what, name), self.rng.choice([0.0, 0.0, 0.0, 0.2, 1.0 if name == "put" else 0.2])

        def halved(*arguments: Any) -> Any:
            if self.rng.random() >= rate:
                result = whole(*arguments)
                self.happened["blocks refused" if result is False else f"{name}s"] += 1
                return result
            whole(*(each[: len(each) // 2] if hasattr(each, "__len__") else each for each in arguments))
            if self.is_mortal:
                os.kill(os.getpid(), signal.SIGKILL)
            self.happened[f"failed to {name}"] += 1
            raise OSError("a fault")

        setattr(what, name, halved)


class DamagedWorkload(FlooredWorkload):
    """A small workload over a file that is always damaged: a process that is killed leaves it, or its blocks become
    those of another model, and while it is used, it is cut and changed. Nothing may be left behind."""

    families, with_rules, block_sizes, spare_blocks, disk_slots = ("qwen2",), 0.0, (2, 3, 4), (0, 1, 2), (3, 10, 100)

    def draw_request(self) -> tuple[tuple[int, ...], SamplingParams, dict[str, object]]:
        prompt, _, options = super().draw_request()
        return prompt, SamplingParams(max_tokens=3, n=self.rng.choice([1, 1, 2]), ignore_eos=True), options

    def audit(self) -> None:
        super().audit()
        self.happened["damages"] += damage(self.segment.path, self.rng, 0.05)

    def play(self) -> Counter[str]:
        with self.folder:
            (self.play_until_killed if self.rng.random() < 0.5 else self.play_once)()
            self.happened["foreign files"] += make_foreign(self.segment, self.rng, 0.3)
            self.happened["damages"] += damage(self.segment.path, self.rng, 0.7)
            self.restart()
            self.play_once()
            names = [each.name for each in Path(self.folder.name).iterdir()]
            assert names in ([], [self.segment.path.name]) and open_files() <= self.num_open, f"left behind: {names}"
            a_segment(self.segment).close()  # not locked
        return self.happened

    def play_until_killed(self) -> None:
        """Serve in another process, which is killed at a random moment, or in the middle of a copy or a write."""
        self.segment.close()
        process = os.fork()
        if not process:
            try:
                self.restart()
                self.is_mortal = self.rng.random() < 0.5
                self.play_once()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        time.sleep(self.rng.random() * 0.2)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        assert status in (0, signal.SIGKILL), "the process failed"
        self.happened["kill -9"] += bool(status)


def damage(file: Path, rng: random.Random, rate: float = 1.0) -> bool:
    """Change one bit of a file, or a few hundred, cut it, or write something else over a part of it, at a rate. Returns
    False if nothing happened."""
    if rng.random() >= rate or not file.exists():
        return False
    data = bytearray(file.read_bytes())
    start = 0 if rng.random() < 0.1 else min(PAGE, len(data) - 1)  # damage to the header costs all blocks
    at, kind = rng.randrange(start, len(data)) if data else 0, rng.randrange(4)
    if kind < 2 and data:
        for place in [at, *rng.choices(range(start, len(data)), k=300 * kind)]:
            data[place] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del data[at:]
    else:
        data[at : at + rng.randrange(5000)] = rng.randbytes(rng.randrange(5000))
    file.write_bytes(data)
    return True


def a_segment(like: SegmentFile, header: bytes | None = None) -> SegmentFile:
    return SegmentFile(like.path, header or like.header, like.num_records, like.data_bytes)


def make_foreign(like: SegmentFile, rng: random.Random, rate: float) -> bool:
    """Replace a file that no engine uses by that of another model, with the same hashes: see `damage`."""
    if happens := rng.random() < rate:
        own = a_segment(like)
        entries = [(record, bytes(block_hash), depth) for record, block_hash, depth in own.entries()]
        own.close()
        foreign = a_segment(like, like.header.replace(b'"version": 1', b'"version": 0'))
        for entry in entries:
            foreign.write(*entry, memoryview(rng.randbytes(like.data_bytes)))
        foreign.close()
    return happens


def open_files() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def audit_floors(pool: PrefixCache) -> None:
    """Check that no slot of a pool's floors is in use between two steps, or lost."""
    floor = getattr(pool, "below", None)
    while floor:
        pinned = {slot for slot, block_hash in floor.block_to_hash.items() if block_hash in getattr(floor, "pins", ())}
        assert floor.used == pinned and floor.ref_count == dict.fromkeys(pinned, 1), "a slot is in use, or isn't pinned"
        assert floor.free_queue.keys() == {*range(floor.num_blocks)} - pinned, "slots are lost"
        assert {slot: block_hash for block_hash, slot in floor.hash_to_block.items()} == floor.block_to_hash
        floor = getattr(floor, "below", None)


def run(count: int, seed: int, show=print, kind: type[Workload] = Workload) -> tuple[Counter[str], list[int]]:
    """Run the workloads `seed` to `seed + count - 1`.

    Returns:
        (event -> count; the seeds that failed).
    """
    happened: Counter[str] = Counter()
    failed: list[int] = []
    for number in range(seed, seed + count):
        try:
            happened += kind(number).play()
        except Exception:
            failed.append(number)
            show(f"seed {number}:\n{traceback.format_exc(limit=-4)}")
    return happened, failed


def main(arguments: list[str] | None = None, kind: type[Workload] = Workload) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_workloads", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--floors", action="store_true", help="with a host floor and a disk floor below the pool")
    parser.add_argument("--damages", action="store_true", help="the same in small, with a file that is damaged")
    options = parser.parse_args(arguments)
    kind = DamagedWorkload if options.damages else FlooredWorkload if options.floors else kind
    torch.set_num_threads(1)  # the models are tiny
    started = time.perf_counter()
    happened, failed = run(options.count, options.seed, kind=kind)
    print(f"{options.count} workloads in {time.perf_counter() - started:.0f} s")
    print(", ".join(f"{what}: {count:,}" for what, count in sorted(happened.items())))
    print(f"failed: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
