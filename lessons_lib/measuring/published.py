"""Lessons 08, 10, 11 and 13: results recorded on a GPU, which ship with the course for readers without one.

Some of the commands ran once and are in the history: see assets/recorded/README.md.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from lessons_lib.measuring.roofline import Machine

FOLDER = Path(__file__).parents[1] / "assets" / "recorded"
OURS = "this course"
SIZES = {"8 B": (8e9, 20e9), "1–1.7 B": (2e9, 8e9), "0.5–0.6 B": (0, 2e9)}  # parameters: bytes of the weights, from to


@dataclass(frozen=True)
class RecordedCase:
    """One case of the benchmark.

    Attributes:
        name, kind: see `attention_cases.Case`.
        kv_bytes: bytes of the keys and values of all sequences. flop: see `roofline.Work`.
        microseconds: method -> time of one layer's attention.
    """

    name: str
    kind: str
    kv_bytes: int
    flop: int
    microseconds: dict[str, float]


@dataclass(frozen=True)
class Recording:
    """Everything measured in one run on one machine.

    Attributes:
        machine: the machine and its measured limits.
        processors: streaming multiprocessors of the GPU.
        provenance: machine, versions, command and date, in one line, as in all that follows.
    """

    machine: Machine
    processors: int
    provenance: str
    cases: tuple[RecordedCase, ...]

    def case(self, beginning: str) -> RecordedCase:
        """The only case whose name starts with `beginning`; else KeyError."""
        found = [case for case in self.cases if case.name.startswith(beginning)]
        if len(found) != 1:
            raise KeyError(
                f"{len(found)} recorded cases start with {beginning!r}; the cases are: "
                f"{'; '.join(case.name for case in self.cases)}."
            )
        return found[0]


@cache
def recorded_attention() -> Recording:
    """Our kernels and PyTorch's on one H200: `python -m tools.gpu_bench`."""
    facts = _facts("h200_attention.json")
    cases = [RecordedCase(microseconds=_times(case.pop("peers")), **case) for case in facts["cases"]]
    machine = Machine(facts["machine"], facts["read_bytes_per_s"], facts["matmul_flop_per_s"])
    return Recording(machine, facts["processors"], _provenance(facts), tuple(cases))


def recorded_production() -> SimpleNamespace:
    """FlashAttention-3, FlashInfer and vLLM's Triton kernel in another run; `microseconds`: case -> {kernel: time}."""
    return SimpleNamespace(**_facts("h200_production.json"))


@cache
def recorded_ladder() -> tuple[str, dict[str, dict[str, dict]]]:
    """From lesson 07's kernel to lesson 08's, one idea at a time, on one H200: `python -m tools.gpu_bench.ladder`.

    Returns:
        (provenance; name of a case -> name of a step -> "us" microseconds, and except for the last step "registers" per
        thread and "spilled" registers).
    """
    facts = _facts("h200_ladder.json")
    return _provenance(facts), facts["cases"]


def recorded_splits() -> tuple[str, dict[str, dict[str, float]]]:
    """Lesson 08's kernel with sequences split, on one H100: `python -m tools.gpu_bench.splits`.

    Returns (provenance; name of a case -> keys per part, or "not split" -> microseconds, the merge included).
    """
    facts = _facts("h100_splits.json")
    return _provenance(facts), {case: _times(sizes) for case, sizes in facts["cases"].items()}


def recorded_engine() -> SimpleNamespace:
    """The engine on one H200, one mode after another: `python -m tools.gpu_bench.engine`.

    Attributes:
        modes: per mode "name", "tokens_per_s", "seconds", "num_steps", "warm_up_s", and "decode_ms", the
            milliseconds of a step's parts, medians over the steps with the most sequences.
        peers: other engine -> output tokens per second; with their own peers_provenance.
    """
    recorded, theirs = _namespace(_facts("h200_engine.json")), _facts("h200_engine_peers.json")
    recorded.peers, recorded.peers_provenance = theirs["tokens_per_s"], theirs["provenance"]
    return recorded


