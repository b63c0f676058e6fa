"""`make soak`: 10,000 requests, with aborts, faults, interrupts and too little memory. At the end, nothing may be lost.

    python -m tools.soak --count 100 --seed 0

Random workloads (see `random_workloads`) of a hundred requests each. What a request has when it fails is still the
beginning of the answer that its prompt gets alone.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.outputs import NewToken, RequestOutput
from lessons_lib.kv_cache.block_copies import BlockCopy
from tools.interrupts import Interrupter
from tools.random_workloads import Workload, main

MODEL_FAULT, COPY_FAULT, NOT_A_NUMBER, INTERRUPT = 0.01, 0.05, 0.01, 0.04  # how likely in a step
LINES_OF_A_STEP = 1500  # an interrupt comes at one of them
BAD_CALLBACK = 0.03  # and for a request


class InjectedFault(RuntimeError):
    """Made on purpose."""


class Soak(Workload):
    """A workload in which everything fails now and then."""

    num_requests, spare_blocks, with_rules = (100, 100), (0, 1, 2, 5), 0.0

    def draw_request(self) -> Any:
        prompt, params, options = super().draw_request()
        if self.rng.random() < BAD_CALLBACK:
            options["on_token"] = self.bad_callback()
        return prompt, params, options

    def bad_callback(self) -> Callable[[NewToken], None]:
        """A callback that raises, or aborts its own request or any other."""
        left = self.rng.randint(1, 8)
        kind = self.rng.choice(["raise", "abort itself", "abort another"])

        def on_token(token: NewToken) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.happened[f"callbacks that {kind}"] += 1
                if kind == "raise":
                    raise InjectedFault(kind)
                self.abort(token.request_id if kind == "abort itself" else self.rng.choice([*self.engine.requests]))

        return on_token

    def draw_engine(self) -> LLMEngine:
        engine: Any = super().draw_engine()
        self.forward, engine.runner.forward = engine.runner.forward, self.forward_with_faults
        self.copy_blocks, engine.core.copy_blocks = engine.core.copy_blocks, self.copies_with_faults
        return engine

    def forward_with_faults(self, scheduler_output: Any) -> torch.Tensor:
        if self.rng.random() < MODEL_FAULT:
            self.happened["faults of the model"] += 1
            raise InjectedFault("the model")
        logits = self.forward(scheduler_output)
        if self.rng.random() < NOT_A_NUMBER:
            self.happened["rows of NaN"] += 1
            logits = logits.clone()
            logits[self.rng.randrange(len(logits))] = float("nan")
        return logits

    def copies_with_faults(self, block_copies: list[BlockCopy]) -> None:
        if block_copies and self.rng.random() < COPY_FAULT:
            self.happened["faults of block copies"] += 1
            self.copy_blocks(block_copies[: len(block_copies) // 2])
            raise InjectedFault("copying")
        self.copy_blocks(block_copies)

    def step(self) -> list[RequestOutput]:
        """A step of the engine, now and then interrupted at any of its lines."""
        if self.rng.random() >= INTERRUPT:
            return super().step()
        try:
            with Interrupter(self.rng.randrange(LINES_OF_A_STEP)):
                return super().step()
        except KeyboardInterrupt:
            self.happened["interrupts"] += 1
            return []

    def audit(self) -> None:
        self.engine.core.settle()
        super().audit()

    def check(self, output: RequestOutput, is_aborted: bool = False) -> None:
        if error := output.error:
            is_ours = isinstance(error, InjectedFault | FloatingPointError | KeyboardInterrupt)
            assert is_ours or "interrupt" in str(error), repr(error)
            self.happened["failed"] += 1
        super().check(replace(output, error=None), is_aborted or bool(error) or output.finish_reason == "abort")


if __name__ == "__main__":
    main(["--count", "100", *sys.argv[1:]], kind=Soak)
