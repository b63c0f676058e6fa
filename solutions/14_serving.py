# %% [markdown]
"""
# 14 · Serving

![A server: each client has a mailbox, and the engine has one owner](../lessons_lib/assets/openings/14.svg)

**One engine, one process, one caller at a time. How do we turn that into a URL that many clients use at once, and that
holds up when too many come and when some leave?**

75 minutes · difficulty: hard · routes: serving · prerequisites: lesson 12 (the engine); lesson 09 (arrivals and waiting times) helps

By the end, your own parts form a server that answers `curl`, hears when a client hangs up, and withstands three times
the load that it can serve.

If `async def` and `await` are new to you, first read the beginning of [Coroutines and
Tasks](https://docs.python.org/3/library/asyncio-task.html): a quarter of an hour, which the 75 minutes don't include.
"""

# %% folded=true
import asyncio
import http.client
import json
import shlex
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from lessons_lib.batching import generate_one_by_one
from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, SamplingParams
from lessons_lib.kv_cache import audit
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES
from lessons_lib.models import load_model
from lessons_lib.recording.server_turns import Reader, record_server
from lessons_lib.serving import AdmissionControl, AsyncEngine, EngineLoop
from lessons_lib.serving.http.leaving import send_all
from lessons_lib.serving.http.server_thread import ServerThread
from lessons_lib.serving.http.small_app import SmallApp
from lessons_lib.measuring.load.goodput import Target, goodput
from lessons_lib.measuring.load.in_steps import offer_in_steps
from lessons_lib.serving.messages import AddRequest, NewTokens, RequestEnded
from lessons_lib.viz.serving import draw_endings, watch_server
from lessons_lib.viz.source import show_source
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
the server's heartbeat, should tick every millisecond. In which order do the 24 tokens come, and does the heart go on
beating meanwhile?
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

Does it help to await something between two tokens? Now A's client reads three tokens, then takes a break of 0.1 s, in
which the event loop is free. C is in the engine all the time, and a callback collects its tokens. A step takes a few
milliseconds, and computes one token for each request.

**14.a** How many tokens does C have when A's break ends?
"""

# %%
predict("14.a", ...)  # tokens

# %%
engine, of_c = LLMEngine(model, tokenizer, SIX), []
engine.add_request("The old dog", SamplingParams(max_tokens=12, ignore_eos=True),
                   on_token=of_c.append)
reading = engine.stream(STORIES[0].prompt, SamplingParams(max_tokens=12, ignore_eos=True))
for _ in range(3):
    next(reading)
await asyncio.sleep(0.1)
reveal("14.a", len(of_c), unit="tokens")
reading.close()

# %% [markdown]
"""
C stands still: `engine.stream` takes a step only when its reader asks for a token. A thread for each client and a lock
around the engine wouldn't help: readers would still set its pace.
"""

# %% [markdown]
"""
## The idea: one owner, and a mailbox for each reader

A reads at once, C and D take breaks, and F leaves after eight tokens. Follow a token from the engine to its reader, and
F's last command.
"""

# %%
def story(name):
    return AddRequest(name, PROMPTS[NAMES.index(name)],
                      SamplingParams(max_tokens=20, ignore_eos=True))


clients = {"A": Reader(story("A")), "C": Reader(story("C"), pause=3),
           "D": Reader(story("D"), pause=12), "F": Reader(story("F"), leaves_after=8)}
watch_server(await record_server(LLMEngine(model, tokenizer, SIX), clients))

# %% [markdown]
"""
- Only one coroutine uses the engine: its *owner*. It takes turn after turn, whether readers read or not. A *turn*
  carries out the commands that have arrived, then takes one step of the engine, in a thread. The event loop goes on
  meanwhile.
- A caller sends the owner a *command*: add this request, abort that one.
- The tokens of a turn go into the *mailboxes* of their streams. A slow reader's mailbox fills up, and nothing else
  slows down. It can't fill without bound: a request has at most `max_tokens` tokens.

> **backpressure**: a slow consumer makes its producer wait. That's right for copying a file. It's wrong for an engine
> whose steps serve many readers at once.
"""

# %% [markdown]
"""
## Build 1: the mailbox

**Exercise 14.1: `put` and `take` of the class `Mailbox`.** A mailbox belongs to one event loop, and has one reader. An
`asyncio.Event` is a flag that coroutines can wait for: `event.set()`, `event.clear()`, `await event.wait()`, which
returns at once if the flag is set.

- `put(item)` never waits. Once the mailbox is closed, nothing is added.
- `await take()` returns a list of *all* items that have arrived since the last call, in order. If there are none, it
  waits. Once the mailbox is closed and empty, it returns `[]`.
- A reader may be cancelled while it waits, even at the very moment an item arrives. The next `take` returns that item.

Example: after `put("The")`, `put(" dog")`, `close()` and `put("!")`, the first `take()` returns `["The", " dog"]`, and
the second `[]`.
"""

# %% exercise="14.1" given="__init__ __len__ close clear"
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
for the result. The owner runs without a request, then with one, and is cancelled, as in a shutdown. How many turns does
it take in 0.1 s without a request, and what does A still hold when the owner has ended?
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
executor.shutdown(wait=True)  # blocks until the thread has come back
print("open requests:", list(engine.open), "| blocks in use:",
      len(engine.engine.scheduler.pool.used))

# %% [markdown]
"""
It never rests. And cancelling a coroutine ends its waiting, not the thread that it waits for: the thread went on in the
engine, and A keeps its blocks for good. Cleaning up in `finally` is right, but there are more ways to get it wrong. A
coroutine can be cancelled a second time, and then its cleanup ends at the next `await`. A sketch:
"""

# %%
draw_endings()

# %% [markdown]
"""
**Exercise 14.2: the coroutine `own_engine(engine, commands, deliver, executor)`**, an owner without these faults. The
executor has one thread.

