"""`python -m tools.gpu_bench.ladder`: from lesson 07's kernel to lesson 08's, one idea at a time, on three decodes."""

import sys
from typing import Any

import torch

from lessons_lib.kernels.group_decode import decode_groups, decode_groups_kernel
from lessons_lib.kernels.ladder import decode_groups_by_sums, decode_groups_by_sums_kernel
from lessons_lib.kernels.launch import decode
from lessons_lib.kernels.simple_paged import decode_heads, decode_heads_kernel
from lessons_lib.measuring.attention_cases import CASES, Inputs, make_inputs
from tools.gpu_bench.__main__ import measured
from tools.gpu_bench.facts import run_and_record
from tools.gpu_bench.launches import each_table

WANTED = ("decode 32,8,128; batch 1,", "decode 32,8,128; batch 64, context 2048", "decode 14,2,64; batch 256")
SUMS, DOTS = (decode_groups_by_sums, decode_groups_by_sums_kernel), (decode_groups, decode_groups_kernel)
STEPS: dict[str, tuple[Any, Any, dict[str, int]]] = {  # name -> function, its kernel, options
    "lesson 07's kernel": (decode_heads, decode_heads_kernel, {}),
    "Idea 1, 16 keys per tile": (*SUMS, {"keys_per_tile": 16}),
    "Ideas 1 and 2, 32 keys per tile": (*SUMS, {"keys_per_tile": 32}),
    "Ideas 1 and 2, 64 keys per tile": (*SUMS, {"keys_per_tile": 64}),
    "Ideas 1 and 3, 16 keys per tile": (*DOTS, {"keys_per_tile": 16}),
    "Ideas 1 to 3, 64 keys per tile": (*DOTS, {"keys_per_tile": 64}),
    "Ideas 1 to 3, 128 keys per tile": (*DOTS, {"keys_per_tile": 128}),
    "the library's kernel": (decode, None, {}),
}


class Keeping:
    """A kernel that keeps what it was compiled to."""

    def __init__(self, kernel: Any):
        self.kernel, self.compiled = kernel, None

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            self.compiled = self.kernel[grid](*args, **constants)

        return launch


def climb(inputs: Inputs, expected: torch.Tensor) -> dict[str, dict]:
    """For each step on a case: its microseconds, and how many registers a thread of its kernel has and how many more it
    would need ("spilled": they are in memory)."""
    results = {}
    for name, (function, kernel, options) in STEPS.items():

        def call(i: Inputs, table: torch.Tensor, function=function, options=options, **more: Any) -> torch.Tensor:
            return function(i.q, i.k_cache, i.v_cache, table, i.context_lens, i.scale, **options, **more)

        results[name] = measured(lambda inputs, call=call: each_table(inputs, call), inputs, expected) or {}
        if kernel is not None:
            keeping = Keeping(kernel)
            call(inputs, inputs.tables[0], kernel=keeping)
            results[name] |= {"registers": keeping.compiled.n_regs, "spilled": keeping.compiled.n_spills}
        print(inputs.case.name, name, results[name], file=sys.stderr, flush=True)
    return results


def results() -> dict[str, Any]:
    wanted = (make_inputs(case) for case in CASES if case.name.startswith(WANTED))
    return {"cases": {inputs.case.name: climb(inputs, inputs.reference()) for inputs in wanted}}


if __name__ == "__main__":
    run_and_record("tools.gpu_bench.ladder", __doc__, results)
