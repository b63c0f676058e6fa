"""What each sequence of a simulated run did, and when: the rows of a Gantt chart, read off the steps."""

from dataclasses import dataclass, field

from lessons_lib.measuring.simulator import Simulation

# STALLED: no block was free; HELD: running, but no budget was left for it.
WAITING, PREFILL, DECODE, STALLED, HELD = "waiting", "prefill", "decode", "stalled", "held"


@dataclass
class Span:
    """A stretch of time in which a sequence did one thing: seconds, tokens computed, steps (0 for a wait)."""

    state: str
    start: float
    end: float
    tokens: int = 0
    steps: int = 0


@dataclass
class Row:
    """One sequence; each chunk of a prefill is a span. `finished` is None if the recording ends before."""

    name: str
    arrival: float
    finished: float | None = None
    spans: list[Span] = field(default_factory=list)

    def add(self, state: str, start: float, end: float, tokens: int = 0, steps: int = 0) -> None:
        """Extend the current span, or start one. Each chunk of a prefill starts its own."""
        last = self.spans[-1] if self.spans else None
        if last and last.state == state != PREFILL and last.end == start:
            last.end, last.tokens, last.steps = end, last.tokens + tokens, last.steps + steps
        elif end > start:
            self.spans.append(Span(state, start, end, tokens, steps))


def gantt_rows(run: Simulation) -> list[Row]:
    """A row for each sequence, in the order of arrival; of a run without steps (static batching), from its times."""
    rows = {name: Row(name, times.arrival, times.finished) for name, times in run.times.items()}
    if run.steps:
        _read_steps(run, rows)
    else:
        for name, times in run.times.items():
            rows[name].add(WAITING, times.arrival, times.admitted)
            rows[name].add(PREFILL, times.admitted, times.first_token)
            rows[name].add(DECODE, times.first_token, times.finished)
    return sorted(rows.values(), key=lambda row: row.arrival)


def _read_steps(run: Simulation, rows: dict[str, Row]) -> None:
    running: set[str] = set()
    for step in run.steps:
        start, end = step.start, step.start + step.seconds
        for state, names in (
            (WAITING, step.waiting),
            (STALLED, step.stalled),
            (PREFILL, step.prefill),
            (DECODE, step.decode),
        ):
            for name in names:
                row = rows.setdefault(name, Row(name, start))
                if not row.spans and row.arrival < start:  # it arrived during a step
                    row.add(WAITING, row.arrival, start)
                if state in (WAITING, STALLED):
                    row.add(state, start, end, steps=state == STALLED)
                else:
                    row.add(state, start, end, names[name], 1)
        running |= {*step.stalled, *step.prefill, *step.decode}
        running -= {*step.waiting, *(name for name in running if (rows[name].finished or end) <= start)}
        for name in running.difference(step.stalled, step.prefill, step.decode):
            rows[name].add(HELD, start, end, steps=1)


def joined(spans: list[Span]) -> list[Span]:
    """The spans, with consecutive chunks of a prefill merged."""
    result: list[Span] = []
    for span in spans:
        last = result[-1] if result else None
        if last and last.state == span.state and last.end == span.start:
            result[-1] = Span(span.state, last.start, span.end, last.tokens + span.tokens, last.steps + span.steps)
        else:
            result.append(span)
    return result
