"""Judges 14.3, `stream_until_gone`: a client that leaves is noticed at once, and nothing is left of its request."""

import asyncio

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_14.fake_client import (
    ACCEPTED,
    BATCHES,
    BETWEEN_TOKENS,
    DISCONNECT,
    FIRST_TOKEN,
    EngineFailed,
    FakeClient,
    FakeRequest,
)
from lessons_lib.checks.lesson_14.leaving_scene import IN_STREAM, MOST_AWAITS, POLLING, SLOW, SPINNING, STUCK, Scene
from lessons_lib.checks.lesson_14.virtual_loop import noticing, play, settle
from lessons_lib.viz.words import marked

# What goes on -> when, and how long a `send` takes.
PHASES = {
    "before the engine has accepted the request": (ACCEPTED / 2, 0.0),
    "before the first token": ((ACCEPTED + FIRST_TOKEN) / 2, 0.0),
    "after two of three batches": (IN_STREAM, 0.0),
    "while `send` waits for a slow connection": (IN_STREAM, SLOW),
}


def check_stream_until_gone(attempt) -> None:
    closes = _all_is_sent(attempt)
    for phase in PHASES:
        _leaves(attempt, phase, closes)
    _another_message(attempt)
    _waits_long(attempt)
    for where in ("add", "tokens", "send"):
        _fails(attempt, where)
    for error in (ConnectionError, TimeoutError):
        _connection_breaks(attempt, error)
    for phase in PHASES:
        _cancelled(attempt, phase)
    for how in ("leaves", "cancelled"):
        for rounds in range(6):
            _as_accepted(attempt, how, rounds)
    for leaves in (False, True):
        for point in range(MOST_AWAITS):
            if not _cancelled_at(attempt, point, leaves):
                break


def _all_is_sent(attempt) -> bool:
    """Returns whether it called `aclose`, though the request had ended."""
    num_receives, num_closes = _sends_all(attempt)
    if not num_receives:
        _refuse_never(attempt)
    return num_closes > 0


def _sends_all(attempt) -> tuple[int, int]:
    """Returns how often it called `receive` and `aclose`."""
    case = "three batches: “The”, “ old”, “ dog ran”. The client stays."

    async def story():
        scene = Scene(attempt, case, FakeClient())
        owner = scene.start()
        await asyncio.wait([owner])
        scene.refuse_faults()
        result = owner.result()
        sent = [tokens for _, tokens in scene.client.sent]
        if sent != list(BATCHES):
            whole = [token for batch in BATCHES for token in batch]
            idea = (
                "That is one `send` for everything. Send each batch as soon as it is there."
                if sent == [whole]
                else "Each list that the stream yields goes to `send` as it is, in order."
            )
            raise Mistake(f"`send` should get {list(BATCHES)}; it got {marked(BATCHES, sent)}.", case=case, idea=idea)
        for (when, tokens), arrival in zip(scene.client.sent, scene.request.arrivals):
            if when > arrival + 0.005:
                raise Mistake(
                    f"{tokens} came after {arrival:g} s and was sent after {when:g} s.",
                    case=case,
                    idea="Send each batch before you wait for the next one.",
                )
        if result is not True:
            raise Mistake(
                f"all tokens were sent, so yours should return True; it returned {short(result)}.",
                case=case,
                idea="The caller writes it into its log: was the answer read to its end?",
            )
        await scene.audit(owner, "all tokens were sent")
        return scene.client.num_receives, scene.request.num_closes

    return play(story, case, STUCK, SPINNING, POLLING)


def _refuse_never(attempt) -> None:
    """Refuse an attempt that doesn't call `receive` in a long stream either: one that polls may not in a short one."""
    case = "the first token comes after 10 s. The client stays."

    async def story():
        scene = Scene(attempt, case, FakeClient(), FakeRequest(first_token=10.0))
        owner = scene.start()
        await asyncio.wait([owner])
        owner.cancelled() or owner.exception()
        if not scene.client.num_receives:
            raise Mistake(
                "your coroutine never calls `receive`.",
                case=case,
                idea="Nothing else tells that a client leaves: a `send` to one that has left raises nothing. Listen "
                "next to the work.",
            )

    play(story, case, STUCK, SPINNING, POLLING)


def _another_message(attempt) -> None:
    for kind in ("http.request", "http.other"):
        _messages(attempt, kind, 1)
    _messages(attempt, "http.request", 3)


def _messages(attempt, kind: str, count: int) -> None:
    leaves_at = FIRST_TOKEN + 0.5 * BETWEEN_TOKENS
    what = "a message" if count == 1 else f"{count} messages"
    case = f"before the first token, the client sends {what} of the type “{kind}”; after the first token, it leaves."

    async def story():
        messages = [(FIRST_TOKEN / 2, {"type": kind, "body": b"", "more_body": False})] * count
        client = FakeClient([*messages, (leaves_at, DISCONNECT)])
        scene = Scene(attempt, case, client)
        owner = scene.start()
        await asyncio.sleep(leaves_at - 0.001)
        if owner.done() and not owner.cancelled() and owner.exception() is None:
            raise Mistake(
                f"your coroutine took {'that message' if count == 1 else 'one of these messages'} for the end.",
                case=case,
                idea="Look at its type: only “http.disconnect” says that the client has left.",
            )
        await asyncio.sleep(0.002)
        await settle()
        if not owner.done():
            raise Mistake(
                "the client left, and your coroutine didn't notice."
                + (" It called `receive` once." if client.num_receives == 1 else ""),
                case=case,
                idea="A message of another type means nothing here: call `receive` again, however many come.",
            )
        owner.cancelled() or owner.exception()

    play(story, case, STUCK, SPINNING, POLLING)


