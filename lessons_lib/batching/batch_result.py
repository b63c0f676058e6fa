"""What every batching function returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lessons_lib.models.prompts import BadRequest
from lessons_lib.recording.trace import Trace


@dataclass
class BatchResult:
    """Answers and what was done to get them.

    Attributes:
        outputs: the new tokens of each request, in the order of the prompts.
        trace: every step of the run.
    """

    outputs: list[list[int]] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)


def request_names(names: Sequence[str] | None, count: int) -> list[str]:
    """The names of `count` requests: those given, or "0", "1", ...

    Raises:
        BadRequest: there are too few or too many, or one is used twice.
    """
    names = [str(index) for index in range(count)] if names is None else list(names)
    if len(names) != count:
        raise BadRequest(f"{len(names)} names for {count} prompts; give one name for each prompt, or none at all.")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise BadRequest(
            f"request id {twice[0]!r} is used {names.count(twice[0])} times; give every request an id of its own."
        )
    return names
