"""`python -m tools.interrupts`: raise an exception at every line that an engine runs, and see that nothing is lost.

    python -m tools.interrupts --times 5

A small workload with preemption, swap, forks, streams, stop strings, callbacks, aborts and a refused request runs once
to note the lines that it executes in the engine, the scheduler, the cache, its floors and the attention. Then it runs
again for each line, and there an exception is raised. The caller gives up the call that was interrupted, and everything
else goes on. At the end, each request has ended with the answer that it gets alone, or with an error. No token was
passed on twice or left out, and no block is lost.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
import weakref
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

import lessons_lib
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.engine.speculation import speculating
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.sequence import Sequence
from tools.random_workloads import LETTERS, audit_floors

PARTS = tuple(
    str(Path(lessons_lib.__file__).parent / part)
    for part in ("engine", "scheduling", "kv_cache", "attention", "floors")
)
GUESSING, FLOORED = -1, -2
DEPTHS = (0, 1, GUESSING, FLOORED)  # steps in flight between two calls; or none, and guesses, or floors below the pool
ERRORS = (KeyboardInterrupt, MemoryError)
MOST_STEPS = 500

rng = random.Random(4)
WORDS = [rng.randrange(VOCAB_SIZE) for _ in range(60)]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
PARAMS = {  # request id -> what is asked for
    "plain": SamplingParams(max_tokens=9, ignore_eos=True),
    "told": SamplingParams(max_tokens=8, ignore_eos=True),
    "forked": SamplingParams(max_tokens=5, n=3, temperature=1.0, seed=5, ignore_eos=True),
    "stopped": SamplingParams(max_tokens=9, stop=("X3", "zz"), ignore_eos=True),
    "likely": SamplingParams(max_tokens=4, logprobs=2, ignore_eos=True),
    "aborted": SamplingParams(max_tokens=9, ignore_eos=True),
    "ended": SamplingParams(max_tokens=9),
}
PROMPTS = {name: WORDS[:6] + WORDS[10 + 5 * index : 13 + 6 * index] for index, name in enumerate(PARAMS)}
READ, GENERATED = WORDS[40:47], [WORDS[:8], WORDS[50:53]]


class Interrupter:
    """Raises an exception at the n-th line executed in PARTS, and then perhaps again. Used as `with interrupter:`.

    Attributes:
        at: n, from 0, and for each further exception the lines since the one before. If empty, lines are only noted.
        lines: how many were executed so far.
        executed: those lines, if they are only noted: (file, line).
        where: (file, line) of each exception.
    """

    def __init__(self, *at: int, error: type[BaseException] = KeyboardInterrupt):
        self.at, self.error, self.lines = at, error, 0
        self.executed: list[tuple[str, int]] = []
        self.where: list[tuple[str, int]] = []

    def __enter__(self) -> None:
        if not self.at or len(self.where) < len(self.at):
            sys.settrace(self.on_call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def on_call(self, frame, event, argument):
        return self.on_line if frame.f_code.co_filename.startswith(PARTS) else None

    def on_line(self, frame, event, argument):
        if event == "line":
            if self.at and self.lines == self.at[len(self.where)]:
                sys.settrace(None)
                self.lines = 0
                self.where.append((Path(frame.f_code.co_filename).name, frame.f_lineno))
                raise self.error("interrupted on purpose")
            self.lines += 1
            if not self.at:
                self.executed.append((frame.f_code.co_filename, frame.f_lineno))
        return self.on_line


@dataclass
class Run:
    """One run of the workload.

    Attributes:
        outputs: id -> what `step` or `abort` returned.
        told: id -> the tokens that its callback was called with.
        answers: (prompt, tokens) of `generate` and `stream`, as far as they were read.
        interrupted: whether the exception came out of a call.
    """

    depth: int
    interrupter: Interrupter
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    told: dict[str, list[NewToken]] = field(default_factory=dict)
    answers: list[tuple[list[int], list[int]]] = field(default_factory=list)
    added: set[str] = field(default_factory=set)
    interrupted: bool = False

    def play(self) -> None:
        """Run the workload to its end.

        Raises:
            AssertionError: a request is lost or stuck, an answer is wrong, a token was passed on twice, or a block is
                lost.
        """
        self.engine = engine = make_engine(self.depth)
        for _ in range(4):  # again for those that interrupts kept from being added
            self.guarded(self.add_all)
        for step in range(MOST_STEPS):
            if step == 3:
                self.guarded(self.read_a_stream)
            if step == 5:
                self.guarded(self.generate)
            if step == 2 and "aborted" in engine.requests:
                self.guarded(lambda: self.take([engine.abort("aborted")]))
            self.guarded(lambda: self.take(engine.step()))
            if not engine.has_unfinished():
                break
        else:
            raise AssertionError(f"stuck: {list(engine.requests)} not done after {MOST_STEPS} steps")
        self.check()
        engine.close()

    def guarded(self, call) -> None:
        try:
            with self.interrupter:
                call()
        except ERRORS:
            self.interrupted = True

    def add_all(self) -> None:
        engine = self.engine
        for name, params in PARAMS.items():
            if name in engine.requests or name in self.added:
                continue  # an error may have ended it already
            tokens = self.told[name] = []
            on_token = {"told": tokens.append, "forked": tokens.append, "ended": self.aborting(tokens)}.get(name)
            self.added.add(engine.add_request(PROMPTS[name], params, request_id=name, on_token=on_token))
        with suppress(BadRequest):
            engine.add_request([], GREEDY)

    def aborting(self, tokens: list[NewToken]):
        """A callback that aborts its own request at the third token."""

        def on_token(token: NewToken) -> None:
            tokens.append(token)
            if len(tokens) == 3:
                output = self.engine.abort("ended")
                self.take([output])

        return on_token

    def read_a_stream(self) -> None:
        tokens: list[int] = []
        self.answers.append((READ, tokens))
        with closing(self.engine.stream(READ, GREEDY)) as stream:
            for token in itertools.islice(stream, 4):
                tokens.append(token.token)

    def generate(self) -> None:
        outputs = self.engine.generate(GENERATED, GREEDY)
        assert all(len(output.token_ids) == GREEDY.max_tokens or output.error for output in outputs), "too short"
        self.answers += [(output.prompt_ids, output.token_ids) for output in outputs]

    def take(self, outputs: list[RequestOutput | None]) -> None:
        for output in outputs:
            if output:
                assert output.request_id not in self.outputs, f"{output.request_id} was returned twice"
                self.outputs[output.request_id] = output

    def check(self) -> None:
        """Everything that must hold at the end."""
        engine, scheduler = self.engine, self.engine.scheduler
        audit(scheduler)
        audit_floors(scheduler.pool)
        assert not scheduler.pool.used and not scheduler.swap_space.used, "blocks are lost"
        assert not engine.requests and not scheduler.running and not len(scheduler.waiting), "sequences are left"
        assert self.outputs.keys() == PARAMS.keys(), f"lost: {PARAMS.keys() ^ self.outputs.keys()}"
        for name, output in self.outputs.items():
            self.check_output(name, output)
        for prompt, tokens in self.answers:
            assert tokens == alone(prompt, GREEDY)[0].token_ids[: len(tokens)], "a wrong answer"

    def check_output(self, name: str, output: RequestOutput) -> None:
        expected = alone(PROMPTS[name], PARAMS[name])
        is_whole = output.error is None and output.finish_reason != "abort"
        assert output.error is None or self.interrupted or self.interrupter.where, repr(output.error)
        assert not is_whole or len(output.completions) == PARAMS[name].n, f"{name} lacks completions"
        for completion, right in zip(output.completions, expected):
            count = len(completion.token_ids)
            assert completion.token_ids == right.token_ids[:count], f"{name}: {completion.token_ids}, not {right}"
            if is_whole:
                assert count == len(right.token_ids) and completion.text == right.text, f"{name}: {completion}"
                assert completion.finish_reason == right.finish_reason
            if completion.logprobs is not None:
                assert len(completion.logprobs) == count, f"{name} lacks log-probabilities"
        if PARAMS[name].stop or not self.told[name]:
            return
        for completion in output.completions:
            told = [token for token in self.told[name] if token.index == completion.index]
            tokens, text = [token.token for token in told], "".join(token.text for token in told)
            if is_whole:
                assert tokens == completion.token_ids and text == completion.text, f"{name} was told {tokens}"
            else:
                assert tokens == expected[completion.index].token_ids[: len(tokens)], f"{name} was told {tokens}"


def make_engine(depth: int, **config) -> LLMEngine:
    """A small engine whose pool is too small for the workload."""
    sizes = dict(max_num_seqs=5, max_num_batched_tokens=16, block_size=4, num_blocks=13, num_swap_blocks=8)
    if depth == 1:
        config |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
    folder = tempfile.TemporaryDirectory()
    if depth == FLOORED:
        config |= dict(num_swap_blocks=0, num_blocks=8, max_model_len=32, host_cache_bytes=2**12)
        config |= dict(disk_cache_bytes=2**15, cache_dir=folder.name)
    parts = speculating(Guessing()) if depth == GUESSING else None
    config = {**sizes, "max_model_len": 52, **config}
    engine = LLMEngine(tiny_model("qwen2", seed=3), LETTERS, EngineConfig(**config), parts=parts)
    if depth == FLOORED:
        engine.scheduler.pool.below.pin(hash_full_blocks(Sequence("", PROMPTS["plain"], 1), 4), 1e9)
    weakref.finalize(engine, folder.cleanup)
    return engine


class Guessing:
    """A proposer that knows the answers, and whose second guess is wrong."""

    def __init__(self):
        asked = [*((PROMPTS[name], params) for name, params in PARAMS.items())]
        asked += [(prompt, GREEDY) for prompt in (READ, *GENERATED)]
        self.answers = {tuple(prompt): alone(prompt, params) for prompt, params in asked}

    def propose(self, sequences, most):
        return [self.guess(each, most) for each in sequences]

    def guess(self, request, most):
        answers = self.answers.get(tuple(request.prompt_ids))
        answer = answers[request.index].token_ids[len(request.output_ids) :][:most] if answers else []
        return [Guess((token + (place == 1)) % VOCAB_SIZE, 1.0) for place, token in enumerate(answer)]


_alone: dict[tuple, list[CompletionOutput]] = {}


def alone(prompt: list[int], params: SamplingParams) -> list[CompletionOutput]:
    """The completions that a prompt gets in an engine of its own, which is never interrupted."""
    key = (*prompt, params)
    if key not in _alone:
        (output,) = make_engine(0, num_blocks=100).generate([prompt], params)
        _alone[key] = output.completions
    return _alone[key]


def moments(depth: int, times: int) -> list[int]:
    """When to interrupt the workload: every line that it executes, at its first execution, its last, and others in
    between, `times` in all.

    Returns:
        indices among all lines that the workload executes.
    """
    interrupter = Interrupter()
    Run(depth, interrupter).play()
    when: dict[tuple[str, int], list[int]] = {}
    for index, line in enumerate(interrupter.executed):
        when.setdefault(line, []).append(index)
    chosen = {indices[-1 - (len(indices) - 1) * part // times] for indices in when.values() for part in range(times)}
    return sorted(chosen)


def sweep(
    depth: int, error: type[BaseException], chosen: list[int], again: tuple[int, ...] = (), show=print
) -> Counter[str]:
    """Interrupt the workload at the chosen moments, once in each run.

    Args:
        again: lines after that interrupt, for another one, perhaps in the middle of the recovery.

    Returns:
        what happened -> how often: "interrupts", "failed requests", and "broken": runs after which something was wrong.
    """
    happened: Counter[str] = Counter()
    for at in chosen:
        interrupter = Interrupter(at, *again, error=error)
        run = Run(depth, interrupter)
        happened["interrupts"] += 1
        try:
            run.play()
            happened["failed requests"] += sum(output.error is not None for output in run.outputs.values())
        except Exception as failure:
            happened["broken"] += 1
            show(f"depth {depth}, line {at}, {interrupter.where}: {type(failure).__name__}: {failure}")
    return happened


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.interrupts", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how many executions of each line are interrupted")
    parser.add_argument("--stride", type=int, default=1, help="of those, only every n-th")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the model is tiny
    broken = 0
    for depth in DEPTHS:
        for error in ERRORS:
            began = time.perf_counter()
            happened = sweep(depth, error, moments(depth, options.times)[:: options.stride])
            broken += happened["broken"]
            told = ", ".join(f"{what}: {count:,}" for what, count in happened.items())
            seconds = time.perf_counter() - began
            print(f"depth {depth}, {error.__name__}: {told or 'nothing'}; {seconds:.0f} s", flush=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
