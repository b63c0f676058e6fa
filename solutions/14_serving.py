# %% [markdown]
"""
# 14 · Serving

![A server under more and more load, with and without admission control](../lessons_lib/assets/openings/14.svg)

**One engine, one process, one caller at a time. How do we turn that into a URL that many clients use at once, and that
holds up when too many come and when some leave?**

85 minutes · difficulty: hard · routes: serving · prerequisites: lesson 12 (the engine); lesson 09 (arrivals and waiting times) helps

By the end, your own parts form a server that answers `curl`, hears when a client hangs up, and withstands three times
the load that it can serve.

If `async def` and `await` are new to you, first read the beginning of [Coroutines and
Tasks](https://docs.python.org/3/library/asyncio-task.html): a quarter of an hour, which the 85 minutes don't include.
"""

# %% folded=true
import asyncio
import http.client
import json
import shlex
import shutil
import subprocess
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.kv_cache import audit
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES
from lessons_lib.models import load_model
from lessons_lib.recording.server_turns import Reader, record_server
from lessons_lib.serving import AdmissionControl, AsyncEngine, EngineLoop, Overloaded
from lessons_lib.serving.http.chat_events import sse_events
from lessons_lib.serving.http.server_thread import ServerThread
from lessons_lib.serving.http.small_app import SmallApp
from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.records import LoadLog, LoadRecord
from lessons_lib.serving.messages import AddRequest, NewTokens, RequestEnded
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.serving import watch_server
from lessons_lib.viz.tables import Table

# %%
model, tokenizer = load_model(device="cpu")
SIX = EngineConfig(max_num_seqs=6, max_num_batched_tokens=64, num_blocks=64)
alone = dict(zip(NAMES, generate_one_by_one(model, tokenizer, PROMPTS,
                                            max_new_tokens=MAX_NEW_TOKENS)))

# %% [markdown]
"""
## The problem: two callers, one engine

Our server handles all its clients in one thread, with a *coroutine* for each.

> **event loop**: runs coroutines in one thread. Each one runs until it awaits something that isn't ready yet; then the
> loop runs the next one that can go on.

Here is the obvious way: two clients ask for a story of 12 tokens, and each reads `engine.stream`. A third coroutine,
the server's heartbeat, should tick every millisecond. **Guess first:** in which order do the 24 tokens come, and how
often does the heart beat from the first to the last?
"""


# %%
async def tick(beats):
    while True:
        beats.append(time.perf_counter())
        await asyncio.sleep(0.001)


async def read_directly(engine, name, order):
    story = STORIES[NAMES.index(name)]
    await asyncio.sleep(0)  # so that the heartbeat has begun
    for token in engine.stream(story.prompt, SamplingParams(max_tokens=12, ignore_eos=True)):
        order.append((name, time.perf_counter()))


engine, order, beats = LLMEngine(model, tokenizer, SIX), [], []
heart = asyncio.create_task(tick(beats))
await asyncio.gather(read_directly(engine, "A", order), read_directly(engine, "C", order))
heart.cancel()
print("tokens in the order in which they came:", "".join(name for name, _ in order))
print("heartbeats from the first token to the last:",
      sum(order[0][1] < beat < order[-1][1] for beat in beats))

# %% [markdown]
"""
C waited for all of A, and the heartbeats stopped: `for token in engine.stream(...)` runs the model in the event loop's
thread, without an `await`. So the loop couldn't run anything else: no second client, no new connection, no timeout.

Does it help to await something between two tokens? Now A's client reads three tokens, and then awaits a break of 0.1 s,
so the event loop is free. C is in the engine all the time, and a callback collects its tokens. A step takes a few
milliseconds, and computes one token for each request.

**14.b** How many tokens does C have when A's break ends?
"""

# %%
predict("14.b", ...)  # tokens

# %%
engine, of_c = LLMEngine(model, tokenizer, SIX), []
engine.add_request("The old dog", SamplingParams(max_tokens=12, ignore_eos=True),
                   on_token=of_c.append)
reading = engine.stream(STORIES[0].prompt, SamplingParams(max_tokens=12, ignore_eos=True))
for _ in range(3):
    next(reading)
await asyncio.sleep(0.1)
reveal("14.b", len(of_c), unit="tokens")
reading.close()

# %% [markdown]
"""
C stands still: `engine.stream` takes a step only when its reader asks for a token. With a thread for each client, and
a lock around the engine, readers would still set its pace: while all of them are busy, the engine rests.
"""

# %% [markdown]
"""
## The idea: one owner, and a mailbox for each reader

Three clients: A reads at once, D rests for four turns after each reading, and F leaves after three tokens. Follow a
token from the engine to its reader, and F's last command.
"""

