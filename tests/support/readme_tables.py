"""The tables of recorded results in tools/site/pages/benchmarks.md."""

from collections.abc import Iterable
from statistics import geometric_mean, median

from lessons_lib.measuring.published import (
    OURS,
    SIZES,
    range_text,
    recorded,
    recorded_attention,
    recorded_engine,
    recorded_production,
    recorded_ways,
    recorded_workloads,
    times_vllm,
)
from tools.gpu_bench.workloads import LOADS


def summary_markdown() -> str:
    """The recorded attention results as a table; a test compares them."""
    recording, production = recorded_attention(), recorded_production()
    others = list(next(iter(production.microseconds.values())))
    columns = ["µs for one layer (query heads, KV heads, head size)", OURS, "rate", *others, "gather + SDPA"]
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1)]
    for case in recording.cases:
        own = case.microseconds[OURS]
        rate = (
            f"{case.flop / own / 1e6:,.0f} TFLOP/s"
            if case.kind == "prefill"
            else f"{case.kv_bytes / own / 1e6:.1f} TB/s"
        )
        gathered = case.microseconds.get("gather + SDPA")
        times = [production.microseconds.get(case.name, {}).get(other) for other in others] + [gathered]
        lines.append([case.name, _three_digits(own), rate, *(_three_digits(time) if time else "–" for time in times)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def engine_markdown() -> str:
    """The engine's recorded results as a table, slowest first."""
    recording = recorded_engine()
    rates = [(rate, name) for name, rate in recording.peers.items()]
    rates += [(mode["tokens_per_s"], f"**{OURS}**, {mode['name']}") for mode in recording.modes]
    lines = [
        ["output tokens per second", ""],
        ["---", "---:"],
        *([name, f"{rate:,.0f}"] for rate, name in sorted(rates)),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kernels_against_production() -> str:
    """Our time over FlashAttention-3's, as a sentence."""
    times, ratios = recorded_production().microseconds, {}
    for case in recorded_attention().cases:
        if theirs := times.get(case.name, {}).get("FlashAttention-3"):
            ratios.setdefault(case.kind, []).append(case.microseconds[OURS] / theirs)
    return f"Time over FlashAttention-3's: {'; '.join(f'{kind} {_about(found)}' for kind, found in ratios.items())}."


def _about(ratios: list[float]) -> str:
    mean = f" (geometric mean of {len(ratios)}: {geometric_mean(ratios):.2f})" if len(ratios) > 1 else ""
    return range_text(ratios) + mean


def workloads_summary() -> str:
    """Our rates over vLLM's, as a sentence, the largest models first."""
    ratios = {size: [] for size in SIZES}
    for load in LOADS:
        for size, rows in recorded_workloads().by_size.get(load.name, {}).items():
            ratios[size] += times_vllm(rows if not load.arrivals_per_s else ())
    told = [f"{size} {_about(found)}" for size, found in ratios.items() if found]
    return f"Tokens per second over vLLM's, all workloads: {'; '.join(told)}."


def workloads_markdown() -> str:
    """The recorded workloads as a table: ranges over the models of a size, the largest first."""
    by_size = recorded_workloads().by_size
    lines = [["tokens per second (over vLLM's)", *SIZES], ["---", *["---:"] * len(SIZES)]]
    for load in LOADS:
        if found := by_size.get(load.name):
            unit = ": ms to a first token" if load.arrivals_per_s else ", all tokens" if load.counts == "all" else ""
            cell = _first_tokens if load.arrivals_per_s else _rates
            lines.append([load.name + unit, *(cell(found[size]) if size in found else "–" for size in SIZES)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rates(rows: list[dict]) -> str:
    return _cell((each["best"] for each in rows), times_vllm(rows), ",.0f")


def _first_tokens(rows: list[dict]) -> str:
    def ms(rates: dict) -> float:
        return 1e3 * median(rates["mean_ttft_s"])

    return _cell(map(ms, rows), [ms(each) / ms(each["vllm"]) for each in rows if each["vllm"]], ",.1f")


def _cell(values: Iterable[float], ratios: list[float], form: str) -> str:
    return range_text(values, form) + (f" ({range_text(ratios)})" if ratios else "")


def hybrid_markdown() -> str:
    """A hybrid model served by the engine and by `generate`, as a table."""
    lines = [
        ["requests at a time", "tokens per second", "`generate`, one static batch", "times", "a step of decodes"],
        ["---:"] * 5,
    ]
    for row in recorded("h200_hybrid").rows:
        rates = (f"{row[name]:,.0f}" for name in ("engine", "generate"))
        lines.append([str(row["readers"]), *rates, f"{row['ratio']:.1f}", f"{row['decode_ms']:.1f} ms"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ways_markdown() -> str:
    """The serving methods on a CPU as a table, slowest first, each at its fastest batch size."""
    results = recorded_ways().results
    fastest = {}
    for way in sorted(results["ways"], key=lambda way: way["seconds"], reverse=True):
        fastest[way["name"]] = way
    alone = fastest["one at a time"]["seconds"]
    lines = [
        [f"{results['requests']} requests on a CPU", "batch", "output tokens per second", "times one at a time"],
        ["---", "---:", "---:", "---:"],
    ]
    for way in sorted(fastest.values(), key=lambda way: way["seconds"], reverse=True):
        lines.append(
            [
                way["name"].replace("|", "\\|"),
                str(way["size"]),
                f"{results['new_tokens'] / way['seconds']:,.0f}",
                f"{alone / way['seconds']:.1f}",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _three_digits(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:,.0f}"
