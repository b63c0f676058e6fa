"""`python -m tools.gpu_bench`: times the attention kernels on this GPU. `make bench` runs it too if there is a GPU."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from lessons_lib.measuring.attention_cases import CASES, Case, Inputs, make_inputs
from lessons_lib.measuring.attention_peers import PEERS, Calls
from lessons_lib.measuring.gpu_timing import machine_limits, microseconds
from lessons_lib.measuring.roofline import attention_work
from lessons_lib.viz.tables.table import Table
from tools.gpu_bench.facts import facts_of

LARGEST_ERROR = 2e-2  # relative; bfloat16 has 8 significant bits, and every result is rounded to them


def measured(way: Callable[[Inputs], Calls | None], inputs: Inputs, expected: torch.Tensor) -> dict | None:
    """Microseconds per call and the relative error against the float32 reference, or the reason why there are none.

    Args:
        way: builds one call per block table of the inputs; None if it doesn't apply to them.
        expected: [T, Hq, D], float32.

    Returns:
        dict with "us" and "error", or with "why"; None if the way doesn't apply.
    """
    try:
        calls = way(inputs)
        if calls is None:
            return None
        error = float((calls[0]().float() - expected).norm() / expected.norm())
        if not error < LARGEST_ERROR:
            return {"error": error, "why": f"wrong: relative error {error:.2g}"}
        return {"us": microseconds(calls), "error": error}
    except Exception as error:  # this machine or version doesn't support it
        return {"why": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}
    finally:
        torch.cuda.empty_cache()


def run_case(case: Case, say: Callable[[str], None] = lambda line: None) -> dict:
    """Every way of computing one case. `say` gets a line per result."""
    inputs = make_inputs(case)
    expected = inputs.reference()

    def all_measured(ways: dict[str, Callable]) -> dict[str, dict]:
        results = {}
        for name, way in ways.items():
            if result := measured(way, inputs, expected):
                results[name] = result
                say(f"{case.name}: {name}: {result}")
        return results

    return {
        "name": case.name,
        "kind": case.kind,
        "kv_bytes": case.kv_bytes,
        "flop": attention_work(case.q_lens, case.context_lens, case.q_heads, case.kv_heads, case.head_dim).flop,
        "peers": all_measured(PEERS),
    }


def results_table(results: list[dict]) -> Table:
    """One row per case, one column per way that worked somewhere."""
    names = [name for name in PEERS if any("us" in result["peers"].get(name, {}) for result in results)]
    rows = []
    for result in results:
        own = result["peers"]["this course"].get("us")
        times = [result["peers"].get(name, {}).get("us") for name in names]
        rate = (
            f"{result['flop'] / own / 1e6:,.0f} TFLOP/s"
            if result["kind"] == "prefill"
            else f"{result['kv_bytes'] / own / 1e6:.2f} TB/s"
        )
        rows.append([result["name"], *(f"{us:,.1f}" if us else "–" for us in times), rate if own else "–"])
    return Table(
        ["µs", *names, "this course: rate"],
        rows,
        "Attention of one layer, bfloat16, blocks of 16; every result checked against float32",
    )


def gpu_tables(wanted: str = "", record: Path | None = None, say=lambda line: print(line, file=sys.stderr)) -> Table:
    """Time all cases whose name contains `wanted`; write the results to the file `record` if given."""
    results = [run_case(case, say) for case in CASES if wanted in case.name]
    if record:
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        facts = facts_of("tools.gpu_bench") | {"processors": processors, **machine_limits()}
        record.write_text(json.dumps(facts | {"cases": results}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results_table(results)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here. Recorded results are in lessons_lib/assets/recorded.")
    print(gpu_tables(options.cases, options.record))


if __name__ == "__main__":
    main()