# %%
def story(name):
    return AddRequest(name, PROMPTS[NAMES.index(name)],
                      SamplingParams(max_tokens=12, ignore_eos=True))


clients = {"A": Reader(story("A")), "D": Reader(story("D"), pause=4),
           "F": Reader(story("F"), leaves_after=3)}
watch_server(await record_server(LLMEngine(model, tokenizer, SIX), clients))

# %% [markdown]
"""
- Only one coroutine uses the engine: its *owner*. It takes turn after turn, whether readers read or not. A *turn*
  carries out the commands that have arrived, and then one step of the engine, in a thread. The event loop goes on
  meanwhile.
- A caller sends the owner a *command*: add this request, abort that one.
- The tokens of a turn go into the *mailboxes* of their streams. A slow reader's mailbox fills up, and nothing else
  slows down.

> **backpressure**: a slow consumer makes its producer wait. That's right for copying a file. It's wrong for an engine
> whose steps serve many readers at once.
"""

# %% [markdown]
"""
## Build 1: the mailbox

**Exercise 14.1: `take` of the class `Mailbox`.** A mailbox belongs to one event loop, and has one reader.

- `await take()` returns a list of *all* items that have arrived since the last call, in order. If there are none, it
  waits. Once the mailbox is closed and empty, it returns `[]`.
- A reader may be cancelled while it waits, even at the very moment an item arrives. The next `take` returns that item.

The other methods are given. An `asyncio.Event` is a flag that coroutines can wait for: `event.set()`, `event.clear()`,
`await event.wait()`. `wait` returns at once if the flag is set.

Example: after `put("The")`, `put(" dog")`, `close()` and `put("!")`, the first `take()` returns `["The", " dog"]`, and
the second `[]`.
"""

# %% exercise="14.1" given="__init__ __len__ put close clear"
import asyncio
from typing import Generic

from lessons_lib.serving.mailbox import T

from lessons_lib.serving.mailbox import Mailbox

# %% [markdown]
"""
## Build 2: the owner

The engine's side is a small wrapper, `EngineLoop`. Its `turn(commands)` returns what happened as a list of *events*:
tokens, requests that have ended. The owner gets its commands from a mailbox of its own, and passes the events of each
turn to a function, `deliver`.

Here is a first owner. An *executor* runs functions in threads of its own; `await event_loop.run_in_executor(…)` waits
for the result. The owner runs without a request, then with one, and is cancelled, as in a shutdown. **Guess first:**
how many turns does it take in 0.1 s without a request, and what does A still hold when the owner has ended?
"""


# %% tags=["measured"]
async def naive_owner(engine, commands, deliver, executor):
    event_loop = asyncio.get_running_loop()
    while True:
        arrived = await commands.take() if len(commands) else []
        deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))


engine, commands = EngineLoop(LLMEngine(model, tokenizer, SIX)), Mailbox()
turns, executor = [], ThreadPoolExecutor(1)
owner = asyncio.create_task(naive_owner(engine, commands, turns.append, executor))
await asyncio.sleep(0.1)
print("turns in 0.1 s without any request:", len(turns))
commands.put(AddRequest("A", STORIES[0].prompt,
                        SamplingParams(max_tokens=500, ignore_eos=True)))
while not engine.open:
    await asyncio.sleep(0)
owner.cancel()
await asyncio.wait([owner])
ended = time.perf_counter()
executor.shutdown(wait=True)  # blocks until the thread has come back
print("the owner has ended; "
      f"its thread came back {1000 * (time.perf_counter() - ended):.1f} ms later")
print("open requests:", list(engine.open), "| blocks in use:",
      len(engine.engine.scheduler.pool.used))

# %% [markdown]
"""
It never rests. And cancelling a coroutine ends its waiting, not the thread that it waits for: the thread went on in the
engine, and A keeps its blocks for good.

**Exercise 14.2: the coroutine `own_engine(engine, commands, deliver, executor)`**, an owner without these faults. The
executor has one thread.

- It takes turns while requests are open (`engine.open`) or commands have arrived. Otherwise it waits.
- Each turn gets all commands that have arrived since the turn before.
- Once `commands.is_closed`, it stops after the turn that is running, and delivers that turn's events. Commands that no
  turn has got by then may be dropped.
- It may also end because a turn raises (the exception goes on to the caller), or because it is cancelled (it then ends
  with `CancelledError`, which a cancellation raises where a coroutine waits).
- However it ends, the thread leaves the engine first. Then your coroutine calls `engine.close()` itself, not in the
  executor. `close` aborts what is left.

All of this also holds if the coroutine is cancelled a second time, while it cleans up. During the cleanup, and only
then, it may block the event loop.

Examples, where A wants three tokens:

| what happens | what your coroutine does |
|---|---|
| A is added | `turn([add A])`, `turn([])`, `turn([])`, then it waits |
| during A's first turn, B is added and A aborted | the next turn gets both commands |
| during A's first turn, the mailbox is closed | delivers its events, takes no other turn, closes the engine |
| during A's first turn, your coroutine is cancelled | when the thread has come back, closes the engine (its events may be dropped) |
"""

