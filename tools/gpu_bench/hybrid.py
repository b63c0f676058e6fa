"""`python -m tools.gpu_bench.hybrid`: a model three quarters of whose layers keep a state, next to Hugging Face's
`generate` in static batches.

    python -m tools.gpu_bench.hybrid --readers 64 256 --record FILE

The shape is that of Qwen3.5-0.8B's text model, with random weights. Both serve the same requests, as many tokens each;
`generate` gets them all in one batch, which runs until the longest answer has ended. Rates count what was asked for.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import NoWords

SHAPE = dict(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2, head_dim=256,
    intermediate_size=3584, vocab_size=248320, linear_num_key_heads=16, linear_num_value_heads=16,
    linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True, max_position_embeddings=4096,
)  # fmt: skip
PROMPTS, ANSWERS = (50, 300), (32, 256)

Request = tuple[list[int], int]  # prompt, tokens to generate


def hybrid_model() -> PreTrainedModel:
    """A model of SHAPE with random weights, on the GPU in bfloat16."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SHAPE)).to(torch.bfloat16)
    return model.eval().requires_grad_(False)


def requests_of(count: int) -> list[Request]:
    """As many requests of random lengths."""
    rng = random.Random(0)
    return [
        ([rng.randrange(3, SHAPE["vocab_size"]) for _ in range(rng.randint(*PROMPTS))], rng.randint(*ANSWERS))
        for _ in range(count)
    ]


@torch.inference_mode()
def generate(model: Any, requests: list[Request]) -> float:
    """Serve requests in one static batch; seconds."""
    longest = max(len(prompt) for prompt, _ in requests)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in requests], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in requests])
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(
        ids, attention_mask=mask.to(model.device), max_new_tokens=max(count for _, count in requests),
        do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.cuda.synchronize()
    return time.perf_counter() - start


def engine_for(model: PreTrainedModel, readers: int, num_checkpoints: int = 0) -> LLMEngine:
    """An engine for that many sequences at a time."""
    config = EngineConfig(
        max_num_seqs=readers, max_num_batched_tokens=8192, num_blocks=readers * 40, max_model_len=600, overlap=True,
        cache_bytes=2**36, num_checkpoints=num_checkpoints, make_runner=gpu_model_runner(),
    )  # fmt: skip
    no_words: Any = NoWords()
    return LLMEngine(model, no_words, config)


def serve(engine: LLMEngine, requests: list[Request]) -> float:
    """Serve requests that are all there at the start; seconds."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for prompt, count in requests:
        engine.add_request(prompt, SamplingParams(max_tokens=count, temperature=0, ignore_eos=True))
    while engine.has_unfinished():
        for output in engine.step():
            assert not output.error, output.error
    return time.perf_counter() - start


def decode_milliseconds(engine: LLMEngine, readers: int) -> float:
    """The median time of a step of decodes only."""
    for prompt, _ in requests_of(readers):
        engine.add_request(prompt, SamplingParams(max_tokens=100, temperature=0, ignore_eos=True))
    times = []
    while engine.has_unfinished():
        start = time.perf_counter()
        engine.step()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[-60:-10])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.hybrid", description=__doc__.splitlines()[0])
    parser.add_argument("--readers", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    model, rows = hybrid_model(), []
    for readers in options.readers:
        requests = requests_of(readers)
        tokens = sum(count for _, count in requests)
        engine = engine_for(model, readers)
        runs = [(serve(engine, requests), generate(model, requests)) for _ in range(options.rounds + 1)][1:]
        own, static = (statistics.median(times) for times in zip(*runs))
        row = dict(readers=readers, engine=tokens / own, generate=tokens / static, ratio=static / own)
        row |= dict(decode_ms=decode_milliseconds(engine, readers))
        row |= dict(state_mib=engine.fit.states.bytes_per_slot / 2**20)
        rows.append(row)
        print(row, flush=True)
        engine.close()
    if options.record:
        facts = facts_of("tools.gpu_bench.hybrid")
        options.record.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
