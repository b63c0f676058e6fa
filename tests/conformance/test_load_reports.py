"""The load report of lesson 17: numbers are computed again, and a wrong one is traced to its rule."""

import json

import pytest

from lessons_lib.conformance.load_report.checking import _cases, causes_of, check_numbers, differing, log_of
from lessons_lib.conformance.load_report.numbers import load_report
from lessons_lib.conformance.load_report.recorded import recorded_log
from lessons_lib.conformance.load_report.rules import CAUSES, FIELDS, RIGHT, numbers_by, right_numbers
from lessons_lib.serving.load.goodput import Target

TARGET = Target(ttft=0.5, tpot=0.04)
LOGS = [log_of(saved) for _, saved in _cases()]


def test_the_rules_with_nothing_changed_are_those_of_lesson_14():
    for log in LOGS:
        assert numbers_by(RIGHT, log, TARGET) == pytest.approx(right_numbers(log, TARGET))


def test_each_cause_is_named_on_a_log_in_which_it_matters():
    for cause, rules in CAUSES.items():
        named = [
            cause in causes_of(name, numbers_by(rules, log, TARGET)[name], log, TARGET)
            for log in LOGS
            for name in FIELDS
        ]
        assert any(named), cause


def test_a_right_number_has_no_cause():
    for log in LOGS:
        numbers = right_numbers(log, TARGET)
        assert differing(numbers, log, TARGET) == {}
        assert all(causes_of(name, numbers[name], log, TARGET) == [] for name in FIELDS)


def test_a_report_of_ones_own_run_is_read_from_files(tmp_path):
    numbers = load_report(recorded_log(), 800, 40) | {"p99_ttft_ms": 1.5197}
    (tmp_path / "report.json").write_text(json.dumps(numbers))
    (tmp_path / "run.json").write_text(json.dumps(recorded_log()))
    table = check_numbers(tmp_path / "report.json", str(tmp_path / "run.json"), ttft_ms=800, tpot_ms=40)
    assert [row[0] for row in table.rows if row[3] != "✓"] == ["p99_ttft_ms"]
    assert "It is in seconds" in str(table) and "8 of 9 numbers" in str(table)
    other = check_numbers(numbers, recorded_log())
    assert [row[0] for row in other.rows if row[3] != "✓"] == ["p99_ttft_ms", "goodput"]


def test_what_is_no_log_is_refused():
    with pytest.raises(ValueError, match=r"no 'records', and needs records, window and duration\. Give the file"):
        check_numbers({}, {"window": 1})


def test_the_recorded_log_is_raw_and_small():
    log = recorded_log()
    assert set(log) == {"provenance", "window", "duration", "rate", "records"} and len(json.dumps(log)) < 30_000
    assert {record["status"] for record in log["records"]} == {200, 429}
