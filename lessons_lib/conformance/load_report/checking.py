"""Computes the numbers of a report again from the raw log, and says which one differs, and by which rule it came."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.conformance.load_report.recorded import recorded_log
from lessons_lib.conformance.load_report.rules import CAUSES, FIELDS, Numbers, numbers_by, right_numbers
from lessons_lib.serving.load.goodput import Target
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.viz.tables.table import Table

ROUNDING = 0.0051  # two decimals are enough
TTFT_MS, TPOT_MS = 500.0, 40.0


def log_of(saved: dict[str, Any]) -> LoadLog:
    """The log in what `LoadLog.save` has written.

    Raises:
        ValueError: it isn't one.
    """
    if missing := [name for name in ("records", "window", "duration") if name not in saved]:
        raise ValueError(
            f"the log has no {missing[0]!r}, and needs records, window and duration. Give the file that "
            "`python -m lessons_lib.serving.load --save FILE` wrote."
        )
    records = [LoadRecord(**record) for record in saved["records"]]
    return LoadLog(records, saved["window"], saved["duration"], saved.get("rate"))


def differing(numbers: Any, log: LoadLog, target: Target) -> dict[str, str]:
    """Name -> what is wrong with it, of the numbers that the log doesn't give; {} for a right report.

    Raises:
        Mistake: it is no report.
    """
    if not isinstance(numbers, dict):
        raise Mistake(f"a report is a dict; this is {type(numbers).__name__}.")
    if missing := [name for name in FIELDS if name not in numbers]:
        raise Mistake(f"the report has no {missing[0]!r}. It needs {', '.join(FIELDS)}.")
    try:
        json.dumps(numbers, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Mistake(
            f"the report can't be written as JSON: {error}.",
            idea="JSON has int, float and None. `float(value)` turns a number of numpy into one, and where there is "
            "no value, a report has None.",
        ) from None
    right = right_numbers(log, target)
    return {
        name: f"{name} is {_shown(numbers[name])}; the log gives {_shown(right[name])}."
        for name in FIELDS
        if not _same(numbers[name], right[name])
    }


def causes_of(name: str, value: Any, log: LoadLog, target: Target) -> list[str]:
    """What may have gone wrong: the rules that give this value, where the right ones give another."""
    right = right_numbers(log, target)[name]
    found = [(cause, numbers_by(rules, log, target)[name]) for cause, rules in CAUSES.items()]
    return [cause for cause, wrong in found if _same(value, wrong) and not _same(wrong, right)]


def check_numbers(
    numbers: Numbers | str | Path, log: dict[str, Any] | str | Path, ttft_ms: float = TTFT_MS, tpot_ms: float = TPOT_MS
) -> Table:
    """A report, number by number, next to what its raw log gives.

    Args:
        numbers, log: dicts, or files of JSON.
        ttft_ms, tpot_ms: the target of the goodput.

    Raises:
        Mistake, ValueError: one of the two isn't what it should be.
    """
    reported, saved = _read(numbers), _read(log)
    own, target = log_of(saved), _target(ttft_ms, tpot_ms)
    wrong, right = differing(reported, own, target), right_numbers(own, target)
    rows = [
        [
            name,
            _shown(reported[name]),
            _shown(right[name]),
            " Or: ".join(causes_of(name, reported[name], own, target)) or "differs" if name in wrong else "✓",
        ]
        for name in FIELDS
    ]
    caption = f"{len(FIELDS) - len(wrong)} of {len(FIELDS)} numbers are those of the log"
    return Table(["number", "reported", "from the log", "✓, or the likely cause"], rows, caption=caption)


def check_load_report(load_report: Callable[..., Any]) -> None:
    """The check of the exercise, first on logs of a few requests.

    Raises:
        Mistake: a number differs. The share of the points is that of the logs before it.
    """
    target = _target(TTFT_MS, TPOT_MS)
    cases = _cases()
    for index, (case, saved) in enumerate(cases):
        log = log_of(saved)
        numbers = call(load_report, saved, TTFT_MS, TPOT_MS, case=case)
        try:
            wrong = differing(numbers, log, target)
        except Mistake as mistake:
            raise Mistake(mistake.what, case, mistake.idea) from None
        if wrong:
            name = next(iter(wrong))
            raise Mistake(
                wrong[name], case, _told(causes_of(name, numbers[name], log, target)), earned=index / len(cases)
            )


def _told(causes: list[str]) -> str:
    if not causes:
        return "None of the usual rules gives this number. Compute it by hand for this case."
    if len(causes) == 1:
        return causes[0]
    return f"{len(causes)} rules give this number. Which is yours? " + " Or: ".join(causes)


def _cases() -> list[tuple[str, dict[str, Any]]]:
    """(what is special about it, a log), the simplest first."""
    first = _record(0, 0.0, 0.0, [0.2, 0.23, 0.26])
    second = _record(1, 1.0, 1.0, [1.9, 1.95], max_tokens=4)
    refused = _record(2, 1.2, 1.2, [], status=429, error="the server is full", end=1.25)
    cut = _record(3, 1.3, 1.3, [1.4, 1.6, 1.9], finish=None)
    late = _record(4, 1.4, 1.9, [2.35, 2.37], output_tokens=5)
    slow = _record(5, 1.5, 1.5, [1.6, 1.75, 1.8])
    return [
        ("a log of two requests, both completed", _log(first, second)),
        ("one of three was refused with status 429", _log(first, second, refused)),
        ("one of three was cut: status 200, three tokens, and finish_reason None", _log(first, second, cut)),
        ("one was sent 0.5 s after it was due, and its 5 tokens came in 2 events", _log(first, second, late)),
        ("one of three has its first token in time, and the others too slowly", _log(first, second, slow)),
        ("all requests were refused", _log(refused)),
        ("the recorded log", recorded_log()),
    ]


def _record(index: int, due: float, sent: float, times: list[float], **changed: Any) -> LoadRecord:
    end, finish = changed.pop("end", times[-1] + 0.001 if times else None), changed.pop("finish", "length")
    values = dict(output_tokens=len(times), status=200, max_tokens=len(times), error=None) | changed
    reason = finish if values["status"] == 200 else None
    max_tokens = values.pop("max_tokens")
    return LoadRecord(str(index), due, sent, 8, max_tokens, times, end_time=end, finish_reason=reason, **values)


def _log(*records: LoadRecord) -> dict[str, Any]:
    return asdict(LoadLog(list(records), window=2.0, duration=max(record.end_time or 0.0 for record in records)))


def _target(ttft_ms: float, tpot_ms: float) -> Target:
    return Target(ttft=ttft_ms / 1000, tpot=tpot_ms / 1000)


def _read(data: Any) -> Any:
    return json.loads(Path(data).read_text(encoding="utf-8")) if isinstance(data, str | Path) else data


def _same(value: Any, right: Any) -> bool:
    if value is None or right is None:
        return value is right
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isclose(value, right, rel_tol=1e-6, abs_tol=ROUNDING)


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
