"""`python -m tools.gpu_bench.speculation`: several tokens a step on a GPU, in turns with the engine without guesses.

    python -m tools.gpu_bench.speculation --shapes 8B 1.7B --record FILE

Weights are random, and the later layers add little, so the first layers alone are a draft that is often right; how
often is in each row. Greedy texts of such models repeat themselves, which lookup finds; drawn ones don't. If vLLM is
installed, it serves the rows of lookup, too, with its own: seconds with its guesses, and without.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.draft_model import DraftModel
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.proposers import NgramLookup
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.speculation import Proposer, speculating
from lessons_lib.engine.warm_up import warm_up
from tools.gpu_bench import vllm_peer
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.models import SHAPES, NoWords, random_model
from tools.gpu_bench.vllm_peer import drive
from tools.gpu_bench.workloads import DRAWN, GREEDY, Workload, of_lengths, start_vllm

MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS = 1024, 16, 256 * 45
READERS = {count: of_lengths(count, (100, 200), (256, 256)) for count in (1, 8, 256)}
VLLM_LOOKUP = dict(method="ngram", num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=2)


def draft_of(model: PreTrainedModel, num_layers: int, rest: float) -> PreTrainedModel:
    """The first layers of a model as a model of their own. The others' share in the model is scaled by `rest`, and its
    logits by 8: those of random weights are nearly equal, and no draft could say how sure it is."""
    model.model.norm.weight.mul_(8)
    layers: Any = model.model.layers
    for layer in layers[num_layers:]:
        for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
            product.weight.mul_(rest)
    draft: Any = copy.deepcopy(model)
    draft.model.layers = draft.model.layers[:num_layers]
    draft.config.num_hidden_layers = num_layers
    if getattr(draft.config, "layer_types", None):
        draft.config.layer_types = draft.config.layer_types[:num_layers]
    return draft


def runner_of(model: PreTrainedModel, num_blocks: int = NUM_BLOCKS, max_num_seqs: int = 256) -> GPUModelRunner:
    runner = GPUModelRunner(
        model, num_blocks, BLOCK_SIZE, max_num_seqs=max_num_seqs, max_model_len=MAX_MODEL_LEN, max_captured_tokens=1024
    )
    warm_up(runner)
    return runner


def serve(runner: GPUModelRunner, proposer: Proposer | None, workload: Workload, readers: int) -> dict[str, float]:
    """Serve a workload once; seconds, and what became of the guesses."""
    config = EngineConfig(
        max_num_seqs=256, max_num_batched_tokens=8192, block_size=BLOCK_SIZE, num_blocks=runner.null_block,
        max_model_len=MAX_MODEL_LEN, make_runner=lambda *_: runner, overlap=True,
    )  # fmt: skip
    no_words: Any = NoWords()
    engine = LLMEngine(runner.model, no_words, config, parts=speculating(proposer) if proposer else None)
    arrivals = workload.arrivals(workload.requests())
    add: Callable = lambda prompt, options: engine.add_request(prompt, SamplingParams(**options))  # noqa: E731
    seconds = drive(arrivals, add, engine.step, engine.has_unfinished)
    core: Any = engine.core
    drafted, right = (core.num_draft_tokens, core.num_accepted_tokens) if proposer else (0, 0)
    return {"seconds": seconds, "rate": readers * 256 / seconds, "drafted": drafted, "accepted": right}


def row_of(name: str, workload: Workload, readers: int, runner: Any, proposer: Proposer, rounds: int) -> dict[str, Any]:
    """Rounds without and with guesses, in turns, after one of each that isn't counted."""
    ways = (None, proposer)
    runs = [[serve(runner, way, workload, readers) for way in ways] for _ in range(rounds + 1)][1:]
    plain, guessing = (statistics.median(run[way]["rate"] for run in runs) for way in (0, 1))
    drafted, right = (sum(run[1][key] for run in runs) for key in ("drafted", "accepted"))
    return {
        "name": name, "plain": plain, "guessing": guessing, "ratio": guessing / plain, "drafted": drafted / rounds,
        "accepted": right / max(1, drafted),
    }  # fmt: skip


def rates_of_vllm(model: PreTrainedModel, workloads: dict[str, Workload], rounds: int) -> dict[str, dict[str, float]]:
    """vLLM's tokens a second, without guesses and with lookup, each in a process of its own."""
    rates: dict[str, dict[str, float]] = {name: {} for name in workloads}
    for way, options in {"vllm_plain": {}, "vllm_lookup": {"speculative_config": VLLM_LOOKUP}}.items():
        peer = start_vllm(model, NUM_BLOCKS, MAX_MODEL_LEN, **options)
        for name, workload in workloads.items():
            arrivals = workload.arrivals(workload.requests())
            seconds = min(peer.serve(arrivals)["seconds"] for _ in range(rounds + 1))
            rates[name][way] = len(arrivals) * 256 / seconds
        peer.close()
    return rates


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.speculation", description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["8B", "1.7B"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=0.01, help="how much the later layers count")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for shape in (each for each in SHAPES if any(part in each for part in options.shapes)):
        model = random_model(shape, MAX_MODEL_LEN)
        draft = draft_of(model, SHAPES[shape][2] // 16, options.rest)
        runner, lookups = runner_of(model), {}
        runners = dict(make_runner=lambda own, num_blocks, _: runner_of(own, num_blocks, 8))
        first = DraftModel(draft, 1024, BLOCK_SIZE, **runners)
        for readers, make in READERS.items():
            for way, params in {"greedy": GREEDY, "drawn": DRAWN}.items():
                workload = Workload(way, make, (params,), max_model_len=MAX_MODEL_LEN)
                proposers: dict[str, Proposer] = {"lookup": NgramLookup()} | ({"draft": first} if readers <= 8 else {})
                for kind, proposer in proposers.items():
                    name = f"{shape}: {readers} {way}, {kind}"
                    rows.append(row_of(name, workload, readers, runner, proposer, options.rounds))
                    print(rows[-1], flush=True)
                lookups[f"{shape}: {readers} {way}, lookup"] = workload
        if vllm_peer.is_installed():
            for name, rates in rates_of_vllm(model, lookups, options.rounds).items():
                next(row for row in rows if row["name"] == name).update(rates)
                print(name, rates, flush=True)
        if options.record:
            facts = facts_of("tools.gpu_bench.speculation", on_gpu=True)
            options.record.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
        runner.close()


if __name__ == "__main__":
    main()
