"""Predict, then measure: the learner commits to a number and later compares it with the measured one."""

from numbers import Real

from lessons_lib.checks import progress
from lessons_lib.checks.panel import Panel
from lessons_lib.checks.registry import slips_of

EXACT = 0.005  # of what was measured: a prediction this near is correct


def predict(key: str, guess: object = ...) -> None:
    """Store the learner's number under `key`; `...` means no number yet."""
    if guess is ...:
        return Panel(
            "open",
            "Your prediction",
            ["Replace `...` with a number and run this cell. A wrong guess teaches you more than no guess."],
        ).show()
    if isinstance(guess, bool) or not isinstance(guess, Real) or guess != guess:
        return Panel(
            "wrong", "Your prediction", [f"A prediction is a number without a unit; this is {guess!r}."]
        ).show()
    record = progress.load()
    record["predictions"][key] = float(guess)
    progress.save(record)
    Panel("note", f"Your prediction: {_number(guess)}", ["You'll see the measured number further down."]).show()


def reveal(key: str, measured: float, unit: str = "", tolerance: float = EXACT, how: str = "Measured") -> None:
    """Show the measured number and the learner's prediction.

    Args:
        how: how the number was found, such as "Computed".
        tolerance: how far off a prediction may be that counts as a hit, relative to what was measured.
    """
    record = progress.load()
    record["measured"][key] = {"value": float(measured), "unit": unit, "tolerance": tolerance}
    progress.save(record)
    guess = record["predictions"].get(key)
    far = None if guess is None else how_far(guess, measured, unit, tolerance)
    if guess is None:
        return Panel("note", f"{how}: {_with_unit(measured, unit)}", ["You made no prediction for this one."]).show()
    lines = [far, *slip_of(key, guess, measured)]
    Panel("note", f"{how}: {_with_unit(measured, unit)}. You predicted {_with_unit(guess, unit)}.", lines).show()


def slip_of(key: str, guess: float, measured: float) -> list[str]:
    """What led to a wrong prediction, if it is a value that a known slip gives."""
    near = [why for wrong, why in slips_of(key).items() if abs(guess - wrong) <= EXACT * abs(wrong)]
    return near if abs(guess - measured) > EXACT * abs(measured) else []


def how_far(guess: float, measured: float, unit: str = "", tolerance: float = EXACT) -> str:
    """The prediction's error in words."""
    if unit == "%":
        return _points(guess, measured, tolerance)
    if abs(guess - measured) <= EXACT * abs(measured):
        return "Correct."
    if abs(guess - measured) <= tolerance * abs(measured):
        return f"A hit: within {tolerance:.0%}."
    if measured == 0 or guess * measured <= 0:
        return f"Off by {_number(guess - measured)}."
    ratio = guess / measured
    side = "high" if ratio > 1 else "low"
    factor = max(ratio, 1 / ratio)
    return f"Too {side} by a factor of {factor:.1f}." if factor >= 2 else f"{abs(ratio - 1):.0%} too {side}."


def _points(guess: float, measured: float, tolerance: float) -> str:
    """Percentages are compared by their difference: 58 % instead of 53 % is 5 percentage points too high."""
    points = round(abs(guess - measured))
    if points == 0 or abs(guess - measured) <= EXACT * abs(measured):
        return "Correct."
    if abs(guess - measured) <= tolerance * abs(measured):
        within = round(tolerance * abs(measured))
        return f"A hit: within {within} percentage point{'' if within == 1 else 's'}."
    side = "high" if guess > measured else "low"
    return f"{points} percentage point{'' if points == 1 else 's'} too {side}."


def _with_unit(value: float, unit: str) -> str:
    """Percentages, which are compared in whole points, with one decimal; of 1, the unit without its s."""
    number = _number(round(value, 1) if unit == "%" else value)
    if number == "1" and unit.isalpha() and len(unit) > 3:
        unit = f"{unit[:-3]}y" if unit.endswith("ies") else unit.removesuffix("s")
    return f"{number} {unit}" if unit else number


def _number(value: float) -> str:
    """Four significant digits below 1000, else rounded to an integer: 0.1235, 12,345, −6.7."""
    size = abs(value)
    text = f"{size:,.0f}" if size >= 1000 else f"{size:.4g}"
    return f"−{text}" if value < 0 else text
