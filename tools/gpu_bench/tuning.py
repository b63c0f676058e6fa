"""A sweep over tiles, run once by hand: its results are written into `decode_tiles` and `prefill_tiles`."""

from itertools import product

from lessons_lib.kernels.launch import Tiles
from lessons_lib.measuring.attention_cases import Inputs
from lessons_lib.measuring.gpu_timing import microseconds
from tools.gpu_bench.launches import decode_with, each_table, prefill_with

DECODE = {"keys": (16, 32, 64, 128), "warps": (2, 4, 8), "stages": (2, 3)}
PREFILL = {"rows": (64, 128, 256), "keys": (32, 64, 128), "warps": (4, 8), "stages": (2, 3)}


def sweep(inputs: Inputs) -> list[dict]:
    """Microseconds with each combination of tiles; None where it does not compile or does not fit."""
    call, choices = (decode_with, DECODE) if inputs.case.kind == "decode" else (prefill_with, PREFILL)
    rows = []
    for values in product(*choices.values()):
        tiles = Tiles(**{"rows": 16, **dict(zip(choices, values))})
        try:
            us = microseconds(each_table(inputs, lambda i, table: call(i, table, tiles=tiles)))
        except Exception:  # too much shared memory, or more threads than the tile has work for: not a candidate
            us = None
        rows.append({"rows": tiles.rows, "keys": tiles.keys, "warps": tiles.warps, "stages": tiles.stages, "us": us})
    return rows
