"""`python -m tools.gpu_bench`: times the attention kernels on this GPU. `make bench` runs it too if there is a GPU."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lessons_lib.kernels.group_decode import decode_groups, decode_splits
from lessons_lib.kernels.launch import LOG2_E, Tiles, decode_tiles, launch_decode, launch_prefill
from lessons_lib.kernels.paged_flash import prefill_kernel
from lessons_lib.measuring.ablations import VARIANTS, decode_groups_by_sums
from lessons_lib.measuring.attention_cases import CASES, Case, Inputs, make_inputs
from lessons_lib.measuring.attention_peers import PEERS, Calls
from lessons_lib.measuring.gpu_timing import machine_limits, microseconds
from lessons_lib.measuring.published import ANY_GPU, HOPPER
from lessons_lib.measuring.roofline import attention_work
from lessons_lib.viz.tables.table import Table
from tools.gpu_bench.facts import facts_of

LARGEST_ERROR = 2e-2  # relative; bfloat16 has 8 significant bits, and every result is rounded to them
EVEN, LONG = "decode 32,8,128; batch 64, context 2048", "decode 32,8,128; batch 1,"
PREFILL, MIXED = "prefill 32", "mixed"
SWEPT = (EVEN, "prefill 32,8,128; 4 × 4096")
DECODE_TILES = {"keys": (16, 32, 64, 128), "warps": (2, 4, 8), "stages": (2, 3)}
PREFILL_TILES = {"rows": (64, 128, 256), "keys": (32, 64, 128), "warps": (4, 8), "stages": (2, 3)}


# Our kernels, with other tiles, splits or kernels than `varlen` would choose


def decode_with(inputs: Inputs, table: torch.Tensor, kv: Any = None, **options: Any) -> torch.Tensor:
    """A decode over one block table. `kv`: other caches; `options`: those of `launch_decode`."""
    out = torch.empty_like(inputs.q)
    cache = (*(kv or (inputs.k_cache, inputs.v_cache)), table, inputs.context_lens, inputs.cu_seqlens_q)
    launch_decode(inputs.q, *cache, out, inputs.scale, table.shape[1] * inputs.case.block_size, **options)
    return out


def prefill_with(inputs: Inputs, table: torch.Tensor, scale: float = 1.0, **options: Any) -> torch.Tensor:
    """The sequences with several new tokens, by the kernel for any GPU.

    `scale`: multiplies the scale of the inputs; `options`: those of `launch_prefill`.
    """
    out = torch.empty_like(inputs.q)
    cache = (inputs.k_cache, inputs.v_cache, table, inputs.context_lens, inputs.cu_seqlens_q)
    launch_prefill(inputs.q, *cache, out, inputs.scale * scale, **{"kernel": prefill_kernel, **options})
    return out


def mixed_with(inputs: Inputs, table: torch.Tensor) -> torch.Tensor:
    """A mixed batch as `varlen` computes it: first what `prefill_with` computes, then the decodes."""
    out = prefill_with(inputs, table)
    cache = (inputs.k_cache, inputs.v_cache, table, inputs.context_lens, inputs.cu_seqlens_q)
    launch_decode(inputs.q, *cache, out, inputs.scale, max(inputs.case.context_lens))
    return out


def hopper(inputs: Inputs, table: torch.Tensor) -> torch.Tensor:
    from lessons_lib.kernels.hopper_prefill import launch_hopper_prefill  # imports Gluon, which others may lack

    out = torch.empty_like(inputs.q)
    lengths = (inputs.context_lens, inputs.cu_seqlens_q)
    launch_hopper_prefill(inputs.q, inputs.k_cache, inputs.v_cache, table, *lengths, out, inputs.scale)
    return out


def one_program_per_query_head(inputs: Inputs, table: torch.Tensor) -> torch.Tensor:
    """Cache views with one KV head per query head; the variant finds four neighboring heads at the same address."""

    def repeated(cache: torch.Tensor) -> torch.Tensor:
        return cache.as_strided((*cache.shape[:2], inputs.case.q_heads, cache.shape[3]), (*cache.stride()[:2], 0, 1))

    kv = (repeated(inputs.k_cache), repeated(inputs.v_cache))
    return decode_with(inputs, table, kv, kernel=VARIANTS["one program per query head"].kernel)


def with_keys(inputs: Inputs, table: torch.Tensor, keys: int, **options: Any) -> torch.Tensor:
    """A decode with tiles of this many keys."""
    tiles = replace(decode_tiles(inputs.case.head_dim * inputs.q.element_size()), keys=keys)
    return decode_with(inputs, table, tiles=tiles, **options)


def lesson_08(function: Callable[..., torch.Tensor], **options: Any) -> "Attend":
    """A function of lesson 08, with these options."""
    return lambda i, table: function(i.q, i.k_cache, i.v_cache, table, i.context_lens, i.scale, **options)


# Tables of what is timed beside PEERS

Attend = Callable[[Inputs, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Ablation:
    """One idea removed.

    Attributes:
        without: what replaces the idea; if that needs another kernel, its name in `VARIANTS`.
        case: the beginning of the name of the case that is timed.
        attend: function (inputs, block table) -> outputs.
    """

    without: str
    case: str
    attend: Attend

    def calls(self, inputs: Inputs) -> Calls:
        return each_table(self.attend)(inputs)


def each_table(attend: Attend) -> Callable[[Inputs], Calls]:
    """One call per block table of the inputs."""
    return lambda inputs: [lambda table=table: attend(inputs, table) for table in inputs.tables]


def _decode_by(name: str) -> Attend:
    return lambda i, table: decode_with(i, table, kernel=VARIANTS[name].kernel)


def _prefill_by(name: str, **options: Any) -> Attend:
    return lambda i, table: prefill_with(i, table, kernel=VARIANTS[name].kernel, **options)


def _unsplit(inputs: Inputs, table: torch.Tensor) -> torch.Tensor:
    return decode_with(inputs, table, split_size=max(inputs.case.context_lens))


EARLY, SUMS = "table read one iteration early", VARIANTS["no tensor cores"].kernel
ABLATIONS = (
    Ablation("one program per query head", EVEN, one_program_per_query_head),
    # One block per iteration: with larger tiles, the products wouldn't fit into the registers.
    Ablation("no tensor cores", EVEN, lambda i, table: with_keys(i, table, 16, kernel=SUMS)),
    Ablation("one block per iteration", EVEN, lambda i, table: with_keys(i, table, i.case.block_size)),
    Ablation(EARLY, EVEN, _decode_by(EARLY)),
    Ablation(EARLY, "decode 14,2,64; batch 256", _decode_by(EARLY)),
    Ablation("sequences not split", LONG, _unsplit),
    Ablation("sequences not split", "decode 32,8,128; batch 64, ragged", _unsplit),
    # The launcher multiplies the scale by log2(e); natural exponentials need the bare scale.
    Ablation("natural exponentials", PREFILL, _prefill_by("natural exponentials", scale=1 / LOG2_E)),
    Ablation("a mask in every iteration", PREFILL, _prefill_by("a mask in every iteration")),
    Ablation("first tokens first", PREFILL, _prefill_by("first tokens first")),
    Ablation("64-bit offsets", PREFILL, lambda i, table: prefill_with(i, table, use_int64=True)),
    Ablation(ANY_GPU, PREFILL, prefill_with),
    Ablation(ANY_GPU, "prefill 14,2,64; 4 ", prefill_with),
    Ablation(ANY_GPU, "prefill 14,2,64; 64", prefill_with),
    Ablation(ANY_GPU, MIXED, mixed_with),
    Ablation(HOPPER, "prefill 14,2,64; 64", hopper),
    Ablation("one kernel for prefills and decodes", MIXED, _prefill_by("one kernel for prefills and decodes")),
)
# From lesson 07's kernel, one of PEERS, to the library's; and the sequences split into parts. Both in lesson 08.
CLIMBED = (LONG, EVEN, "decode 14,2,64; batch 256")
LADDER = {
    "Idea 1, 16 keys per tile": lesson_08(decode_groups_by_sums, keys_per_tile=16),
    "Ideas 1 and 2, 32 keys per tile": lesson_08(decode_groups_by_sums, keys_per_tile=32),
    "Ideas 1 and 2, 64 keys per tile": lesson_08(decode_groups_by_sums, keys_per_tile=64),
    "Ideas 1 and 3, 16 keys per tile": lesson_08(decode_groups, keys_per_tile=16),
    "Ideas 1 to 3, 64 keys per tile": lesson_08(decode_groups, keys_per_tile=64),
    "Ideas 1 to 3, 128 keys per tile": lesson_08(decode_groups, keys_per_tile=128),
} | {
    f"parts of {size} keys": lesson_08(decode_splits, split_size=size, keys_per_tile=min(size, 128))
    for size in (64, 128, 256, 512, 1024)
}


# Timing


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


def sweep(inputs: Inputs) -> list[dict]:
    """Microseconds with each combination of tiles, from which those of the launcher were chosen; None where it does
    not compile or does not fit."""
    is_decode = inputs.case.kind == "decode"
    call, choices = (decode_with, DECODE_TILES) if is_decode else (prefill_with, PREFILL_TILES)
    rows = []
    for values in product(*choices.values()):
        sizes = {"rows": 16, **dict(zip(choices, values))}
        attend = partial(call, tiles=Tiles(**sizes))
        try:
            us = microseconds(each_table(attend)(inputs))
        except Exception:  # too much shared memory, or more threads than the tile has work for: not a candidate
            us = None
        rows.append(sizes | {"us": us})
    return rows


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

    ladder = LADDER if case.name.startswith(CLIMBED) else {}
    return {
        "name": case.name,
        "kind": case.kind,
        "kv_bytes": case.kv_bytes,
        "flop": attention_work(case.q_lens, case.context_lens, case.q_heads, case.kv_heads, case.head_dim).flop,
        "peers": all_measured(PEERS),
        "without": all_measured({a.without: a.calls for a in ABLATIONS if case.name.startswith(a.case)}),
        "ladder": all_measured({name: each_table(attend) for name, attend in ladder.items()}),
        "tiles": sweep(inputs) if case.name in SWEPT else [],
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
