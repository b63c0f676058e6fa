"""Load on a small server of lesson 14's parts, in which time is counted in steps of the engine."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.measuring.load.records import LoadLog, LoadRecord
from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import AddRequest, Event, NewTokens, RequestEnded
from lessons_lib.serving.owner import own_engine


async def offer_in_steps(
    engine: LLMEngine,
    times: Sequence[int],
    admission: AdmissionControl,
    *,
    own: Callable[..., Awaitable[None]] = own_engine,
    mailbox: type[Any] = Mailbox,
    num_tokens: int = 16,
) -> LoadLog:
    """A request at each of these steps, whatever the server does meanwhile. The log's times are steps."""
    commands, in_flight, now = mailbox(), {}, 0
    records = [LoadRecord(str(number), time, time, 3, num_tokens) for number, time in enumerate(times)]
    coming, wanted = deque(records), SamplingParams(max_tokens=num_tokens, ignore_eos=True)

    def arrive() -> None:
        while coming and coming[0].arrival_time <= now:
            record = coming.popleft()
            try:
                admission.admit(record.prompt_tokens)
                in_flight[record.request_id], record.status = record.prompt_tokens, 200
                commands.put(AddRequest(record.request_id, "The old dog", wanted))
            except Overloaded:
                record.status = 429

    def deliver(events: list[Event]) -> None:
        nonlocal now
        now += 1
        for event in events:
            if isinstance(event, NewTokens):
                for token in event.tokens:
                    records[int(token.request_id)].token_times.append(now)
            elif isinstance(event, RequestEnded):
                records[int(event.request_id)].finish_reason = "length"
                admission.release(in_flight.pop(event.request_id))
        if coming and not in_flight:
            now = max(now, coming[0].arrival_time)  # nothing to do until then
        arrive()
        if not in_flight:
            commands.close()

    arrive()
    await own(EngineLoop(engine), commands, deliver, ThreadPoolExecutor(1))
    return LoadLog(records, window=times[-1] or now, duration=now)
