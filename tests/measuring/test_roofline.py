"""How much there is to read and to compute, counted one by one; and the recorded results: complete, and about the cases
of the benchmark.
"""

import json
import math
import re

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# isort: split
from lessons_lib.measuring import published as recorded
from lessons_lib.measuring.attention_cases import CASES
from lessons_lib.measuring.attention_peers import PEERS
from lessons_lib.measuring.published import (
    recorded_attention,
    recorded_first_tokens,
    recorded_ladder,
    recorded_production,
    recorded_splits,
)
from lessons_lib.measuring.roofline import Machine, Work, attainable, attention_work
from tools.gpu_bench.__main__ import LARGEST_ERROR

sequences = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(sequences, st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 4]))
def test_work_is_what_counting_one_by_one_gives(lengths, kv_heads, group, head_dim, itemsize):
    flop = numbers = 0
    for cached, new in lengths:
        for _head in range(kv_heads * group):
            for position in range(cached, cached + new):
                numbers += 2 * head_dim  # a query read, an output written
                for _key in range(position + 1):
                    flop += 2 * head_dim  # the score: a product and a sum for each number
                    flop += 2 * head_dim  # the output: the same
        numbers += (cached + new) * kv_heads * 2 * head_dim
    work = attention_work(
        [new for _, new in lengths], [sum(pair) for pair in lengths], kv_heads * group, kv_heads, head_dim, itemsize
    )
    assert work == Work(bytes=numbers * itemsize, flop=flop)


@pytest.mark.parametrize("heads, context, intensity", [((32, 8, 128), 10**6, 4), ((14, 2, 64), 10**6, 7)])
def test_a_decode_has_as_many_operations_a_byte_as_query_heads_share_a_kv_head(heads, context, intensity):
    """In two bytes a number: four operations for each of 4 query heads, and two numbers of two bytes."""
    assert attention_work([1], [context], *heads).intensity == pytest.approx(intensity, rel=1e-3)


def test_the_longer_of_both_limits_counts_and_they_meet_at_the_ridge():
    machine = Machine("a machine", bytes_per_s=1e12, flop_per_s=1e14)
    assert machine.ridge == 100
    assert attainable(Work(bytes=10**9, flop=10**9), machine) == pytest.approx(1e-3)
    assert attainable(Work(bytes=10**6, flop=10**12), machine) == pytest.approx(1e-2)
    ridge = Work(bytes=10**6, flop=10**8)
    assert ridge.intensity == machine.ridge
    assert (ridge.flop / 1e14, ridge.bytes / 1e12) == pytest.approx((attainable(ridge, machine),) * 2)


# --- recorded


def raw(name):
    return json.loads((recorded.FOLDER / name).read_text(encoding="utf-8"))


def test_both_recordings_have_every_case_and_nothing_is_faster_than_the_machine():
    recording, production = recorded_attention(), recorded_production().microseconds
    names = [case.name for case in CASES]
    assert [case.name for case in recording.cases] == names
    # Prefills with short heads came later, and no production kernel was timed on them.
    assert list(production) == [name for name in names if not name.startswith("prefill 14")]
    assert all(len(times) == 3 for times in production.values())
    for case, kept in zip(CASES, recording.cases):
        work = attention_work(case.q_lens, case.context_lens, case.q_heads, case.kv_heads, case.head_dim)
        assert (kept.kind, kept.kv_bytes, kept.flop) == (case.kind, case.kv_bytes, work.flop)
        needed = ["this course", "packed FlashAttention-2", *["lesson 07's kernel"] * (case.kind == "decode")]
        needed += ["gather + SDPA", "dense SDPA, flash", "dense SDPA, cuDNN"] * case.is_even
        assert set(needed) <= kept.microseconds.keys() <= PEERS.keys()
        for times in (kept.microseconds, production.get(case.name, {})):
            for name, us in times.items():
                # A little less is possible: the limit was measured once, and of a repeated read some stays in the GPU's
                # cache.
                assert math.isfinite(us) and us * 1e-6 > 0.85 * attainable(work, recording.machine), (case.name, name)


def test_every_result_was_right():
    for case in raw("h200_attention.json")["cases"]:
        for name, result in case["peers"].items():
            assert "why" in result or 0 < result["error"] < LARGEST_ERROR, (case["name"], name)


def test_the_provenance_names_machine_date_versions_and_command():
    recording, production = recorded_attention(), recorded_production()
    names = r"recorded on one NVIDIA H200, 20\d\d-\d\d-\d\d, .*torch \d+\.\d+.*triton \d+\.\d+"
    assert re.search(names, recording.provenance) and re.search(names, production.provenance)
    assert "python -m tools.gpu_bench" in recording.provenance
    assert all(kernel in production.provenance for kernel in ("FlashAttention-3", "FlashInfer", "vLLM"))
    assert 1e12 < recording.machine.bytes_per_s < 1e13 and 1e14 < recording.machine.flop_per_s < 1e16
    assert recording.processors > 100


def test_a_case_is_found_by_the_beginning_of_its_name():
    recording = recorded_attention()
    assert recording.case("mixed").kind == "mixed"
    with pytest.raises(KeyError, match="0 recorded cases start with 'nothing'; the cases are: decode"):
        recording.case("nothing")
    with pytest.raises(KeyError, match="7 recorded cases start with 'decode'"):
        recording.case("decode")


def test_a_beginning_that_is_found_brings_the_first_token_sooner():
    provenance, rows = recorded_first_tokens()
    assert "H100" in provenance and "python -m tools.gpu_bench.shared_prefix" in provenance and len(rows) == 4
    for row in rows:
        assert (row["computed"], row["computed_after_hit"]) == (row["beginning"] + 64, 64)
        assert row["first_token_after_hit_s"] < row["first_token_s"]


def test_what_lesson_08_says_of_the_ladder():
    provenance, ladder = recorded_ladder()
    single, many, small_heads = ({name: step["us"] for name, step in case.items()} for case in ladder.values())
    assert "H200" in provenance
    seven, one, best = "lesson 07's kernel", "Idea 1, 16 keys per tile", "Ideas 1 to 3, 128 keys per tile"
    assert round(single[one] / single[seven], 1) == 1.7 and round(many[seven] / many[one], 1) == 1.8
    assert round(100 * (1 - small_heads[one] / small_heads[seven])) == 13
    assert 0.95 < many["Ideas 1 and 2, 64 keys per tile"] / many[seven] < 1
    assert round(many[one] / many["Ideas 1 and 3, 16 keys per tile"]) == 4
    assert [round(case[seven] / case[best]) for case in (single, many, small_heads)] == [7, 12, 23]
    yours = "Ideas 1 to 3, 64 keys per tile"
    assert [round(case[seven] / case[yours]) for case in (single, many, small_heads)] == [4, 12, 22]
    library = "the library's kernel"
    assert round(single[library]) == 18 and round(single[seven] / single[library]) == 52
    assert many[library] > many[yours] and small_heads[library] > small_heads[yours]
    steps = list(ladder.values())[1]
    assert [steps[f"Ideas 1 and 2, {keys} keys per tile"]["registers"] for keys in (32, 64)] == [255, 255]
    assert steps[one]["registers"] == 128 and steps[best]["spilled"] == 0


def test_what_lesson_08_says_of_the_size_of_a_split():
    provenance, cases = recorded_splits()
    one, many = cases.values()
    assert "H100" in provenance and "python -m tools.gpu_bench.splits" in provenance
    assert one["not split"] / one["512"] > 6 and 0.95 < one["64"] / one["512"] < 1
    assert [round(many[size] / many["not split"], 2) for size in ("64", "512")] == [1.19, 1.07]
