"""Questions on lesson 14: serving."""

import random
from collections.abc import Callable

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.simulated import simulate
from lessons_lib.viz.serving import LoadPoint, draw_load


@item("14", "picture", "More and more load, simulated")
def knee_in_picture(draw: random.Random) -> Asked:
    target, seed = Target(ttft=0.25), draw.randrange(1000)
    rates, points = draw.choice(([20.0, 30.0, 40.0, 50.0], [30.0, 40.0, 50.0, 65.0])), []
    tokens, num_requests = draw.choice((28, 34, 40)), draw.choice((120, 200, 300))
    for rate in rates:
        log = simulate(rate, num_requests=num_requests, output_tokens=tokens, seed=seed)
        ttfts = sorted(record.ttft for record in log.records if record.succeeded)
        points.append(LoadPoint(rate, goodput(log, target), ttfts[int(0.99 * (len(ttfts) - 1))]))
    kept = [point.goodput >= 0.9 * point.rate for point in points]
    if kept != sorted(kept, reverse=True) or not kept[0]:
        raise Redraw
    knee = rates[sum(kept) - 1]
    highest = max(points, key=lambda point: point.goodput).rate
    by_p99 = max((point.rate for point in points if point.ttft <= 0.25), default=0.0)
    if knee == highest == by_p99 or min(abs(point.goodput / point.rate - 0.9) for point in points) < 0.03:
        raise Redraw  # the curves' highest point and the line "target" would show the answer

    def why(rate: float) -> str:
        if rate < knee:
            return "The promise is kept here, but also at a higher rate." + (
                " It's the last one whose p99 is within the target, but the promise is for 90%."
                if rate == by_p99
                else ""
            )
        return (
            "Goodput is highest here, but it is more than a tenth below the rate."
            if rate == highest
            else "Goodput is more than a tenth below the rate here."
        )

    return asked(
        "The server promises 90% of the requests a first token within 0.25 s. Here it is simulated at four rates. "
        "Which is its knee?",
        (f"{knee:.0f}", "The highest rate of which goodput is at least 90%. Goodput may be highest at "
         "another rate, and the p99 promises 99%."),
        [(f"{rate:.0f}", why(rate)) for rate in rates if rate != knee],
        lambda: draw_load({"the server": points}, target=0.25),
    )  # fmt: skip


@item("14", "compute", "Optional: goodput")
def goodput_of_a_log(draw: random.Random) -> Asked:
    window, last_end, count = 2.0, 2.5, 6
    records, told = [], []
    failed = draw.randrange(count)
    for index in range(count):
        ttft, tokens = draw.choice((0.2, 0.3, 0.4, 0.7)), draw.choice((6, 11))
        last = round(ttft + (tokens - 1) * draw.choice((0.02, 0.03, 0.048, 0.06)), 2)
        record = LoadRecord(str(index), 0.0, 0.0, 8, tokens, [ttft, last], tokens, last, 200, "stop")
        if index == failed:
            record.finish_reason = None
        records.append(record)
        told.append(f"{ttft:g}, {last:g}, {tokens}")
    target = Target(ttft=0.5, tpot=0.05)
    right = goodput(LoadLog(records, window, last_end), target)

    def good(is_good: Callable[[LoadRecord], bool]) -> int:
        return sum(record.ttft <= 0.5 and is_good(record) for record in records)

    naive = good(lambda one: one.succeeded and one.token_times[-1] / one.output_tokens <= 0.05)
    both = good(lambda one: one.tpot <= 0.05)
    if right == 0 or naive / window == right or both / window == right:
        raise Redraw
    return asked(
        "In 2 s, six requests arrive; the last stream ends after 2.5 s. Seconds from sending to the first and to the "
        f"last token, and number of tokens: {'; '.join(told)}. The stream of number {failed + 1} was cut before its "
        "end. What is the goodput for TTFT ≤ 0.5 s and TPOT ≤ 0.05 s, in requests per second?",
        (right, "TPOT is the time after the first token, over the tokens after the first. What is complete and meets "
         "both limits counts, per second of the window in which requests were offered."),
        [
            (naive / window, "TPOT begins at the first token: (last - first) / (tokens - 1)."),
            (both / window, "The stream that was cut isn't a success, however fast it was."),
            (right * window / last_end, "Goodput is per second of the window in which requests were offered, not of "
             "the whole run."),
            (good(lambda one: one.succeeded) / window, "Both limits have to be met."),
            (count / window, "That is the rate of arrivals."),
        ],
    )  # fmt: skip