# %% exercise="14.2"
import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from lessons_lib.serving import EngineLoop
from lessons_lib.serving.messages import Command, Event

from lessons_lib.serving.owner import own_engine

# %% [markdown]
"""
Your mailbox and your owner are a server's core. Here are the six stories, each with a client of its own; A's is slow.
`deliver` sorts events into mailboxes.
"""

# %%
engine = LLMEngine(model, tokenizer, SIX)
commands, boxes, order, answers = Mailbox(), {name: Mailbox() for name in NAMES}, [], {}


def deliver(events):
    for event in events:
        if isinstance(event, NewTokens):
            for token in event.tokens:
                order.append(token.request_id)
                boxes[token.request_id].put(token)
        elif isinstance(event, RequestEnded):
            boxes[event.request_id].close()


async def client(story, pause=0.0):
    answers[story.name] = []
    commands.put(AddRequest(story.name, story.prompt,
                            SamplingParams(max_tokens=story.max_new_tokens)))
    while tokens := await boxes[story.name].take():
        answers[story.name] += [token.token for token in tokens]
        await asyncio.sleep(pause)


owner = asyncio.create_task(own_engine(EngineLoop(engine), commands, deliver,
                                       ThreadPoolExecutor(1)))
heart = asyncio.create_task(tick(beats := []))
await asyncio.gather(*(client(story, pause=0.05 if story.name == "A" else 0)
                       for story in STORIES))
commands.close()
await owner
heart.cancel()
print("the first tokens that came:", "".join(order[:36]))
print("the same tokens as one at a time:", answers == alone, "| blocks in use:",
      len(engine.scheduler.pool.used))
print("the heartbeat went on:", len(beats) > 20)

# %% [markdown]
"""
A's slow client holds up no other, and the heartbeat goes on. (A begins: the first step has room for A's prompt and a
part of B's.)

`AsyncEngine` is these two parts with the bookkeeping around them. If `front` is one,
`await front.add(prompt, params)` returns a stream once the engine has *accepted* the request. A bad request raises
there, before anything has been sent to the client.
"""

# %% [markdown]
"""
## Clients that leave

Users close the tab. If the server doesn't notice, the engine computes text that no one reads, in blocks that other
requests need.

> **ASGI**: Python's interface between a web server and an application. For each HTTP request, the application gets two
> coroutine functions: `send`, and `receive`, which returns the client's next message. `{"type": "http.disconnect"}`
> says that the client has left.

Here is a client that leaves after 10 of 94 tokens, and the obvious server, which sends what comes. On a closed
connection, `send` here raises nothing. (A real one may raise, but only some messages later.)
"""


# %%
class LeavingClient:
    """Leaves when it has read so many tokens."""

    def __init__(self, num_read):
        self.num_read, self.got, self.has_left = num_read, 0, asyncio.Event()

    async def receive(self):
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, tokens):
        self.got += len(tokens)
        if self.got >= self.num_read:
            self.has_left.set()


async def send_all(add, send):
    stream = await add()
    try:
        async for tokens in stream:
            await send(tokens)
    finally:
        await stream.aclose()  # aborts the request if it still runs; never waits


STORY, leaving = SamplingParams(max_tokens=94, ignore_eos=True), LeavingClient(num_read=10)
async with AsyncEngine(LLMEngine(model, tokenizer, SIX)) as front:
    await send_all(lambda: front.add("The old dog", STORY), leaving.send)
print(f"left after 10 tokens; sent: {leaving.got} tokens")