def _leaves(attempt, phase: str, closes: bool) -> None:
    leaves_at, send_seconds = PHASES[phase]
    case = f"the client leaves {phase}."

    async def story():
        client = FakeClient([(leaves_at, DISCONNECT)], send_seconds)
        scene = Scene(attempt, case, client)
        scene.closes = closes
        owner = scene.start()
        await asyncio.sleep(leaves_at - 0.001)
        was_listening, doing = client.is_receiving, scene.doing()
        await asyncio.sleep(0.002)
        await settle()
        scene.refuse_faults()
        if not owner.done():
            now = scene.doing()
            await asyncio.wait([owner], timeout=4 * SLOW)
            _refuse_deaf(scene, was_listening, doing, now)
        if owner.cancelled():
            raise Mistake(
                "the client left, and your coroutine ended with CancelledError.",
                case=case,
                idea="Nothing has cancelled *it*. What you cancel yourself, wait for without letting its end out: "
                "`asyncio.gather(…, return_exceptions=True)`.",
            )
        if owner.exception() is not None:
            raise owner.exception()
        if owner.result() is not False:
            raise Mistake(
                f"the client has left, so yours should return False; it returned {short(owner.result())}.",
                case=case,
                idea="Which of the two ended first, the work or the listening? Ask the work: `task.done()`.",
            )
        await scene.audit(owner, "the client left")

    play(story, case, STUCK, SPINNING, POLLING)


def _refuse_deaf(scene: Scene, was_listening: bool, before: str, after: str) -> None:
    """The client has left, and the attempt goes on.

    Args:
        before, after: what it did when the client left, and a moment later.
    """
    if not was_listening:
        where = f"; your coroutine {before.replace('waits', 'was waiting', 1)}" if before else ""
        raise Mistake(
            f"no call of `receive` was waiting when the client left{where}. {_when_it_called(scene.client)}",
            case=scene.case,
            idea="A client may leave at any time, so a call of `receive` should wait from the first moment to the "
            "last, in a task of its own. To ask now and then is not enough.",
        )
    raise Mistake(
        f"`receive` has said that the client has left, and your coroutine still {after or 'runs'}.",
        case=scene.case,
        idea="The one that listens must end the work, whatever it waits for: cancel its task.",
    )


def _when_it_called(client: FakeClient) -> str:
    if client.first_receive is None:
        now = asyncio.get_running_loop().time()
        return f"Your coroutine ran for {now * 1000:.0f} ms and didn't call it once."
    if client.first_receive < client.leaves_at - 0.001:
        return "An earlier call had ended."
    return f"The first call came after {client.first_receive * 1000:.0f} ms."


def _waits_long(attempt) -> None:
    case = "the first token comes after 100 s. The client stays."

    async def story():
        scene = Scene(attempt, case, FakeClient(), FakeRequest(first_token=100.0))
        owner = scene.start()
        await asyncio.wait([owner])
        if owner.result() is not True:
            raise Mistake(
                f"all tokens should be sent, and yours return True; it returned {short(owner.result())} after "
                f"{asyncio.get_running_loop().time():.0f} s.",
                case=case,
                idea="The client stays, however long the engine takes. Is there a timeout? When it is over, no client "
                "has left.",
            )

    play(story, case, STUCK, SPINNING, POLLING, most_timers=60)


def _fails(attempt, where: str) -> None:
    case = {
        "add": "`add` raises: the server is full.",
        "tokens": "after the first batch, the stream raises: the engine is dead.",
        "send": "`send` raises: the connection broke.",
    }[where]

    async def story():
        scene = Scene(attempt, case, FakeClient(fails=where == "send"), FakeRequest(fails_in=where))
        owner = scene.start()
        await asyncio.wait([owner])
        if owner.cancelled():
            raise Mistake(
                "your coroutine ended with CancelledError.",
                case=case,
                idea="The caller has to know what went wrong: let that exception out.",
            )
        if owner.exception() is None:
            raise Mistake(
                f"the exception should come out; yours returned {short(owner.result())}.",
                case=case,
                idea="Does your code catch it? If not: an exception stays in its task until something asks for it, and "
                "`task.result()` raises it.",
            )
        if isinstance(owner.exception(), BaseExceptionGroup):
            raise Mistake(
                f"{type(owner.exception()).__name__} came out; the exception itself should.",
                case=case,
                idea="A task group wraps what it raises, so the caller's `except` doesn't catch it. Take the exception "
                "out, or do the work in a task whose `result()` you ask for.",
            )
        if not isinstance(owner.exception(), EngineFailed):
            raise owner.exception()
        await scene.audit(owner, "an error came")

    play(story, case, STUCK, SPINNING, POLLING)


