"""Questions on lesson 14: serving."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.simulated import simulate
from lessons_lib.viz.serving import LoadPoint, draw_load


@item("14", "picture", "Measured: what clients get")
def knee_in_picture(draw: random.Random) -> Asked:
    target, seed = Target(ttft=0.25), draw.randrange(1000)
    rates, points, tokens = [20.0, 40.0, 60.0, 90.0], [], draw.choice((28, 34, 40))
    for rate in rates:
        log = simulate(rate, num_requests=120, output_tokens=tokens, seed=seed)
        ttfts = sorted(record.ttft for record in log.records if record.succeeded)
        points.append(LoadPoint(rate, goodput(log, target), ttfts[int(0.99 * (len(ttfts) - 1))]))
    kept = [point.goodput >= 0.9 * point.rate for point in points]
    if kept != sorted(kept, reverse=True) or not kept[0]:
        raise Redraw
    last = [rate for rate, is_kept in zip(rates, kept) if is_kept][-1]
    return asked(
        "A simulated server at four rates: 20, 40, 60 and 90 requests per second. Which is the highest one at which "
        "goodput is at least 90% of the rate?",
        (f"{last:.0f}", "Up to there nearly all requests meet the target. At the next rate too many come too late."),
        [
            (f"{rate:.0f}", "It holds here as well, but also at a higher rate." if rate < last else
             "The curve is more than a tenth below the rate here.")
            for rate in rates if rate != last
        ],
        lambda: draw_load({"the server": points}, target=0.25),
    )  # fmt: skip


@item("14", "compute", "Measured: what clients get")
def goodput_of_a_log(draw: random.Random) -> Asked:
    ttfts = [draw.choice((0.2, 0.3, 0.4, 0.6, 0.8)) for _ in range(6)]
    tpots = [draw.choice((0.02, 0.03, 0.06)) for _ in range(6)]
    failed, window = draw.randrange(6), 2.0
    records = []
    for index, (ttft, tpot) in enumerate(zip(ttfts, tpots)):
        times = [ttft, ttft + 10 * tpot]
        record = LoadRecord(str(index), 0.0, 0.0, 8, 11, times, 11, times[-1], 200, "stop")
        if index == failed:
            record.finish_reason = None
        records.append(record)
    target = Target(ttft=0.5, tpot=0.05)
    right = goodput(LoadLog(records, window, 5.0), target)
    fast = sum(ttft <= 0.5 for ttft in ttfts)
    both = sum(ttft <= 0.5 and tpot <= 0.05 for ttft, tpot in zip(ttfts, tpots))
    if ttfts[failed] > 0.5 or tpots[failed] > 0.05 or right == 0:
        raise Redraw
    told = "; ".join(f"{ttft:g} and {tpot:g}" for ttft, tpot in zip(ttfts, tpots))
    return asked(
        f"In 2 s, six requests arrive. Their times to first token and per output token, in s: {told}. The stream of "
        f"number {failed + 1} was cut before its end. What is the goodput for TTFT ≤ 0.5 s and TPOT ≤ 0.05 s, in "
        "requests per second?",
        (right, "A request counts only if it is complete and meets all limits. Then divide by the window."),
        [
            (both / window, "The stream that was cut isn't a success, however fast it was."),
            (fast / window, "Both limits have to be met."),
            (right * window, "Goodput is per second: divide by the window in which requests were offered."),
            (6 / window, "That is the rate of arrivals."),
            (5 / window, "That counts every complete stream."),
        ],
    )


@item("14", "compute", "Too many, with a pencil")
def wait_of_a_queue(draw: random.Random) -> Asked:
    capacity, seconds = draw.choice((10, 20, 25)), draw.choice((30, 60))
    rate = capacity + draw.choice((2, 4, 5))
    queue = (rate - capacity) * seconds
    return asked(
        f"A server can serve {capacity} requests per second. For {seconds} s, {rate} arrive per second, and none is "
        "refused. How long does a request wait that arrives at the end of that time, in s?",
        (queue / capacity, f"The queue has grown to {queue} requests, and {capacity} of them are served per second."),
        [
            (float(queue), "That is the length of the queue, not the time it takes."),
            (queue / rate, "The queue is worked off at the rate of the server, not of the arrivals."),
            (1 / capacity, "That would be right without a queue."),
            (float(seconds), "Most of the requests of that time have been served meanwhile."),
        ],
    )


ITEMS = [
    knee_in_picture,
    goodput_of_a_log,
    wait_of_a_queue,
    bug(
        "14", "Measured: what clients get", "measured_under_load",
        task="`load` tests a server at `rate` requests per second, in an open loop, and returns the latencies.",
        code="""
