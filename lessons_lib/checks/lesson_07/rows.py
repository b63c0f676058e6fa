"""What is wrong if a program stores outside its row of a matrix; for the kernels of 07.2 and 07.3."""

from lessons_lib.checks.kernels import ranges, touched


def misplaced_row(recording, row: int, want, stored) -> tuple[str, str]:
    """(what happened, the violated idea, or "" if it is none of these).

    Args:
        want, stored: offsets in out that program `row` should store, and that it stores.
    """
    what = f"program {row} should store row {row} of out, elements {ranges(want)}; yours stores {ranges(stored)}."
    if row and stored == touched(recording, recording.programs[0], "store", "out"):
        return what, "Every program stores the same row. `tl.program_id(0)` is the index of its own."
    if set(stored) > set(want):
        return (
            what,
            "What follows the last column belongs to another row, or to another tensor. Give `tl.store` the mask "
            "`column < columns` too.",
        )
    return what, ""
