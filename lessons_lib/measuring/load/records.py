"""Lesson 14: the requests of a run, seen from the client: when each was sent, when its tokens came, how it ended."""

from dataclasses import dataclass, field


@dataclass
class LoadRecord:
    """One request, seen from the client. Times are seconds from the start of the run.

    Attributes:
        arrival_time: when it was due.
        send_time: when it was sent. Later than `arrival_time` only if the client itself was busy.
        prompt_tokens, max_tokens: its lengths, as planned; the server's own count of the prompt if it told one.
        token_times: when each event with tokens came. A server may put several tokens into one event.
        output_tokens: tokens that came, by the server's count if it told one.
        end_time: when its stream or its error ended; None if it was still running when the log ended.
        status: of HTTP; None if there was no answer.
        finish_reason: "stop" or "length"; None if the completion did not end as it should.
    """

    request_id: str
    arrival_time: float
    send_time: float
    prompt_tokens: int
    max_tokens: int
    token_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    end_time: float | None = None
    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def succeeded(self) -> bool:
        """True if its whole completion came. A stream that was cut has tokens, and no finish reason."""
        return self.status == 200 and self.error is None and self.finish_reason is not None and bool(self.token_times)

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds; infinity if none came."""
        return self.token_times[0] - self.send_time if self.token_times else float("inf")

    @property
    def tpot(self) -> float:
        """Time per output token after the first, in seconds; 0 if there is only one."""
        if self.output_tokens < 2 or not self.token_times:
            return 0.0
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def e2el(self) -> float:
        """End-to-end latency: from sending to the last token, in seconds; infinity if no token came."""
        return self.token_times[-1] - self.send_time if self.token_times else float("inf")


@dataclass
class LoadLog:
    """A run.

    Attributes:
        records: in the order of arrival.
        window: seconds in which requests were offered.
        duration: seconds until the last request ended.
    """

    records: list[LoadRecord]
    window: float
    duration: float

    @property
    def offered_rate(self) -> float:
        """Requests per second of the window."""
        return len(self.records) / self.window