# %% [markdown]
"""
The other 84 tokens were sent into the void. `finally` would abort the request, but nothing ends the loop. And a request
that waits in the queue sends nothing at all. So the server has to *listen* while it waits for the engine.

## Build 3: a client that leaves

**Exercise 14.3: the coroutine `stream_until_gone(add, receive, send)`**, which notices. It returns True if all tokens
were sent, and False if the client left. You may use `send_all`.

- The client may leave at any time, also while `add` or `send` waits. The work then ends *at once*. Messages of other
  types mean nothing here.
- An exception of `add`, the stream or `send` goes on to the caller; `receive` raises none. If the client leaves at the
  very moment the work ends, either result is right.
- However it ends, the request has ended or is being aborted, and nothing that it started runs on: no task, no call of
  `receive`. (A task that you have cancelled may end right after. If `add` is cancelled while it waits, it takes the
  request back by itself.)
- The coroutine itself may be cancelled too, at any await and more than once: it then ends with `CancelledError`, and
  leaves nothing behind either.

Example: the client leaves while the second list of tokens is being sent. `send` is cancelled, the request is aborted,
and `stream_until_gone` returns False.

Three tools: `asyncio.ensure_future(coroutine)` starts a task, `task.cancel()` raises `CancelledError` where the task
waits, and `await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)` returns when one of the tasks has ended.
"""

# %% exercise="14.3"
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lessons_lib.engine.outputs import NewToken
from lessons_lib.serving.async_engine import RequestStream

from lessons_lib.serving.http.leaving import stream_until_gone

# %% [markdown]
"""
The client that leaves after 10 tokens, and one that stays:
"""

# %%
engine = LLMEngine(model, tokenizer, SIX)
async with AsyncEngine(engine) as front:
    for leaving in (LeavingClient(num_read=10), LeavingClient(num_read=101)):
        is_whole = await stream_until_gone(lambda: front.add("The old dog", STORY),
                                           leaving.receive, leaving.send)
        while engine.has_unfinished():  # an abort is carried out with the next turn
            await asyncio.sleep(0.001)
        used = len(engine.scheduler.pool.used)
        print(f"all sent: {is_whole}; got fewer than 94: {leaving.got < 94}; "
              f"blocks in use: {used}")

# %% [markdown]
"""
The chain has four links. The operating system tells the server that the connection is closed. `receive` tells the
application. The application closes the stream, which sends the owner an abort command. The next turn carries it out,
and the blocks are free.
"""

# %% [markdown]
"""
## Your server

`SmallApp` is a small web application around an engine (`lessons_lib/serving/http/small_app.py`). Its `front` sorts
events into mailboxes, like `deliver` above. These are its other parts, and `AdmissionControl`, which
"Too many" uses. Two of the five are optional exercises, in "Further".
"""

# %%
parts = {"mailbox": Mailbox, "own": own_engine, "events": sse_events,
         "until_gone": stream_until_gone}
for part in [*parts.values(), AdmissionControl]:
    print(f"{part.__name__}: "
          f"{'the reference' if part.__module__.startswith('lessons_lib') else 'yours'}")

# %% [markdown]
"""
[uvicorn](https://www.uvicorn.org), a web server, runs the application in a thread of this notebook, on a free port.
Most clients speak OpenAI's API, so our server does too. With `"stream": true`, an answer comes piece by piece:

> **server-sent events** (SSE): a format for streams over HTTP. An event is a line `data: …`, followed by an empty line.
"""


# %% tags=["measured"]
def post(host, path, body):
    """Send a POST request; returns (connection, response)."""
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


CHAT = {"messages": [{"role": "user", "content": "The old dog"}], "max_tokens": 4,
        "temperature": 0, "stream": True}
FOUR = EngineConfig(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64)
engine = LLMEngine(model, tokenizer, FOUR)
app = SmallApp(engine, **parts)
mine = ServerThread(app)
curl = ["curl", "-sN", "--noproxy", "*", mine.url + "/v1/chat/completions", "-d",
        json.dumps(CHAT)]
print(shlex.join(curl), "\n")
if shutil.which("curl"):
    print(subprocess.run(curl, capture_output=True, text=True).stdout)
else:
    print(post(mine.host, "/v1/chat/completions", CHAT)[1].read().decode())

# %% [markdown]
"""
Every event before `[DONE]` has a *delta*, what is new: first the role, then text. In the last one, `finish_reason` is
no longer null. `[DONE]` says that the connection wasn't cut.

The command works in your terminal too, until the next cell closes the server. So does OpenAI's client,
`openai.OpenAI(base_url=mine.url + "/v1", api_key="none")`. In the next cell, two clients ask for a long answer, and
hang up as soon as it begins.
"""

# %%
LONG_CHAT = CHAT | {"max_tokens": 900, "ignore_eos": True}
readers = [post(mine.host, "/v1/chat/completions", LONG_CHAT) for _ in range(2)]
for connection, response in readers:
    response.close()
    connection.close()
deadline = time.monotonic() + 20
while (engine.scheduler.pool.used or app.num_left < 2) and time.monotonic() < deadline:
    time.sleep(0.01)
