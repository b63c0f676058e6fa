"""Lesson 14: the two ways to load a server. In an open loop, requests come when they come; in a closed loop, each user
waits for an answer before the next question, and a slow server is asked less.

Only an open loop shows a queue that grows.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.shapes import LoadRequest

Now = Callable[[], float]  # seconds since the start of the run
Send = Callable[[LoadRequest, LoadRecord, Now], Awaitable[None]]  # fills the record; errors go into it


async def open_loop(
    send: Send,
    requests: Sequence[LoadRequest],
    arrivals: Sequence[float],
    *,
    window: float | None = None,
    rate: float | None = None,
    patience: float = 600.0,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadLog:
    """Send each request at its time, whatever the server does, then wait until all have ended.

    Args:
        send: one request from sending to its end, such as `CompletionsClient.send`.
        arrivals: seconds from the start, one for each request, rising.
        window: seconds in which requests are offered; None for the time of the last arrival, or until the last request
            has ended if all arrive at once.
        rate: requests per second as configured, for the log.
        patience: seconds after the last arrival. Requests that run longer are aborted and stay unfinished in the log.

    Raises:
        ValueError: there are not as many arrivals as requests, or none.
    """
    if len(requests) != len(arrivals) or not requests:
        raise ValueError(
            f"{len(requests)} requests and {len(arrivals)} arrivals; there must be as many, and 1 or more."
        )
    start = clock()
    records: list[LoadRecord] = []
    tasks: list[asyncio.Task[None]] = []

    def now() -> float:
        return clock() - start

    try:
        for index, (request, arrival) in enumerate(zip(requests, arrivals)):
            await asyncio.sleep(max(0.0, arrival - now()))
            record = LoadRecord(str(index), arrival, now(), request.prompt_tokens, request.max_tokens)
            records.append(record)
            tasks.append(asyncio.ensure_future(send(request, record, now)))
        ended, _ = await asyncio.wait(tasks, timeout=patience)
        for task in ended:
            task.result()  # an error of `send` itself is a bug, and is raised here
        duration = now()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return LoadLog(records, window or arrivals[-1] or duration, duration, rate)


async def closed_loop(
    send: Send, requests: Sequence[LoadRequest], users: int, *, clock: Callable[[], float] = time.perf_counter
) -> LoadLog:
    """Serve `users` users: each sends the next request as soon as its last one has ended.

    Raises:
        ValueError: there are no users or no requests.
    """
    if users < 1 or not requests:
        raise ValueError(f"{users} users and {len(requests)} requests; there must be 1 or more of each.")
    start = clock()
    records: list[LoadRecord] = []
    left = iter(enumerate(requests))

    def now() -> float:
        return clock() - start

    async def user() -> None:
        for index, request in left:  # all users take from the same iterator
            record = LoadRecord(str(index), now(), now(), request.prompt_tokens, request.max_tokens)
            record.send_time = record.arrival_time
            records.append(record)
            await send(request, record, now)

    everyone = [asyncio.ensure_future(user()) for _ in range(users)]
    try:
        await asyncio.gather(*everyone)
        duration = now()
    finally:
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)
    return LoadLog(records, duration, duration)
