"""Questions on lesson 14: serving."""

import random

from lessons_lib.assessment.question import Asked, asked, bug, design, item


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
    wait_of_a_queue,
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