print(f"{app.num_left} clients have hung up; blocks in use: {len(engine.scheduler.pool.used)}")
mine.close()
audit(engine.scheduler)

# %% [markdown]
"""
## Too many

What if requests come faster than your server can serve them? Let's overload your mailbox, your owner, and
`AdmissionControl`, which limits the requests in flight, waiting or running. The engine runs four requests at a time
(`FOUR`); each wants 16 tokens. Time is counted in steps of the engine, so other programs on your machine don't matter.
You needn't read the cell: a new server gets a request at each of the given steps. First, what can it serve? 16 requests
come at once.
"""


# %%
async def offer(times, max_requests=None):
    """A new server gets a request at each of these steps, whatever it does meanwhile. The
    log's times are steps."""
    commands, admission, in_flight, now = Mailbox(), AdmissionControl(max_requests), {}, 0
    records = [LoadRecord(str(number), time, time, 3, 16) for number, time in enumerate(times)]
    coming, wanted = deque(records), SamplingParams(max_tokens=16, ignore_eos=True)

    def arrive():
        while coming and coming[0].arrival_time <= now:
            record = coming.popleft()
            try:
                in_flight[record.request_id] = admission.admit(record.prompt_tokens)
                record.status = 200
                commands.put(AddRequest(record.request_id, "The old dog", wanted))
            except Overloaded:
                record.status = 429

    def deliver(events):  # called by the owner after each step
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
    await own_engine(EngineLoop(LLMEngine(model, tokenizer, FOUR)), commands, deliver,
                     ThreadPoolExecutor(1))
    return LoadLog(records, window=times[-1] or now, duration=now)


burst = (await offer([0] * 16)).duration
print(f"16 requests, all at once, take {burst} steps")

# %% [markdown]
"""
> **open loop**: requests are sent at their times, whatever the server does. In a *closed loop*, each client waits for
> its answer first, so a slow server gets fewer requests, and looks fine.

Now an open loop: three times as many as the server can serve. 96 requests arrive, evenly spaced over twice
the steps that the 16 took. None is refused: they queue, first come, first served.

**14.a** How many steps does the last one wait for its first token?
"""

# %%
predict("14.a", ...)  # steps

