"""Lesson 13: a thread as a device, to watch a loop's steps overlap without a model or a GPU."""

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from lessons_lib.scheduling.scheduler import SchedulerOutput

DIGITS_PER_SECOND = 200  # a digit for every 5 ms
TOKEN = 7  # the token of every sequence in every step


class ThreadDevice:
    """A runner without a model: `forward` keeps the CPU busy, then a thread is busy with the step.

    `spans`: "CPU" or "device" -> start and end of its work on each step, in seconds.
    """

    def __init__(self, cpu_ms: float, device_ms: float):
        self.ms = {"CPU": cpu_ms, "device": device_ms}
        self.spans: dict[str, list[tuple[float, float]]] = {"CPU": [], "device": []}
        self.thread = ThreadPoolExecutor(1)

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """Start a step. Its logits are the same for all."""
        self.work("CPU")
        num_seqs = len(scheduler_output.num_scheduled_tokens)
        self.computed = self.thread.submit(self.compute, num_seqs)
        return torch.zeros(num_seqs, 1)

    def keep_tokens(self, scheduler_output: SchedulerOutput, tokens: torch.Tensor) -> SimpleNamespace:
        """The result's `wait()` waits for the tokens."""
        return SimpleNamespace(wait=self.computed.result)

    def compute(self, num_seqs: int) -> list[int]:
        self.work("device")
        return [TOKEN] * num_seqs

    def work(self, side: str) -> None:
        started = time.perf_counter()
        time.sleep(self.ms[side] / 1000)
        self.spans[side].append((started, time.perf_counter()))

    def draw(self) -> None:
        """Print a line each for the CPU and the device, with the current step's last digit for every 5 ms."""
        first = self.spans["CPU"][0][0]
        for side, spans in self.spans.items():
            line = ""
            for number, (start, end) in enumerate(spans, 1):
                line = line.ljust(round(DIGITS_PER_SECOND * (start - first)), "·")
                line += str(number % 10) * (round(DIGITS_PER_SECOND * (end - first)) - len(line))
            print(f"{side:>6} {line}")
