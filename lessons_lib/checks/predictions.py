"""Predict, then measure: the learner commits to a number and later sees it beside the measured one."""

from numbers import Real

from lessons_lib.checks import progress
from lessons_lib.checks.panel import Panel


def predict(key: str, guess: object = ...) -> None:
    """Keep the learner's number under `key`; `...` means no number yet."""
    if guess is ...:
        return Panel(
            "open",
            "Your prediction",
            ["Put a number in place of `...` and run this cell. A wrong one teaches more than none."],
        ).show()
    if isinstance(guess, bool) or not isinstance(guess, Real) or guess != guess:
        return Panel(
            "wrong", "Your prediction", [f"A prediction is a number; this is {guess!r}. Units are left out."]
        ).show()
    record = progress.load()
    record["predictions"][key] = float(guess)
    progress.save(record)
    Panel("note", f"Your prediction: {_number(guess)}", ["The measured number appears further down."]).show()


def reveal(key: str, measured: float, unit: str = "") -> None:
    """Show the measured number beside the learner's."""
    guess = progress.load()["predictions"].get(key)
    far = None if guess is None else _points(guess, measured) if unit == "%" else _how_far(guess, measured)
    unit = f" {unit}" if unit else ""
    if guess is None:
        return Panel("note", f"Measured: {_number(measured)}{unit}", ["You made no prediction for this one."]).show()
    Panel("note", f"Measured: {_number(measured)}{unit}. You predicted {_number(guess)}{unit}.", [far]).show()


def _how_far(guess: float, measured: float) -> str:
    if abs(guess - measured) <= 0.005 * abs(measured):
        return "That is right."
    if measured == 0 or guess * measured <= 0:
        return f"You are off by {_number(guess - measured)}."
    ratio = guess / measured
    side = "high" if ratio > 1 else "low"
    factor = max(ratio, 1 / ratio)
    return f"You are {factor:.1f} times too {side}." if factor >= 2 else f"You are {abs(ratio - 1):.0%} too {side}."


def _points(guess: float, measured: float) -> str:
    """Shares are compared by their difference: 58 % for 53 % is 5 points too high."""
    points = abs(guess - measured)
    return (
        "That is right."
        if points < 0.5
        else f"You are {points:.0f} points too {'high' if guess > measured else 'low'}."
    )


def _number(value: float) -> str:
    """Four digits, but whole numbers whole: 0.1235, 12,345."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