# %%
times = [2 * burst * number // 96 for number in range(96)]
everything = await offer(times)
reveal("14.a", everything.records[-1].ttft, unit="steps", tolerance=0.1)

# %% [markdown]
"""
Four at a time, 96 requests take 24 rounds of 16 steps. The last four start after 23 rounds, and the last request came
after 8: it waits for about 15 rounds. The throughput looks fine, but the tokens come too late. Clients don't wait that
long: they give up, and ask again.

> **goodput**: requests per second that were served within the promised times.

The remedy is to refuse *at once* what can't be served in time, with HTTP status 429, so that a client can ask
elsewhere. `AdmissionControl` does it. (It can also limit the tokens of all prompts in flight: a few long ones hold up
all others.)

**Decide.** You promise each client the first token within 36 steps. How many requests may be in flight? If the limit
is high, those that the server takes come too late. If it is low, more are refused: are fewer in time, too? Find the
largest limit that keeps the promise, with a pencil. Then put the one that you want into the next cell. It is measured
next to four others.
"""

# %%
LIMIT = None  # your limit: a number of requests
PROMISE = 36  # steps until the first token

logs = {limit: await offer(times, limit)
        for limit in sorted({4, 8, 12, 16, LIMIT or 8})} | {"none": everything}
rows = []
for limit, log in logs.items():
    waits = [record.ttft for record in log.records if record.succeeded]
    in_time, good = sum(wait <= PROMISE for wait in waits), goodput(log, Target(ttft=PROMISE))
    row = [f"{limit}, yours" if limit == LIMIT else limit, 96 - len(waits), in_time,
           len(waits) - in_time]
    rows.append([*row, max(waits), f"{100 * good:.1f}"])
columns = ["limit", "refused", "in time", "too late", "longest wait, steps",
           "goodput, requests per 100 steps"]
Table(columns=columns, rows=rows,
      caption=f"96 requests; the promise: the first token within {PROMISE} steps")

# %%
curves = {}
for limit in ("none", 16, 8):
    curve = curves["no limit" if limit == "none" else f"limit {limit}"] = []
    for record in logs[limit].records:
        # of a refused one: the wait of the last taken
        curve.append(record.ttft if record.succeeded else curve[-1])
curves["promise"] = [PROMISE] * len(times)
told = ", ".join(f"{name}: {curve[-1]} steps at the end" for name, curve in curves.items())
title = "How long a request waits for its first token"
line_chart(times, curves, xlabel="arrival, steps", ylabel="wait, steps", title=title, alt=told)

# %% [markdown]
"""
Four requests run at a time, and begin and end almost together: a round takes 16 steps. If 12 are in flight, the last
one waits for two rounds, and then for its own first step. One more would have to wait for most of a third round. So 12
is the largest limit that keeps the promise. With 16, most of those that are taken come too late. Without a limit, only
the first 16 requests are in time, however long the overload goes on.

Compare 4, 8 and 12: with four more places in the queue, four more requests are served, those that wait there when the
arrivals end. (Goodput divides by the steps of the arrivals only, so it can exceed what the server can serve.) During
the overload, a longer queue serves no more: when one request ends, the next arrives almost at once. It only makes each
request wait longer.
"""

# %% [markdown]
"""
## What production does

- vLLM's `RequestOutputCollector` merges the outputs that come while its reader is away, as your `take` does. "Further"
  has a map of all parts.
- Admission is mostly left to what stands in front: a gateway or a load balancer.
- `vllm bench serve --goodput` measures the goodput of any OpenAI-compatible server, this course's too. `guidellm` looks
  for the rates at which a server keeps its promises.
"""

# %% [markdown]
"""
## What is still wrong

**One process serves.** If it dies, all its streams are cut. Lesson 15 runs replicas.

**One machine, one GPU.** A model that doesn't fit needs several. Lesson 16 cuts one in two.

**A refusal is no answer.** Admission control keeps a promise to some by sending others away. Serving all of them takes
more capacity, or less work for each.

**Anyone may ask for anything.** The course's full server (`make serve`) checks API keys, but has no quotas: one client
can use all of it.
"""

# %% [markdown]
"""
## Quiz
"""

# %%
quiz("14")

# %% [markdown]
"""
## References

- Y. Zhong et al.: *DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language Model Serving*,
  OSDI 2024. <https://arxiv.org/abs/2401.09670>
- B. Schroeder, A. Wierman, M. Harchol-Balter: *Open Versus Closed: A Cautionary Tale*, NSDI 2006.
  <https://www.usenix.org/legacy/event/nsdi06/tech/schroeder/schroeder.pdf>
- WHATWG: HTML, server-sent events. <https://html.spec.whatwg.org/multipage/server-sent-events.html>
- OpenAI: API reference, chat completions. <https://platform.openai.com/docs/api-reference/chat>
- vLLM: architecture, <https://docs.vllm.ai/en/latest/design/arch_overview.html>; `vllm bench serve`,
  <https://docs.vllm.ai/en/latest/cli/bench/serve.html>
- Google: *Site Reliability Engineering*, chapters "Handling Overload" and "Addressing Cascading Failures".
  <https://sre.google/sre-book/handling-overload/>
- Python: asyncio, <https://docs.python.org/3/library/asyncio.html>
"""

# %% [markdown] folded=true
"""
## Further (optional)

What the lesson doesn't need. It isn't part of its 85 minutes.
"""

# %% [markdown]
"""
### Optional: tokens to events

**Exercise 14.4: `sse_events(head, batches, prompt_tokens=None)`**, a generator that decides which event is due when,
for one chat. `ChatChunks(head, prompt_tokens)` writes the events: its methods are `role()`, `text(text, reason)`,
`usage(number)`, where `number` counts all tokens of the answer, and `error(exception)`. `batches` yields lists of
`NewToken`, like those of a stream of `AsyncEngine`, but in a plain loop: each token has `.text` and `.finish_reason`,
which is None for all but the very last token.

- No event goes out before the first batch is there. Then comes the role, and one text event for each batch, as soon as
  it is there.
- If `prompt_tokens` is given, the usage event (how many tokens prompt and answer have) follows the last text. `DONE` is
  the last event.
- `batches` may raise. Before its first batch, the exception goes out to the caller: nothing was sent, so the client can
  get a status like 400. Later the status 200 has been sent: the stream ends with the error event and `DONE`, without
  usage. (Clients also see this if the engine's process dies.)
- A reader may close the generator early. It then ends quietly: it must not yield any more.

Example: for one batch with one token, `" ran"` and `"stop"`, there are three events: the role, the text with its
reason, and `DONE`.
"""

# %% exercise="14.4"
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lessons_lib.engine.outputs import NewToken
from lessons_lib.serving.http.chat_events import DONE, ChatChunks

from lessons_lib.serving.http.chat_events import sse_events

# %% [markdown]
"""
### Optional: what to refuse

**Exercise 14.5: two methods of `AdmissionControl`.** It counts the requests in flight, waiting or running, and the
tokens of their prompts. Both have a limit: many short prompts fill the queue, and a few long ones hold up all the
others. `None` means no limit. A limit may be reached, but not exceeded.

- `_check_room(num_prompt_tokens)`: if that many more tokens would bring `self.num_prompt_tokens` above its limit, it
  raises `self._overloaded(what, 0, too_many)`. `too_many` is by how many, and `what` is a text for people.
- `admit(num_prompt_tokens)` counts one more request, and returns `Admitted(num_prompt_tokens)`. If there are
  `max_requests` already, it raises `self._overloaded(what, 1, 0)`: one request has to end first. If several things are
  wrong, a prompt that would never fit (`_check_prompt`) comes first, then the number of requests, then their tokens.

A refusal changes nothing but `num_refused`, and `_overloaded` counts that. The other methods are given; read `correct`
and `release`, which keep the same books.

Example: with `max_prompt_tokens=100`, prompts of 60 and 40 tokens are admitted. One more of 1 token raises
`self._overloaded("…", 0, 1)`. One of 101 tokens raises `BadRequest`.

Once it passes, run the cells of "Your server" and "Too many" once more: they now use your generator and your admission
control too.
"""

# %% exercise="14.5" given="__init__ correct release retry_after _check_prompt _overloaded"
import time
from collections import deque
from collections.abc import Callable

from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import LONGEST_WAIT, NUM_RECENT, SHORTEST_WAIT
from lessons_lib.serving.admission import Admitted, Overloaded

from lessons_lib.serving.admission import AdmissionControl

# %% [markdown]
"""
### Optional: goodput

> **time per output token**: the average time for each token after the first, TPOT for short.

> **knee**: the highest rate at which a server still keeps its promise; here, for 90 % of the requests.

A `LoadLog` has `records`, one for each request that was offered, and `window`, the seconds in which they were offered.
A `LoadRecord` has `ttft` (time to first token), `tpot` (time per output token), `e2el` (end to end), all in seconds,
and `succeeded`: whether the whole answer came. A `Target` has the same three times as limits; `None` promises nothing.

**Exercise 14.6: `goodput(log, target)`**: good requests per second of the window. A request is good if it succeeded and
each of its times is at most the limit. One that ended after the window counts like any other.

Example: in a window of 4 s, 6 requests were offered. One was refused, one had its first token after 0.7 s, four after
0.2 s. With `Target(ttft=0.5)` the goodput is 1.0.

Then your function draws the goodput of a simulated server under more and more load: 3,000 requests of different lengths
arrive at random times, and each step takes as long as a formula says. The promise: the first token within half a
second. One server takes all requests, the other has an `AdmissionControl`.
"""

# %% exercise="14.6"
from lessons_lib.measuring.load.goodput import Target
from lessons_lib.measuring.load.records import LoadLog

from lessons_lib.measuring.load.goodput import goodput

# %%
from lessons_lib.measuring.load.knee import find_knee
from lessons_lib.measuring.simulated_server import SimulatedServer, simulate
from lessons_lib.viz.serving import LoadPoint, draw_load

TARGET = Target(ttft=0.5)


def run(rate, admission=None):
    return simulate(rate, num_requests=3000, server=SimulatedServer(admission=admission))


def point(rate, log):
    ttfts = sorted(record.ttft for record in log.records if record.succeeded)
    return LoadPoint(rate, goodput(log, TARGET), ttfts[int(0.99 * (len(ttfts) - 1))])


def limited(rate):
    return run(rate, AdmissionControl(32, 2048))


knee = find_knee(run, TARGET, 20.0)
factors = (0.25, 0.5, 0.75, 0.9, 1, 1.15, 1.3, 1.6, 2, 2.5, 3)
rates = [round(knee.rate * factor) for factor in factors]
curves = {
    "all are taken": [point(rate, run(rate)) for rate in rates],
    "at most 32 requests, 2,048 prompt tokens": [point(rate, limited(rate)) for rate in rates],
}
draw_load(curves, target=0.5, knee=knee.rate,
          title="A simulated server under more and more load")

# %% [markdown]
"""
The server with a limit serves even more in time than at the knee: it always has work, and short prompts find room more
easily. On the right, 99 % of the served requests get their first token within the time shown.

### Your own admission rule

Your `AdmissionControl` looks only at how much is in flight. Can you do better? Write a rule that keeps the goodput high
at three times the knee. It gets the length of a prompt and a `ServerState`: `now`, the prompt lengths of `waiting` and
`running` requests, their sum `prompt_tokens`, and `first_tokens`: pairs (when, how long it took) of the last 32 first
tokens. It returns whether to take the request.

The scoreboard runs your rule next to the reference, on seeds that you haven't seen. 100 % is the goodput at the knee.
The last two columns show what a rule does to short and to long prompts. (The rule below doesn't look at the length, and
they differ by eight points all the same.) Is your rule one that you would want to be served by?
"""

# %%
from lessons_lib.measuring.overload import bounded, overload_scores, take_all


def my_rule(prompt_tokens, state):
    return len(state.waiting) + len(state.running) < 24


rules = {
    "all are taken": take_all,
    "32 requests, 2,048 prompt tokens": bounded(32, 2048),
    "yours": my_rule,
}
overload_scores(rules)

# %% [markdown]
"""
### Where each part is in vLLM

The course's full server (in a terminal: `make serve`) runs its engine in a process of its own, as **vLLM** does. If
that process dies, every stream ends with an error event, and `/health` says 503, so a load balancer sends requests
elsewhere. On SIGTERM the server drains:

> **draining**: taking no new requests, and finishing those that run.

You have built, or read, nearly every part of a serving engine. This is where the same part is in vLLM (V1 engine,
version 0.11):

| lesson | our part | vLLM |
|---|---|---|
| 02, 09 | `Scheduler.schedule`, token budget | `Scheduler.schedule`, `vllm/v1/core/sched/scheduler.py` |
| 03 | `BlockPool`, free queue | `BlockPool`, `vllm/v1/core/block_pool.py`; `FreeKVCacheBlockQueue`, `vllm/v1/core/kv_cache_utils.py` |
| 03, 06 | block tables, slot mapping | `BlockTable`, `vllm/v1/worker/block_table.py` |
| 05 | packed batch | `GPUModelRunner._prepare_inputs`, `vllm/v1/worker/gpu_model_runner.py` |
| 06–08 | paged attention | the backends in `vllm/v1/attention/backends/` |
| 11 | block hashes, prefix cache | `KVCacheManager`, `vllm/v1/core/kv_cache_manager.py` |
| 12 | `LLMEngine.step`, sampling | `EngineCore.step`, `vllm/v1/engine/core.py`; `Sampler`, `vllm/v1/sample/sampler.py` |
| 13 | CUDA graphs | `CUDAGraphWrapper`, `vllm/compilation/cuda_graph.py` |
| 14 | mailbox of a stream | `RequestOutputCollector`, `vllm/v1/engine/output_processor.py` |
| 14 | `AsyncEngine` | `AsyncLLM`, `vllm/v1/engine/async_llm.py` |
| 14 | `EngineProcess` over ZeroMQ | `EngineCoreProc`, `vllm/v1/engine/core.py`; `AsyncMPClient`, `vllm/v1/engine/core_client.py` |
| 14 | `stream_until_gone` | `with_cancellation`, `vllm/entrypoints/utils.py`, until the stream begins |
| 14 | `sse_events`, chat route | `OpenAIServingChat`, `vllm/entrypoints/openai/serving_chat.py` |
| 14 | `/metrics` | `vllm/v1/metrics/loggers.py` |
| 14 | open-loop load, goodput | `vllm bench serve --goodput`, `vllm/benchmarks/serve.py` |

Why a process, when the owner already has a thread? One Python process runs Python in one thread at a time (the *GIL*),
so the engine would wait whenever the event loop is busy. vLLM can also have several HTTP processes for one engine
(`--api-server-count`). **SGLang** uses three kinds of process: a tokenizer manager (with the HTTP server), a scheduler
with the model, and a detokenizer.

### A slow reader

A step takes 5 ms and gives a reader one token. The reader's connection is slow: sending takes 12 ms, whether it sends
one token or ten. Tokens that arrive meanwhile wait, and the next time all of them are sent at once.

**14.c** How many tokens does the reader find each time it looks, on average?
"""

# %%
predict("14.c", ...)  # tokens


# %% tags=["measured"]
async def slow_reader(num_tokens=120):
    box, sizes = Mailbox(), []

    async def produce():
        start = time.perf_counter()
        for number in range(num_tokens):
            await asyncio.sleep(max(0, start + 0.005 * number - time.perf_counter()))
            box.put(number)
        box.close()

    producer = asyncio.create_task(produce())
    while tokens := await box.take():
        sizes.append(len(tokens))
        await asyncio.sleep(0.012)
    await producer
    return sizes


sizes = await slow_reader()
print("the first batches:", sizes[:12])
reveal("14.c", sum(sizes) / len(sizes), "tokens", tolerance=0.15)
print(f"{12 / 5:.1f} tokens arrive while the reader sends (more on a busy machine).")
print("It takes all that are there, so it never falls further behind.")
