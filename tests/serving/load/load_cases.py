"""Logs for tests, from hypothesis: requests that succeed, are refused, cut, or still run when the log ends."""

from hypothesis import strategies as st

from lessons_lib.serving.load.records import LoadLog, LoadRecord

ticks = st.integers(0, 64).map(lambda count: count / 16)  # exact in binary


@st.composite
def records(draw):
    send_time = draw(ticks)
    gaps = draw(st.lists(ticks, max_size=5))
    times = [send_time + sum(gaps[: index + 1]) for index in range(len(gaps))]
    end = draw(st.sampled_from(["stop", "length", "refused", "cut", "error event", "unfinished", "no answer"]))
    record = LoadRecord(
        "", send_time, send_time, draw(st.integers(1, 9)), 5, times, len(times), times[-1] if times else send_time, 200
    )
    if end in ("stop", "length"):
        record.finish_reason = end
        record.output_tokens += draw(st.integers(0, 3)) if times else 0  # several tokens in an event
    elif end == "refused":
        record.token_times, record.output_tokens, record.status, record.error = [], 0, 429, "full"
    elif end == "no answer":
        record.token_times, record.output_tokens, record.status, record.error = [], 0, None, "refused"
    elif end == "unfinished":
        record.end_time = None
    else:
        record.error = end
    return record


@st.composite
def logs(draw):
    own = sorted(draw(st.lists(records(), min_size=1, max_size=12)), key=lambda record: record.send_time)
    window = draw(ticks) + own[-1].send_time + 0.5
    return LoadLog(own, window, window + draw(ticks))
