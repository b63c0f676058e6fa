"""Metrics for users and operators of a server: queue time, latency and utilization."""

from dataclasses import dataclass

from lessons_lib.recording.trace import Trace


@dataclass(frozen=True)
class RequestTimes:
    """The events of a request that arrives at 0, in steps or seconds: it got its slot (its queue time), its last token
    was computed, and its slot was released and its answer returned (its latency).
    """

    admitted: float
    done: float
    returned: float


@dataclass(frozen=True)
class BatchMetrics:
    """A run in one row: mean times in seconds; `slot_utilization`: share of slots x steps with useful work, 0 to 1."""

    new_tokens: int
    seconds: float
    steps: int
    mean_queue_time: float
    mean_latency: float
    slot_utilization: float

    @property
    def throughput(self) -> float:
        """Answer tokens per second."""
        return self.new_tokens / self.seconds if self.seconds else 0.0


def request_times(trace: Trace, in_steps: bool = False) -> dict[str, RequestTimes]:
    """The times of every request in seconds, or in steps, which are the same on every machine."""
    lengths = [1 if in_steps else step.seconds for step in trace.steps]
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    present: dict[str, list[int]] = {}
    useful: dict[str, list[int]] = {}
    for index, step in enumerate(trace.steps):
        for row in step.rows:
            if row.request is not None:
                present.setdefault(row.request, []).append(index)
                if row.useful:
                    useful.setdefault(row.request, []).append(index)
    return {
        name: RequestTimes(starts[at[0]], starts[useful[name][-1] + 1], starts[at[-1] + 1])
        for name, at in present.items()
    }


def batch_metrics(outputs: list[list[int]], trace: Trace) -> BatchMetrics:
    """The metrics of one run."""
    times = request_times(trace).values()
    rows = [row for step in trace.steps for row in step.rows]
    count = max(len(times), 1)
    return BatchMetrics(
        new_tokens=sum(len(answer) for answer in outputs),
        seconds=trace.seconds,
        steps=len(trace.steps),
        mean_queue_time=sum(t.admitted for t in times) / count,
        mean_latency=sum(t.returned for t in times) / count,
        slot_utilization=sum(row.useful > 0 for row in rows) / max(len(rows), 1),
    )
