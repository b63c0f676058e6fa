"""Lesson 14: goodput: requests per second that were served as well as promised."""

from dataclasses import dataclass

from lessons_lib.measuring.load.records import LoadLog


@dataclass(frozen=True)
class Target:
    """The promise for each request: the longest time to first token, per further output token, and from end to end, in
    seconds. None promises nothing."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and not limit >= 0:
                raise ValueError(f"the target of {name} is {limit} s; a time is 0 or more. Omit it if there is none.")


def goodput(log: LoadLog, target: Target) -> float:
    """Requests per second that met all targets.

    Every request that was offered counts: one that was refused or failed, whose stream was cut, or that was unfinished
    when the log ended has not met its targets, however fast its first tokens came. One that was sent shortly before the
    end of the window counts as any other, although it ends later.

    Args:
        log: of an open loop.
        target: a request that takes exactly as long as promised is good.

    Returns:
        float: good requests per second of the window in which requests were offered.
    """
    num_good = 0
    for record in log.records:
        times = ((record.ttft, target.ttft), (record.tpot, target.tpot), (record.e2el, target.e2el))
        if record.succeeded and all(limit is None or seconds <= limit for seconds, limit in times):
            num_good += 1
    return num_good / log.window
