"""The tables of recorded results in tools/site/pages/benchmarks.md."""

from lessons_lib.measuring.published import (
    OURS,
    recorded_attention,
    recorded_engine,
    recorded_production,
    recorded_ways,
    recorded_workloads,
)


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


def workloads_markdown() -> str:
    """The recorded workloads as a table."""
    recording = recorded_workloads()
    lines = [["tokens per second", f"**{OURS}**", "of memory's limit", "vLLM"], ["---", "---:", "---:", "---:"]]
    for each in recording.workloads:
        name = each["name"] + (", all tokens" if each["counts"] == "all" else "")
        share = f"{each['best'] / each['limit']:.0%}" if each["limit"] else "–"
        peer = recording.peers.get(each["name"])
        lines.append([name, f"{each['best']:,.0f}", share, f"{peer:,.0f}" if peer else "–"])
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
