"""`python -m tools.gpu_bench.speculation`: several tokens a step, in turns with the same engine without guesses.

    python -m tools.gpu_bench.speculation --shape Llama-3.1-8B --record FILE

Weights are random. Layers behind the first sixteenth add little, so these alone are a draft that is often right: each
row says how often. Where a text copies itself, no layer adds anything, and each token is followed by the next of its
64. Greedy answers may differ where two logits are equal in bfloat16, since a step with guesses adds in another order.
"""

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.draft_model import DraftModel
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.proposers import NgramLookup
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.speculation import Proposer, speculating
from lessons_lib.engine.warm_up import warm_up
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import SHAPES, NoWords, random_model

COPYING = "lookup in text that copies itself"
MAX_MODEL_LEN, ANSWER, PERIOD = 1024, 256, 64
REQUESTS = {1: 4, 8: 24, 256: 256}  # readers -> requests
ROWS = [("draft", readers, temperature) for readers in (1, 8) for temperature in (0.0, 1.0)]
ROWS += [("lookup", readers, 1.0) for readers in (1, 8, 256)]
ROWS += [(COPYING, readers, 0.0) for readers in (1, 8)]  # the last: they change the model


def scale_layers(model: PreTrainedModel, first: int, factor: float) -> None:
    """Scale what the layers from `first` on add."""
    for layer in model.model.layers[first:]:
        for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
            product.weight.mul_(factor)


def model_and_draft(shape: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    model, num_layers = random_model(shape, MAX_MODEL_LEN), SHAPES[shape][2] // 16
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone(), requires_grad=False)
    model.config.tie_word_embeddings = False
    model.model.norm.weight.mul_(8)  # logits of random weights are nearly equal, and no draft could be sure
    scale_layers(model, num_layers, 0.01)
    draft: Any = copy.deepcopy(model)
    draft.model.layers, draft.config.num_hidden_layers = draft.model.layers[:num_layers], num_layers
    if getattr(draft.config, "layer_types", None):
        draft.config.layer_types = draft.config.layer_types[:num_layers]
    return model, draft


def make_it_copy(model: PreTrainedModel) -> None:
    """A token is followed by the next of its PERIOD, the last of them by the first."""
    scale_layers(model, 0, 2.0**-10)
    embeddings = model.model.embed_tokens.weight
    ids = torch.arange(len(embeddings), device=embeddings.device)
    model.lm_head.weight.copy_(4 * embeddings[torch.where(ids % PERIOD == 0, ids + PERIOD - 1, ids - 1) % len(ids)])


def runner_of(model: PreTrainedModel, num_blocks: int, max_num_seqs: int) -> GPUModelRunner:
    runner = GPUModelRunner(
        model, num_blocks, 16, max_num_seqs=max_num_seqs, max_model_len=MAX_MODEL_LEN, max_captured_tokens=1024
    )
    warm_up(runner)
    return runner


def serve(runner: GPUModelRunner, proposer: Proposer | None, readers: int, count: int, temperature: float) -> Any:
    """Serve requests, as many at a time as there are readers; tokens per second, and the core."""
    config = EngineConfig(
        max_num_seqs=readers, max_num_batched_tokens=8192, num_blocks=runner.null_block, max_model_len=MAX_MODEL_LEN,
        make_runner=lambda *_: runner, overlap=True, share_prefixes=False,
    )  # fmt: skip
    no_words: Any = NoWords()
    engine = LLMEngine(runner.model, no_words, config, parts=speculating(proposer) if proposer else None)
    rng, start = random.Random(0), time.perf_counter()
    for seed in range(count):
        prompt = [rng.randrange(3, 100_000) for _ in range(rng.randint(100, 200))]
        params = SamplingParams(max_tokens=ANSWER, temperature=temperature, seed=seed, ignore_eos=True)
        engine.add_request(prompt, params)
    while engine.has_unfinished():
        engine.step()
    return count * ANSWER / (time.perf_counter() - start), engine.core


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.speculation", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="Llama-3.1-8B", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    model, small = model_and_draft(options.shape)
    runner, rows, is_copying = runner_of(model, 256 * 45, 256), [], False
    draft = DraftModel(small, 1024, 16, lambda own, num_blocks, _: runner_of(own, num_blocks, 8))
    for kind, readers, temperature in ROWS:
        proposer: Any = draft if kind == "draft" else NgramLookup()
        if kind == COPYING and not is_copying:
            make_it_copy(model)
            is_copying = True
        serve(runner, proposer, readers, readers, temperature)  # captures what is left
        ways = [[serve(runner, way, readers, REQUESTS[readers], temperature) for way in (None, proposer)]
                for _ in range(options.rounds)]  # fmt: skip
        plain, guessing = (statistics.median(rate for rate, _ in runs) for runs in zip(*ways))
        core = ways[-1][1][1]
        rows.append(dict(
            kind=kind, readers=readers, temperature=temperature, plain=plain, guessing=guessing, ratio=guessing / plain,
            drafted=core.num_draft_tokens, accepted=core.num_accepted_tokens,
        ))  # fmt: skip
        print(options.shape, rows[-1], flush=True)
    if options.record:
        facts = facts_of("tools.gpu_bench.speculation") | {"shape": options.shape}
        options.record.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