async def load(requests, rate, send, clock):
    begin, log = clock(), []
    async def one(request, start):
        await send(request)
        log.append(clock() - start)
    for index, request in enumerate(requests):
        due = begin + index / rate
        await asyncio.sleep(max(0.0, due - clock()))
        asyncio.ensure_future(one(request, due))
    while len(log) < len(requests):
        await asyncio.sleep(0.001)
    return log
""",
        line=9, wrong="await one(request, due)",
        why="It waits for each answer before the next request is sent. A slow server then gets fewer requests than "
        "`rate`, and the test never shows what it does under that load.",
        innocent={
            5: "The latency is what the client has waited when the answer is complete.",
            7: "Request `index` is due at its time, whatever the server does.",
            8: "If the loop is late, it sends at once.",
        },
        setup="import asyncio",
        trial="""
sent, free = [], asyncio.Event()
async def send(request):
    sent.append(request)
    if len(sent) == 3:
        free.set()
    await asyncio.wait_for(free.wait(), 0.2)
log = asyncio.run(load("abc", 1e6, send, __import__("time").monotonic))
assert sent == list("abc") and len(log) == 3
""",
    ),
    bug(
        "14", "Optional: what to refuse", "admission_that_leaks",
        task="`Admission` limits the requests in flight and the tokens of their prompts.",
        code="""
class Admission:
    def __init__(self, max_requests, max_tokens):
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests = self.tokens = 0
    def admit(self, tokens):
        if self.requests >= self.max_requests:
            raise Overloaded("requests")
        if self.tokens + tokens > self.max_tokens:
            raise Overloaded("tokens")
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
    def release(self, tokens):
        self.requests, self.tokens = self.requests - 1, self.tokens - tokens
""",
        line=8, wrong="if self.tokens >= self.max_tokens:",
        why="A long prompt would be admitted as long as a single token is free, and break the limit. The new prompt "
        "counts, too: `self.tokens + tokens > self.max_tokens`.",
        innocent={
            6: "At the limit there is no room for one more.",
            10: "Both counts change after all tests, so a refusal changes nothing.",
            12: "What a request took is given back when it ends, the tokens of its prompt as well.",
        },
        setup="class Overloaded(Exception): pass",
        trial="""
gate = Admission(2, 10)
gate.admit(8)
try:
    gate.admit(5)
except Overloaded:
    pass
assert (gate.requests, gate.tokens) == (1, 8)
gate.release(8)
gate.admit(9), gate.admit(1)
assert (gate.requests, gate.tokens) == (2, 10)
""",
    ),
    design(
        "14", "Too many", "refuse_or_queue",
        "Users leave a page after 5 s without a token. At peak, twice as many requests arrive as the server can serve, "
        "for an hour. What serves the most users within their patience?",
        ("A short queue; refuse at once what can't be in time", "Those that are admitted get their tokens in time, and "
         "the others can go elsewhere."),
        ("A long queue, so that no request has to be refused", "Soon each request waits longer than 5 s, and the "
         "server "
         "works for users who have left."),
        ("A larger batch, so that no request waits outside of it", "Steps get longer and the cache fills up. The "
         "requests preempt each other, and all are late."),
        ("A long queue; drop what hasn't begun after five seconds", "Those that are served have then waited for "
         "nearly 5 s, and their users leave before the first token."),
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
