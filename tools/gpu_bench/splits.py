"""`python -m tools.gpu_bench.splits`: lesson 08's decode kernel with the sequence split into parts of several sizes."""

import sys
from typing import Any

from lessons_lib.kernels.group_decode import decode_groups, decode_splits
from lessons_lib.measuring.attention_cases import CASES, Inputs, make_inputs
from tools.gpu_bench.__main__ import measured
from tools.gpu_bench.facts import run_and_record
from tools.gpu_bench.launches import each_table

WANTED = ("decode 32,8,128; batch 1,", "decode 32,8,128; batch 64, context 2048")
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
KEYS_PER_TILE = 128


def split(inputs: Inputs, table, size: int | None):
    given = (inputs.q, inputs.k_cache, inputs.v_cache, table, inputs.context_lens, inputs.scale)
    if size is None:
        return decode_groups(*given, keys_per_tile=KEYS_PER_TILE)
    return decode_splits(*given, split_size=size, keys_per_tile=min(KEYS_PER_TILE, size))


def results() -> dict[str, Any]:
    cases: dict[str, dict] = {}
    for case in CASES:
        if case.name.startswith(WANTED):
            inputs = make_inputs(case)
            expected = inputs.reference()
            cases[case.name] = {}
            for size in (*(size for size in SIZES if size < max(case.context_lens)), None):
                way = lambda inputs, size=size: each_table(inputs, lambda i, table: split(i, table, size))  # noqa: E731
                result = cases[case.name]["not split" if size is None else str(size)] = measured(way, inputs, expected)
                print(case.name, size, result, file=sys.stderr, flush=True)
    return {"cases": cases}


if __name__ == "__main__":
    run_and_record("tools.gpu_bench.splits", __doc__, results)
