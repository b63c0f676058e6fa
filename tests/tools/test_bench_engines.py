"""The table of all ways of serving: what is recorded is complete, right, and what the course says of itself."""

import pytest
from readme_tables import ways_markdown

from lessons_lib.measuring.designs import ALONE, ways_table
from lessons_lib.measuring.published import recorded_ways
from tools.bench_engines import HF_ALONE, WAYS, measure_ways


def rates() -> dict[str, float]:
    """Way -> requests a second, at the batch size that suits it best."""
    best = {}
    for way in recorded_ways().results["ways"]:
        best[way["name"]] = max(best.get(way["name"], 0.0), recorded_ways().results["requests"] / way["seconds"])
    return best


def test_every_way_is_recorded_and_gives_the_same_answers():
    results = recorded_ways().results
    assert {(way["name"], way["size"]) for way in results["ways"]} == {
        (name, size) for name in WAYS for size in ((1,) if name in (ALONE, HF_ALONE) else (16, 64))
    }
    assert all(way["same"] == results["requests"] == 64 for way in results["ways"])
    assert "python -m tools.bench_engines --record" in recorded_ways().provenance


def test_the_engine_is_ahead_of_all_others():
    best = rates()
    engine = best["engine, fused"]
    assert engine > 10 * best[ALONE] and engine > 2 * best["static waves"]
    assert engine > 2 * max(rate for name, rate in best.items() if name.startswith("Hugging Face continuous"))
    assert engine == max(best.values())


def test_the_tables_say_what_was_measured():
    ways = [dict(name=ALONE, size=1, seconds=3.0, same=2), dict(name="engine", size=4, seconds=1.5, same=1)]
    results = dict(requests=2, repeats=1, new_tokens=30, ways=ways)
    assert ways_table(results).rows == [
        [ALONE, 1, "10", "1.00 ×", "2.00 ×", "2 of 2"],
        ["engine", 4, "20", "2.00 ×", "1.00 ×", "1 of 2"],
    ]
    lines = ways_markdown().splitlines()
    assert len(lines) == 2 + len(WAYS) and lines[-1].startswith("| engine, fused | 64 |")
    assert all(line.replace("\\|", "").count("|") == 5 for line in lines), "a bar inside a cell would be a column more"


@pytest.mark.nightly
def test_both_ways_of_one_request_at_a_time_are_measured():
    results = measure_ways(repeats=1, requests=1, sizes=())
    assert [way["name"] for way in results["ways"]] == [HF_ALONE, ALONE]
    assert results["new_tokens"] > 0 and all(way["seconds"] > 0 and way["same"] == 1 for way in results["ways"])