def recorded_swaps() -> SimpleNamespace:
    """Cost of resuming a preempted sequence on one H200: `python -m tools.gpu_bench.swapping`.

    Attributes:
        shape: shape of the model.
        others, context: number of decoding sequences, and tokens of each.
        step_s: seconds of a step that decodes them.
        rows: per length of the preempted sequence: "tokens", "bytes", "swap_out_s", "swap_in_s", "recompute_s" of a
            step that computes only it, and "beside_s" of one that also decodes the others.
    """
    facts = _facts("h200_swapping.json")
    return _swaps(facts, facts)


def recorded_victims() -> tuple[SimpleNamespace, ...]:
    """The same for other lengths, in three runs, on one H100."""
    facts = _facts("h100_victims.json")
    return tuple(_swaps(facts, run) for run in facts["runs"])


def _swaps(facts: dict, run: dict) -> SimpleNamespace:
    return _namespace({**facts, "step_s": run["step_s"], "rows": tuple(run["swapping"])})


def recorded_first_tokens() -> tuple[str, list[dict]]:
    """Time to first token of a prompt with a cached prefix, on one H100: `python -m tools.gpu_bench.shared_prefix`.

    Returns:
        (provenance; per length of the common "beginning": tokens "computed" and "first_token_s" on a miss,
        "computed_after_hit" and "first_token_after_hit_s" on a hit).
    """
    facts = _facts("h100_first_token.json")
    return _provenance(facts), facts["rows"]


def recorded_workloads() -> SimpleNamespace:
    """The engine in its fastest mode on one H200, in turns with vLLM: `python -m tools.gpu_bench.workloads`.

    Attributes:
        bytes_per_s: measured read bandwidth.
        workloads: per workload: "name", "best" and "median" tokens per second, "counts" (the tokens counted), "limit"
            (memory bound, or None), "warm_up_s", "vllm" (its rates, or None); see `tools.gpu_bench.workloads`.
        best: name of a workload -> its best tokens per second.
        peers_provenance: version and settings of vLLM.
        by_size: what is asked for, the name without the model -> size of the models, the largest first -> workloads.
    """
    recorded = _namespace(_facts("h200_workloads.json"))
    recorded.bytes_per_s = recorded.read_bytes_per_s
    recorded.best = {each["name"]: each["best"] for each in recorded.workloads}
    versions = ", ".join(sorted({each["vllm"]["version"] for each in recorded.workloads if each["vllm"]}))
    recorded.peers_provenance = f"vLLM {versions}, in turns on the same GPU: the same requests, slots, budget, cache"
    recorded.by_size = {}
    for size, (least, most) in SIZES.items():
        for each in recorded.workloads:
            if least <= each["weight_bytes"] < most:
                sizes = recorded.by_size.setdefault(each["name"].partition(": ")[2], {})
                sizes.setdefault(size, []).append(each)
    return recorded


def range_text(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the largest, such as "0.98–1.53"; "–" if there are none."""
    texts = [format(value, form) for value in sorted(values)] or ["–"]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]}–{texts[-1]}"


def times_vllm(workloads: Iterable[dict]) -> list[float]:
    """Our best rate over vLLM's, of each workload that vLLM served, too."""
    return [each["best"] / each["vllm"]["best"] for each in workloads if each["vllm"]]


def recorded_ways() -> SimpleNamespace:
    """Lesson 12's engine next to all other methods; `results`: see `tools.bench_engines.measure_ways`."""
    facts = _facts("cpu_engines.json")
    return SimpleNamespace(provenance=_provenance(facts), results=facts)


def recorded(name: str) -> SimpleNamespace:
    """One of these files, such as "h200_hybrid", whose `rows` say what they are."""
    return _namespace(_facts(f"{name}.json"))


def _facts(name: str) -> dict:
    facts: dict = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return facts


def _namespace(facts: dict) -> SimpleNamespace:
    return SimpleNamespace(**facts, provenance=_provenance(facts))


def _times(results: dict) -> dict[str, float]:
    return {name: result["us"] for name, result in results.items() if "us" in result}


def _provenance(facts: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return f"recorded on one {facts['machine']}, {facts['date']}, {versions}: {facts['command']}"