@item("14", "compute", "Too many")
def wait_of_a_queue(draw: random.Random) -> Asked:
    capacity, seconds = draw.choice((10, 20, 25)), draw.choice((30, 60))
    rate = capacity + draw.choice((2, 4, 5))
    queue = (rate - capacity) * seconds
    calm = capacity - draw.choice((1, 2, 3))
    return asked(
        f"A server can serve {capacity} requests per second. For {seconds} s, {rate} arrive per second, and none is "
        f"refused. Then it's quieter: {calm} per second. How many seconds pass from then on until a request needn't "
        "wait any more?",
        (f"{queue / (capacity - calm):g}", f"{queue} requests wait. {capacity} are served per second, but {calm} new "
         f"ones come, so only {capacity - calm} fewer wait each second."),
        [
            (f"{queue / capacity:.3g}", "The server is through with these requests then, but behind them others wait "
             "that came meanwhile."),
            (seconds, "The queue shrinks at another rate than it grew."),
            (0, "The queue doesn't vanish with the load that caused it."),
            (queue, "That is the length of the queue, not a time."),
        ],
    )  # fmt: skip


ITEMS = [
    knee_in_picture,
    goodput_of_a_log,
    wait_of_a_queue,
    bug(
        "14", "More and more load, simulated", "measured_under_load",
        task="`load` tests a server at `rate` requests per second, in an open loop, and returns the latencies.",
        code="""
async def load(requests, rate, send, clock):
    due, log = clock(), []
    async def one(request, start):
        await send(request)
        log.append(clock() - start)
    for request in requests:
        await asyncio.sleep(max(0.0, due - clock()))
        asyncio.ensure_future(one(request, due))
        due = due + 1 / rate
    while len(log) < len(requests):
        await asyncio.sleep(0.001)
    return log
""",
        line=9, wrong="due = clock() + 1 / rate",
        why="Whenever the loop is late, all later requests are put off, too. So a client that is busy with many "
        "streams sends fewer than `rate`, and the test hides what happens at that rate.",
        innocent={
            5: "The latency is what the client has waited since the request was due.",
            7: "If the loop is late, it sends at once, and catches up.",
            8: "It doesn't wait for the answer: the next request is due at its time, whatever the server does.",
        },
        setup="import asyncio",
        trial="""
now = [0.0]
async def send(request):
    now[0] += request == "a"  # the client is busy for a second
log = asyncio.run(load("abcd", 1000, send, lambda: now[0]))
assert len(log) == 4 and all(seconds > 0.9 for seconds in log), log
""",
    ),
    bug(
        "14", "Build 3: a client that leaves", "admission_that_leaks",
        task="`serve` streams the answer of one request. The server cancels this coroutine when the client leaves. "
        "`gate` limits how much is in flight; `admit` raises if it's too much.",
        code="""
async def serve(gate, engine, request, send):
    gate.admit(request)
    try:
        pieces = engine.add(request)
        async for piece in pieces:
            await send(piece)
    except BaseException:
        engine.abort(request)
        raise
    finally:
        gate.release(request)
""",
        line=7, wrong="except Exception:",
        why="A cancellation raises CancelledError, which is no Exception. The gate lets others in, but the engine goes "
        "on with a request that has no reader, until its answer is complete.",
        innocent={
            2: "A request that is refused has taken nothing, so there is nothing to give back.",
            9: "The caller has to see the error or the cancellation.",
            11: "The request has left the engine, however it ended, so its room is free.",
        },
        setup="import asyncio",
        trial="""
log = []
class Gate:
    def admit(self, request): log.append("admit")
    def release(self, request): log.append("release")
class Engine:
    async def add(self, request):
        yield "a"
        await asyncio.sleep(60)
    def abort(self, request): log.append("abort")
async def leave():
    async def send(piece): log.append(piece)
    task = asyncio.ensure_future(serve(Gate(), Engine(), "A", send))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
asyncio.run(leave())
assert log == ["admit", "a", "abort", "release"]
""",
    ),
    design(
        "14", "Too many", "refuse_or_queue",
        "Users wait 5 s for a first token, no longer. A server completes 20 requests per second; once a request is "
        "taken from the queue, its first token takes 1 s. For an hour, 40 arrive per second. How many may wait at "
        "most, so that users who are let in stay? The others are refused at once.",
        ("80 requests: then the last of them waits for 4 s", "20 leave the queue per second, whatever arrives: "
         "80 / 20 = 4 s, and 1 s for the first token."),
        ("160 requests: those that arrive within 4 s", "20 leave the queue per second. The last of 160 would wait "
         "8 s, and its user has left."),
        ("100 requests: then the last of them waits for 5 s", "Its first token comes 1 s after that, too late."),
        ("72,000 requests: those that arrive in excess in an hour", "The last of them would wait for an hour. Soon "
         "the server would work only for users who have left."),
    ),
    design(
        "14", "Clients that leave", "where_to_notice",
        "Each evening the KV cache fills up, although few users are connected. Aborting requests in the engine works. "
        "What is most likely missing?",
        ("Listening for the disconnect while the answer is made", "Closed connections then abort their requests, and "
         "the blocks are freed at once."),
        ("A larger cache, as evening users send longer prompts", "It fills as well, a little later: the requests of "
         "users who have left keep running."),
        ("A limit for each user's number of open connections", "Few are connected. What fills the cache has no "
         "connection any more."),
        ("Preemption of the requests that hold the most blocks", "They come back and are computed to the end, for "
         "readers who have left."),
    ),
]  # fmt: skip
