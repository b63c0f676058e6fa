"""`python -m tools.gpu_bench.splits`: lesson 08's decode kernel with the sequence split into parts of several sizes."""

import argparse
import json
from pathlib import Path

from lessons_lib.kernels.group_decode import decode_groups, decode_splits
from lessons_lib.measuring.attention_cases import CASES, Inputs, make_inputs
from tools.gpu_bench.__main__ import measured
from tools.gpu_bench.facts import facts_of
from tools.gpu_bench.launches import each_table

WANTED = ("decode 32,8,128; batch 1,", "decode 32,8,128; batch 64, context 2048")
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
KEYS_PER_TILE = 128


def split(inputs: Inputs, table, size: int | None):
    given = (inputs.q, inputs.k_cache, inputs.v_cache, table, inputs.context_lens, inputs.scale)
    if size is None:
        return decode_groups(*given, keys_per_tile=KEYS_PER_TILE)
    return decode_splits(*given, split_size=size, keys_per_tile=min(KEYS_PER_TILE, size))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench.splits", description=__doc__)
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    cases: dict[str, dict] = {}
    for case in CASES:
        if case.name.startswith(WANTED):
            inputs = make_inputs(case)
            expected = inputs.reference()
            cases[case.name] = {}
            for size in (*(size for size in SIZES if size < max(case.context_lens)), None):
                way = lambda inputs, size=size: each_table(inputs, lambda i, table: split(i, table, size))  # noqa: E731
                result = cases[case.name]["not split" if size is None else str(size)] = measured(way, inputs, expected)
                print(case.name, size, result, flush=True)
    if options.record:
        facts = facts_of("tools.gpu_bench.splits") | {"cases": cases}
        options.record.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
