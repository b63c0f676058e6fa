"""How many cases a test tries where their number is a matter of patience: a part by day, all in nightly runs."""

import os


def by_day(part, whole):
    """`whole` with LESSONS_NIGHTLY=1, otherwise `part`."""
    return whole if os.environ.get("LESSONS_NIGHTLY") == "1" else part
