"""vLLM 0.26 on the same requests, in a process of its own, whose memory is free again when it ends."""

import importlib.util
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any

Arrivals = list[tuple[float, list[int], dict[str, Any]]]  # seconds after the beginning, prompt, sampling parameters


def is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def drive(arrivals: Arrivals, add: Callable, step: Callable, has_unfinished: Callable[[], bool]) -> float:
    """Add each request (prompt, parameters) when it arrives; step until all are finished. Returns the seconds."""
    to_come, began = deque(arrivals), time.perf_counter()
    while to_come or has_unfinished():
        while to_come and to_come[0][0] <= time.perf_counter() - began:
            add(*to_come.popleft()[1:])
        if has_unfinished():
            step()
    return time.perf_counter() - began


def serve(vllm: Any, llm: Any, arrivals: Arrivals) -> dict[str, float]:
    """Returns the seconds it took, and the mean seconds to a first token ("ttft") and between two ("itl").

    Requests have no seeds here: with them, vLLM would draw row by row.
    """
    engine, delta = llm.llm_engine, vllm.sampling_params.RequestOutputKind.DELTA
    times: list[list[float]] = []  # of each request: when it was added, then once for each of its tokens

    def add(prompt: list[int], options: dict[str, Any]) -> None:
        params = vllm.SamplingParams(**options | dict(seed=None, detokenize=False, output_kind=delta))
        times.append([time.perf_counter()])
        engine.add_request(str(len(times) - 1), {"type": "token", "prompt_token_ids": prompt}, params)

    def step() -> None:
        for output in engine.step():
            times[int(output.request_id)] += [time.perf_counter()] * len(output.outputs[0].token_ids)

    llm.reset_prefix_cache()
    seconds = drive(arrivals, add, step, engine.has_unfinished_requests)
    assert [len(each) - 1 for each in times] == [options["max_tokens"] for *_, options in arrivals]
    itl = sum(each[-1] - each[1] for each in times) / max(1, sum(len(each) - 2 for each in times))
    return {"seconds": seconds, "ttft": sum(each[1] - each[0] for each in times) / len(times), "itl": itl}


def run(connection: Connection, options: dict[str, Any]) -> None:
    """The other process: make the engine, say how long that took, and serve until the connection is closed."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    began = time.perf_counter()
    import vllm

    llm = vllm.LLM(skip_tokenizer_init=True, enable_prefix_caching=True, **options)
    connection.send((vllm.__version__, time.perf_counter() - began))
    while (arrivals := connection.recv()) is not None:
        connection.send(serve(vllm, llm, arrivals))


class Vllm:
    """Its process, with a copy of the model. `options`: of vllm.LLM."""

    def __init__(self, model: Any, **options: Any):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.process = context.Process(target=run, args=(theirs, options | {"model": folder}), daemon=True)
            self.process.start()
            theirs.close()
            self.version, self.warm_up_s = self.connection.recv()

    def serve(self, arrivals: Arrivals | None) -> dict[str, float]:
        self.connection.send(arrivals)
        served: dict[str, float] = self.connection.recv()
        return served

    def close(self) -> None:
        self.connection.send(None)
        self.process.join()
