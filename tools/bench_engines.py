"""`make bench`: the engine compared with the designs it grew from and with those of Hugging Face, on the same requests,
and where there is a GPU, the attention kernels compared with others.

Every measurement runs in its own process: in a shared process, a way of serving is slower after others have run, some
more than others.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from operator import eq
from pathlib import Path

import torch

from lessons_lib.measuring.designs import ALONE, DESIGNS, ways_table
from lessons_lib.measuring.hf_continuous import hugging_face_continuous
from lessons_lib.measuring.workloads import Workload, skewed_workload
from lessons_lib.models.loading import load_model

HF_ALONE = "Hugging Face generate"
WARM_UP_REQUESTS = 8  # before the clock starts: work that a process does only once


def timed_answers(serve: Callable, model, tokenizer, load: Workload, size: int) -> tuple[float, list[list[int]]]:
    started = time.perf_counter()
    answers = serve(model, tokenizer, load, size)
    return time.perf_counter() - started, answers


def generate_alone(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """Hugging Face `generate`, one request after the other."""
    answers = []
    for prompt, max_tokens in zip(load.prompts, load.max_new_tokens):
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        output = model.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
        answers.append(output[0, inputs.input_ids.shape[1] :].tolist())
    return answers


# name -> function (model, tokenizer, load, batch size) -> (seconds, answers)
WAYS: dict[str, Callable] = {
    HF_ALONE: partial(timed_answers, generate_alone),
    **{name: partial(timed_answers, serve) for name, serve in DESIGNS.items()},
    **{
        f"Hugging Face continuous, {attention}": partial(hugging_face_continuous, attention=attention)
        for attention in ("sdpa", "paged|eager")
    },
}


def serve_warm(name: str, size: int, requests: int) -> tuple[float, list[list[int]]]:
    """Serve a few requests to warm up, then time the workload."""
    model, tokenizer = load_model()
    WAYS[name](model, tokenizer, skewed_workload(WARM_UP_REQUESTS), size)
    return WAYS[name](model, tokenizer, skewed_workload(requests), size)


def measure_ways(repeats: int, requests: int = 64, sizes: tuple[int, ...] = (16, 64)) -> dict:
    """Every way at every batch size, timed in rounds, so that a slow minute of the machine affects them all.

    Returns:
        dict: "requests", "repeats", "new_tokens", and "ways": for each, its "name", "size", the median "seconds", and
            "same", how many of its answers equal those of one request at a time.
    """
    cases = [(name, size) for name in WAYS for size in ((1,) if name in (ALONE, HF_ALONE) else sizes)]
    seconds, answers = {case: [] for case in cases}, {}
    for _ in range(repeats):
        for case in cases:
            # "spawn": the new process inherits none of this one's memory and threads.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                elapsed, answers[case] = process.submit(serve_warm, *case, requests).result()
            seconds[case].append(elapsed)
    expected = answers[ALONE, 1]
    ways = [
        {
            "name": name,
            "size": size,
            "seconds": statistics.median(seconds[name, size]),
            "same": sum(map(eq, answers[name, size], expected)),
        }
        for name, size in cases
    ]
    return {"requests": requests, "repeats": repeats, "new_tokens": sum(map(len, expected)), "ways": ways}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_engines", description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    if torch.cuda.is_available() and not options.record:
        from tools.gpu_bench.__main__ import gpu_tables

        print(gpu_tables(), end="\n\n")
    results = measure_ways(options.repeats)  # about four minutes a repeat
    print(ways_table(results))
    if options.record:
        from tools.gpu_bench.facts import facts_of  # imports Triton, which only Linux has

        facts = facts_of("tools.bench_engines", on_gpu=False)
        options.record.write_text(json.dumps(facts | results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
