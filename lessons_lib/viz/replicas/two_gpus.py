"""Lesson 16: two ways to use two GPUs, as they were recorded in `replicas.json`."""

from collections.abc import Mapping
from typing import Any

from lessons_lib.viz.tables import Table


def decode_ratio(recorded: Mapping[str, Any]) -> float:
    """Tokens per second in decode steps of 64 requests: one model on two GPUs, divided by two replicas."""
    cut, replicas = (recorded[way]["64"]["decode_ms"] for way in ("two GPUs, one model", "two replicas"))
    return round(replicas / cut, 2)


def two_gpus_table(recorded: Mapping[str, Any], models: Mapping[str, str]) -> Table:
    """The decode steps and tokens per second of each model; `models`: its name in the table -> in the recording."""
    rows = []
    for name, shape in models.items():
        for way, found in recorded[shape].items():
            steps = [f"{found[count]['decode_ms']:.2f} ms" if count in found else "–" for count in ("1", "16", "64")]
            rows.append([name, way, *steps, f"{found['64']['tokens_per_s']:,.0f}"])
    steps = [f"a step, {count}" for count in ("1 request", "16 requests", "64 requests")]
    return Table(["parameters", "setup", *steps, "tokens/s, 64 requests"], rows, caption=recorded["provenance"])