def _connection_breaks(attempt, error: type[Exception]) -> None:
    """An error of the kind that an attempt might take for a client that left."""
    case = f"`send` raises {error.__name__}: the connection broke. The client hasn't left."

    async def story():
        scene = Scene(attempt, case, FakeClient(fails=True, error=error))
        owner = scene.start()
        await asyncio.wait([owner])
        if owner.cancelled():
            return  # `_fails` has shown that other errors come out
        if owner.exception() is None:
            raise Mistake(
                f"the {error.__name__} should come out; yours returned {short(owner.result())}.",
                case=case,
                idea=f"Does an `except` around the work catch {error.__name__}, as `except OSError` does? Only "
                "“http.disconnect” says that the client has left; every error of the work comes out.",
            )
        if not isinstance(owner.exception(), error):
            raise owner.exception()
        await scene.audit(owner, "an error came")

    play(story, case, STUCK, SPINNING, POLLING)


def _cancelled(attempt, phase: str) -> None:
    at, send_seconds = PHASES[phase]
    case = f"your coroutine itself is cancelled {phase}: the server shuts down."

    async def story():
        scene = Scene(attempt, case, FakeClient((), send_seconds))
        owner = scene.start()
        await asyncio.sleep(at)
        owner.cancel()
        await _refuse_survivor(scene, owner)
        await scene.audit(owner, "it was cancelled")

    play(story, case, STUCK, SPINNING, POLLING)


def _as_accepted(attempt, how: str, rounds: int) -> None:
    """`add` returns, and in the same moment the client leaves, or the coroutine is cancelled.

    Args:
        rounds: of the event loop, by which that comes later.
    """
    who, ended = {
        "leaves": ("the client leaves", "the client left"),
        "cancelled": ("your coroutine itself is cancelled", "it was cancelled"),
    }[how]
    case = f"{who} at the very moment at which `add` returns."

    class Client(FakeClient):
        async def receive(self) -> dict:
            message = await super().receive()
            await settle(rounds)
            return message

    async def story():
        scene = Scene(attempt, case, Client([(ACCEPTED, DISCONNECT)]) if how == "leaves" else FakeClient())
        owner = scene.start()
        await asyncio.sleep(ACCEPTED)
        if how == "cancelled":
            await settle(rounds)
            owner.cancel()
        await settle()
        if not owner.done():
            await asyncio.wait([owner], timeout=4 * SLOW)
        owner.cancelled() or owner.exception()
        if scene.request.is_open and not scene.doing():
            raise Mistake(
                f"your coroutine has ended ({ended}), and the request is still open: it keeps its blocks.",
                case=case,
                idea="The stream is there, and nothing closes it. Is `add` in a task of its own? Then yours can be "
                "stopped before the `try` whose `finally` calls `aclose`. Let one task do both, as `send_all` does.",
            )

    play(story, case, STUCK, SPINNING, POLLING)


def _cancelled_at(attempt, point: int, leaves: bool) -> bool:
    """Cancel it at its await number `point`, twice in a row. Returns whether it has so many."""
    who = "the client leaves after two of three batches" if leaves else "the client stays"
    case = f"{who}; your coroutine is cancelled at its await number {point + 1}, and once more right after"
    reached = []

    async def story():
        scene = Scene(attempt, f"{case}.", FakeClient([(IN_STREAM, DISCONNECT)] if leaves else ()))
        loop = asyncio.get_running_loop()

        def twice() -> None:
            owner.cancel()
            loop.call_soon(owner.cancel)

        def at_await(number: int) -> None:
            if number == point:
                where = "cleaning up" if loop.time() > IN_STREAM - 1e-9 else scene.doing() or "at the start"
                scene.case = f"{case} ({where})."
                reached.append(point)
                loop.call_soon(twice)

        async def wrapped(coroutine):
            return await noticing(coroutine, at_await)

        owner = scene.start(wrapped)
        await asyncio.wait([owner], timeout=1.0)
        if reached:
            await _refuse_survivor(scene, owner)
            await scene.audit(owner, "it was cancelled")
        elif not owner.done():
            owner.cancel()

    play(story, case, STUCK, SPINNING, POLLING)
    return bool(reached)


async def _refuse_survivor(scene: Scene, owner: asyncio.Task) -> None:
    await settle()
    if not owner.done():
        raise Mistake(
            "your coroutine was cancelled and goes on.",
            case=scene.case,
            idea="Don't swallow `CancelledError`: it is how the server says stop. `finally` lets it pass.",
        )
    if not owner.cancelled():
        error = owner.exception()
        how = f"returned {owner.result()}" if error is None else f"raised {type(error).__name__}: {error}"
        raise Mistake(
            f"a cancelled coroutine should end with CancelledError; yours {how}.",
            case=scene.case,
            idea="If you catch it, ask first whether the cancellation was your own.",
        )
