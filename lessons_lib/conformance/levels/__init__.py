"""The levels, from the first to the last. An engine has reached one when it holds all items up to it.

A small engine (slots, no paging) reaches `manners`, a medium one (blocks, preemption) `memory`, a large one `server`.
"""

from lessons_lib.conformance.items import Level
from lessons_lib.conformance.levels import answers, batches, manners, memory, sampling, server, sharing

LEVELS = [each.LEVEL for each in (answers, batches, manners, memory, sharing, sampling, server)]
SIZES = {"small": "manners", "medium": "memory", "large": "server"}


def levels_up_to(name: str) -> list[Level]:
    """The levels up to one of them, or up to the last of a size; else ValueError."""
    names = [level.name for level in LEVELS]
    last = SIZES.get(name, name)
    if last not in names:
        raise ValueError(f"no level or size {name!r}; there are {', '.join([*SIZES, *names])}.")
    return LEVELS[: names.index(last) + 1]
