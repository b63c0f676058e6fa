"""What is wrong where a program should store one row of a matrix and stores elsewhere; for the kernels of 07.2 and 07.3."""

from lessons_lib.checks.kernels import places, touched


def misplaced_row(recording, row: int, want, stored) -> tuple[str, str]:
    """(what happened, the idea that is violated or "" if it is none of these).

    Args:
        want, stored: numbers of out that program `row` should store, and that it stores.
    """
    what = f"program {row} should store row {row} of out, the numbers {places(want)}; yours stores {places(stored)}."
    if row and stored == touched(recording, recording.programs[0], "store", "out"):
        return what, "Every program stores the same row. `tl.program_id(0)` is the number of its own."
    if set(stored) > set(want):
        return (
            what,
            "What lies behind the last column belongs to another row, or to somebody else. Give `tl.store` the mask `column < columns` too.",
        )
    return what, ""
