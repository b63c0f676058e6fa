"""`python -m tools.gpu_bench.floors`: what a host floor brings on this GPU.

A turn of a long conversation comes back whose blocks have left the pool: time to its first token if they are loaded
from host memory, and if they are computed again. And how fast other sequences decode meanwhile, next to the same turn
with its blocks in the pool, and to a turn that is as short as what the long one has to compute.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch

from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.floors.host_cache import bytes_of_block
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import SHAPES, NoWords, random_model

BLOCK, NEW, CONVERSATIONS, TURNS, STEPS = 16, 16, 6, 8, 25


def make_engine(options: argparse.Namespace, host_gib: float) -> LLMEngine:
    """An engine whose pool holds the sequences that decode, and two of the conversations."""
    decoding = options.decoding * (64 + STEPS * (TURNS + 4)) // BLOCK
    config = EngineConfig(
        max_num_seqs=options.decoding + 2, max_num_batched_tokens=2048, max_model_len=options.tokens + 512,
        block_size=BLOCK, num_blocks=decoding + 5 * options.tokens // (2 * BLOCK), probe=False,
        host_cache_bytes=int(host_gib * 2**30),
        **{} if options.small else dict(overlap=True, make_runner=gpu_model_runner()),
    )  # fmt: skip
    engine = LLMEngine(random_model(options.shape, options.tokens + 512, options.small), NoWords(), config)
    if not options.small:
        warm_up(engine.runner)
    return engine


def a_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(90) for _ in range(length)]


def first_token(engine: LLMEngine, prompt: list[int]) -> tuple[float, int]:
    """(seconds to the first token, tokens found in the cache)."""
    begin = time.perf_counter()
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True))
    return time.perf_counter() - begin, output.num_cached_tokens


def returning(engine: LLMEngine, conversations: list[list[int]]) -> dict[str, float]:
    """Median of the returning turns: seconds to the first token, and tokens found."""
    for prompt in conversations:
        first_token(engine, prompt)
    turns = [first_token(engine, prompt + a_prompt(NEW, 50 + turn))
             for turn in range(2) for prompt in conversations]  # fmt: skip
    return {"seconds": statistics.median(time for time, _ in turns), "cached": min(found for _, found in turns)}


def decode_beside(engine: LLMEngine, options: argparse.Namespace, prompts: list[list[int]]) -> float:
    """Seconds of a step in which all others decode, while one of these turns comes every STEPS steps."""
    params = SamplingParams(max_tokens=STEPS * (TURNS + 3), ignore_eos=True)
    decoders = [engine.add_request(a_prompt(64, 1000 + index), params) for index in range(options.decoding)]
    for _ in range(STEPS):
        engine.step()
    begin = time.perf_counter()
    for turn in range(TURNS):
        prompt = prompts[turn % len(prompts)] + a_prompt(NEW, 2000 + turn)
        engine.add_request(prompt, SamplingParams(max_tokens=1, ignore_eos=True))
        for _ in range(STEPS):
            engine.step()
    seconds = (time.perf_counter() - begin) / (TURNS * STEPS)
    for name in decoders:
        engine.abort(name)
    while engine.has_unfinished():
        engine.step()
    return seconds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.floors", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default=next(iter(SHAPES)))
    parser.add_argument("--tokens", type=int, default=8000, help="of a conversation that comes back")
    parser.add_argument("--decoding", type=int, default=16, help="sequences that decode meanwhile")
    parser.add_argument("--host-gib", type=float, default=8.0)
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU, to try this out")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the results there as JSON")
    options = parser.parse_args(arguments)
    conversations = [a_prompt(options.tokens, seed) for seed in range(CONVERSATIONS)]
    engine = make_engine(options, options.host_gib)
    loaded = returning(engine, conversations)
    num_loaded = engine.scheduler.pool.num_loaded  # type: ignore[attr-defined]
    beside = {"loading": decode_beside(engine, options, conversations)}
    beside["in the pool"] = decode_beside(engine, options, conversations[:1])
    beside["short prompts"] = decode_beside(engine, options, [a_prompt(BLOCK, 99)])
    bytes_each = bytes_of_block(engine.runner.cache)
    engine.close()
    del engine
    torch.cuda.empty_cache()
    engine = make_engine(options, 0)
    computed = returning(engine, conversations)
    engine.close()
    results = {
        "shape": options.shape, "tokens": options.tokens, "decoding": options.decoding, "loaded": loaded,
        "computed": computed, "loaded / computed": loaded["seconds"] / computed["seconds"],
        "blocks loaded": num_loaded, "bytes of a block": bytes_each, "seconds of a step beside": beside,
        "slower beside loading": beside["loading"] / beside["in the pool"] - 1,
    }  # fmt: skip
    print(json.dumps(results, indent=1))
    if options.record:
        options.record.write_text(json.dumps({**facts_of("tools.gpu_bench.floors"), **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