- It takes turns while requests are open (`engine.open`) or commands have arrived. Otherwise it waits.
- Each turn gets all commands that have arrived since the turn before.
- Once `commands.is_closed`, it stops after the turn that is running, and delivers that turn's events. Commands that no
  turn has got by then may be dropped; if it was waiting for them, a last turn with them is fine, too.
- It may also end because a turn raises (the exception goes on to the caller), or because it is cancelled (it then ends
  with `CancelledError`).
- However it ends, the thread leaves the engine first. Then your coroutine calls `engine.close()` itself, not in the
  executor. `close` aborts what is left. All of this also holds if it is cancelled again while it cleans up. During the
  cleanup, and only then, it may block the event loop.

Examples, where A wants three tokens:

- A is added: `turn([add A])`, `turn([])`, `turn([])`, then your coroutine waits.
- During A's first turn, B is added and A aborted: the next turn gets both commands.
- During A's first turn, the mailbox is closed: its events are delivered, no other turn follows, the engine is closed.
- During A's first turn, your coroutine is cancelled: it closes the engine when the thread has come back. (The turn's
  events may be dropped.)
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
`await front.add(prompt, params)` returns a stream once the engine has *accepted* the request.
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


show_source(send_all)
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
## Your server

`SmallApp` is a small web application around your mailbox, your owner and your `stream_until_gone`. (It is in
`lessons_lib/serving/http/small_app.py`.) [uvicorn](https://www.uvicorn.org), a web server, runs it in a thread of this
notebook, on a free port. It speaks OpenAI's API. With `"stream": true`, an answer comes piece by
piece:

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
app = SmallApp(engine, mailbox=Mailbox, own=own_engine, until_gone=stream_until_gone)
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
no longer null. `[DONE]` says that the connection wasn't cut. If the engine fails in between, the status 200 has been
sent already, so the error comes as an event of its own.

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
Four links, from a closed tab to free blocks: the operating system tells the server, `receive` tells the application,
the application closes the stream, which sends the owner an abort command, and the next turn carries it out.
"""

# %% [markdown]
"""
## Too many

What if requests come faster than your server can serve them? `offer_in_steps` sends a new server of your mailbox and
your owner a request at each of the given times, and logs when its tokens came. Time is counted in steps of the engine,
so other programs on your machine don't matter. The engine runs four requests at a time (`FOUR`); each wants 16 tokens.
First, what can it serve? 16 requests come at once.
"""

# %%
async def offer(times, max_requests=None):
    engine = LLMEngine(model, tokenizer, FOUR)
    return await offer_in_steps(engine, times, AdmissionControl(max_requests), own=own_engine,
                                mailbox=Mailbox)


burst = (await offer([0] * 16)).duration
print(f"16 requests, all at once, take {burst} steps")

# %% [markdown]
"""
> **open loop**: requests are sent at their times, whatever the server does. In a *closed loop*, each client waits for
> its answer first, so a slow server gets fewer requests, and looks fine.

Now an open loop: three times as many as the server can serve. 96 requests arrive, evenly spaced over twice
the steps that the 16 took. None is refused: they queue, first come, first served.

**14.b** How many steps does the last one wait for its first token?
"""

# %%
predict("14.b", ...)  # steps

# %%
times = [2 * burst * number // 96 for number in range(96)]
everything = await offer(times)
reveal("14.b", everything.records[-1].ttft, unit="steps", tolerance=0.1)

# %% [markdown]
"""
Four at a time, 96 requests take 24 rounds of 16 steps. The last four start after 23 rounds, and the last request came
after 8, so it waits for about 15 rounds. The throughput looks fine, but clients don't wait that long: they give up, and
ask again.

> **goodput**: requests per second that were served within the promised times.

The remedy is to refuse *at once* what can't be served in time, with HTTP status 429, so that a client can ask
elsewhere. `AdmissionControl` limits the requests in flight, waiting or running.

**Decide.** You promise each client the first token within 36 steps. How many requests may be in flight? Find the
largest limit that keeps the promise, with a pencil, and put it into the next cell.
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

# %% [markdown]
"""
Four requests start almost together and end almost together, so a round takes 16 steps. With 12 in flight, the last one
waits for two rounds, and then for its own first step. One more would wait for most of a third round, so 12 is the
largest limit that keeps the promise. With 16, most of those that are taken come too late. Without a limit, only the
first 16 are in time, however long the overload lasts.

Compare 4, 8 and 12: four more places in the queue serve four more requests, which are still waiting when the arrivals
end. (Goodput divides by the steps of the arrivals only, so it can exceed what the server can serve.) During the
overload, a longer queue serves no more. It only makes each request wait longer.
"""

# %% [markdown]
"""
## What production does

- Admission is mostly left to a gateway or load balancer in front. A client that was refused comes back after a *random*
  pause, or all of them come back together.
"""

# %% [markdown]
"""
## What is still wrong

**One process serves.** If it dies, all its streams are cut. Lesson 15 runs replicas.

**One machine, one GPU.** A model that doesn't fit needs several. Lesson 16 cuts one in two.

**Anyone may ask for anything.** The full server (`make serve`) checks API keys, but one client can use all of it.
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

It isn't part of the lesson's 75 minutes.
"""

# %% [markdown]
"""
### Goodput under more and more load

> **time per output token**: the average time for each token after the first, TPOT for short.

> **knee**: the highest rate at which a server still keeps its promise; here, for 90 % of the requests.

This is the goodput of a simulated server under more and more load: 3,000 requests of different lengths
arrive at random times, and each step takes as long as a formula says. The promise: the first token within half a
second. One server takes all requests, the other has an `AdmissionControl`.
"""

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
"""
