"""Seconds in words and along an axis."""

import math

_STEPS = (1, 2, 5, 10)


def say_seconds(seconds: float) -> str:
    """A time in words, with three digits: "12.5 ms", "3.4 s"."""
    value, unit = (seconds * 1000, "ms") if abs(seconds) < 0.9995 else (seconds, "s")
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:,.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if decimals else text} {unit}"


def unit_of(longest: float) -> tuple[str, float]:
    """The unit for an axis that ends at `longest` seconds, and how many of them make a second."""
    return ("ms", 1000.0) if longest < 1 else ("s", 1.0)


def round_ticks(longest: float, most: int) -> list[float]:
    """0 and at most `most` evenly spaced round values up to `longest`."""
    if longest <= 0:
        return [0.0]
    # 1e-9: rounding in the division must not rule out a step that fits exactly.
    least = longest / max(most, 1) * (1 - 1e-9)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in _STEPS if factor * power >= least)
    return [n * step for n in range(math.floor(longest / step * (1 + 1e-9)) + 1)]


def tick_words(seconds: float, unit: float) -> str:
    return f"{seconds * unit:,.10g}"
