"""Part of `make bench`: the engine beside the designs it grew from and beside Hugging Face's own ways, on the same requests.

Every turn of every way is a process of its own. In one process that goes on, a way is slower after others have run, and not all are to the same extent.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial

from lessons_lib.designs import DESIGNS
from lessons_lib.hf_continuous import hugging_face_continuous
from lessons_lib.model import load_model
from lessons_lib.viz.table import Table
from lessons_lib.workload import Workload, skewed_workload

ALONE = "one at a time"
HF_ALONE = "Hugging Face generate"
WARM_UP_REQUESTS = 8  # before the clock starts: what a process does but once


def timed_answers(serve: Callable, model, tokenizer, load: Workload, size: int) -> tuple[float, list[list[int]]]:
    started = time.perf_counter()
    answers = serve(model, tokenizer, load, size)
    return time.perf_counter() - started, answers


def generate_alone(model, tokenizer, load: Workload, size: int) -> list[list[int]]:
    """Hugging Face `generate`, a request after the other."""
    answers = []
    for prompt, cap in zip(load.prompts, load.max_new_tokens):
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        output = model.generate(**inputs, max_new_tokens=cap, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        answers.append(output[0, inputs.input_ids.shape[1] :].tolist())
    return answers


# name -> function (model, tokenizer, load, batch size) -> (seconds, answers)
WAYS: dict[str, Callable] = {
    HF_ALONE: partial(timed_answers, generate_alone),
    **{name: partial(timed_answers, serve) for name, serve in DESIGNS.items()},
    **{f"Hugging Face continuous, {attention}": partial(hugging_face_continuous, attention=attention) for attention in ("sdpa", "paged|eager")},
}


def serve_warm(name: str, size: int, requests: int) -> tuple[float, list[list[int]]]:
    """Serve a few requests, and then the workload on the clock."""
    model, tokenizer = load_model()
    WAYS[name](model, tokenizer, skewed_workload(WARM_UP_REQUESTS), size)
    return WAYS[name](model, tokenizer, skewed_workload(requests), size)


def engines(repeats: int, requests: int = 64, sizes: tuple[int, ...] = (16, 64)) -> Table:
    """New tokens a second of every way. The ways take turns, so that a slow minute of the machine falls on all; a figure is the median of its turns."""
    turns = [(name, size) for name in WAYS for size in ((1,) if name in (ALONE, HF_ALONE) else sizes)]
    seconds, answers = {turn: [] for turn in turns}, {}
    # "spawn": nothing of this process, its memory and threads, goes over into the new one.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        for _ in range(repeats):
            for turn in turns:
                elapsed, answers[turn] = processes.apply(serve_warm, (*turn, requests))
                seconds[turn].append(elapsed)
    expected = answers[ALONE, 1]
    new_tokens = sum(map(len, expected))
    medians = {turn: statistics.median(times) for turn, times in seconds.items()}
    engine = min(median for (name, _), median in medians.items() if name.startswith("engine"))
    rows = [
        [name, size, round(new_tokens / median), f"{medians[ALONE, 1] / median:.2f} ×", f"{median / engine:.2f} ×", same(answers[name, size], expected)]
        for (name, size), median in medians.items()
    ]
    columns = ["way", "batch", "tokens/s", "to alone", "best engine to this", "same tokens"]
    caption = f"{requests} requests with skewed lengths, {new_tokens} new tokens, bundled model, each in a process of its own, median of {repeats}"
    return Table(columns, rows, caption)


def same(answers: list[list[int]], expected: list[list[int]]) -> str:
    equal = sum(own == other for own, other in zip(answers, expected))
    return "yes" if equal == len(expected) else f"{equal} of {len(expected)}"
