"""15.3, `relay`: whatever happens to the replicas, the reader gets each token once, and one reason at the end."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, without_one
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.checks.lesson_15.relay_mistakes import KNOWN
from lessons_lib.checks.lesson_15.scripted import REASON, REFUSALS, Notes, Scripted, Told, told_chunk

NAMES = "ABCDEFGH"
WORDS = {"lost": "raises ReplicaLost after {}", "cut": "ends after {}, without a reason"} | {
    name: f"raises {kind.__name__}({REASON!r}) after {{}}" for name, kind in REFUSALS.items()
}


class Case(NamedTuple):
    """Replicas, a request and a reader."""

    faults: list[str]  # of each replica; see `Scripted`
    answer: list[int] = [11, 12, 13]  # noqa: RUF012 - nothing changes it
    request: dict[str, Any] = {"seed": 7}  # noqa: RUF012 - what it has beyond a prompt and max_tokens
    size: int = 1  # tokens in a chunk
    last: str = "length"  # the reason; with a "+", it comes with the last tokens, not in a chunk of its own
    max_moves: int | None = None  # None to leave it out
    order: str = NAMES  # in which `choose` prefers the replicas
    load: int = 0  # how many other streams each replica serves
    joins: bool = False  # whether another stream begins on A after the first chunk
    leaves: int | None = None  # after how many chunks the reader leaves


def cases() -> Iterator[Case]:
    five = [11, 12, 13, 14, 15]
    yield Case(["0 lost", ""], [11])  # first, so that tokens which are kept between calls show later
    yield Case([""], [11])
    yield Case([""], five, size=2, last="length+")
    yield Case([""], load=3, joins=True)
    yield Case([""], five, leaves=1)
    yield Case([""], five, leaves=2, load=1)
    for fault in ("0 lost", "0 cut", "1 lost", "1 cut", "2 lost", "2 cut"):
        yield Case([fault, ""])
    yield Case(["2 lost", "1 lost", ""], five)
    yield Case(["2 lost", "1 cut", "0 lost", ""], five, max_moves=3)
    yield Case(["1 lost", ""], five, size=2)
    for seed in ({}, {"seed": None}, {"seed": 0}):
        for faults in ([""], ["1 lost", "1 lost", ""], ["0 lost", ""]):
            yield Case(faults, request=seed)
    yield Case(["1 lost", "1 lost", ""], five, {"seed": 7, "output_token_ids": five[:2]})
    for faults in (["3 lost"], ["3 lost", ""], ["3 cut", ""], ["1 lost", "2 lost", ""]):
        yield Case(faults)
        yield Case(faults, max_moves=int(len(faults) == 3))
    for count in range(3):
        yield Case([f"{count} lost"])
        yield Case([f"{count} lost", f"{2 - count} lost"], five)
    yield Case([])
    yield Case(["2 lost", ""], five, leaves=3)
    for max_moves in (0, 1, 2, 3, None):
        for count in (0, 1):
            yield Case([f"{count} lost"] * 6, five, max_moves=max_moves)
    for kind in REFUSALS:
        for count in range(3):
            yield Case([f"{count} {kind}", ""])
    yield Case(["1 lost", "", ""], five, last="error")
    yield Case(["1 lost", "", ""], [11, 12], {"seed": 7, "max_tokens": 6, "stop": ["."]}, last="stop", size=3)
    draw = Random(15)
    for _ in range(16):
        faults = [
            f"{draw.randrange(3)} {draw.choice(('lost', 'lost', 'cut', 'refused'))}" for _ in range(draw.randint(1, 4))
        ]
        answer = [draw.randrange(20) for _ in range(draw.randint(3, 6))]
        request, order = {"seed": draw.randrange(3), "temperature": 0.5}, "".join(draw.sample("ABCDE", 5))
        size, last, moves = draw.randint(1, 2), draw.choice(("length", "length+")), draw.choice((None, 1, 3))
        yield Case([*faults, ""], answer, request, size, last, moves, order, draw.randrange(3))
    # Last: to call `stream` outside of the `try` is common, and should hide no other mistake.
    for kind in ("lost", *REFUSALS):
        yield Case([f"call {kind}", ""])
    yield Case(["1 lost", "call lost", ""])


def run(attempt: Any, case: Case, watch: Watch) -> None:
    notes, got, had = Notes(), [None], []
    request = {"prompt": [5, 6], "max_tokens": len(case.answer)} | case.request
    made = [Scripted(name, fault, case, dict(request), notes, case.load) for name, fault in zip(NAMES, case.faults)]
    notes.replicas, replicas, given = made, list(made), dict(request)

    def choose(candidates: Any) -> int:
        names = [getattr(each, "name", str(each)) for each in candidates]
        notes.offered.append(Shown(f"[{', '.join(sorted(names))}]"))
        if not names:
            raise IndexError("there is no replica to choose from")
        return names.index(min(names, key=case.order.find))

    def start(**moves: Any) -> Any:
        return attempt(request, replicas, choose, **moves)

    def take() -> None:
        got[0] = next(reader, Told("nothing: the stream has ended"))
        had.append((got[0], told_chunk(got[0])))

    def look() -> dict[str, Any]:
        return {
            "what `choose` got": in_order(notes.offered),
            "what was asked": in_order(notes.asked),
            "the loads when a replica was asked": in_order(notes.loads),
            "what the reader gets": told_chunk(got[0]),
            "the caller's `request`": Told(*(["as it was"] if request == given else ["changed", str(request)])),
            "the caller's list `replicas`": [Shown(each.name) for each in replicas],
            "the list of chunks that have changed since the reader got them": [
                told_chunk(chunk) for chunk, told in had if told_chunk(chunk) != told
            ],
        }

    def look_between() -> dict[str, Any]:
        return look() | ({} if is_last(got[0]) else {"the number of chunks that your code has read": notes.num_read})

    def look_behind() -> dict[str, Any]:
        is_open = [Shown(each.name) for each in made if any(one.gi_frame for one in each.streams)]
        loads = Shown(", ".join(f"{each.name} {each.load}" for each in made))
        return look() | {"the load of each replica": loads, "the list of streams that aren't closed": is_open}

    moves = {} if case.max_moves is None else {"max_moves": case.max_moves}
    reader = watch("the call", start, **moves, returns=kind_of)
    quiet = {"returns": lambda result: None}
    for number in range(1, 12):
        if number - 1 == case.leaves:
            watch("`close()` of your generator", getattr(reader, "close", dict), look=look_behind, **quiet)
            return
        if is_last(got[0]):
            break
        watch(f"chunk {number}", take, look=look_between, **quiet)
        if number == 1 and case.joins:
            made[0].load += 1
    watch("the last chunk", take, look=look_behind, **quiet)
    if request.get("seed") is None and len(made) == 1:

        def seed() -> int:
            notes.asked.clear()
            list(islice(start(), 9))
            return notes.seed

        kinds = ("a seed that others get, too", "a seed of its own")
        drawn = lambda: Shown(kinds[len({seed() for _ in range(9)}) > 7])  # noqa: E731
        watch("what is drawn for each of nine streams", drawn, subject="it")


def in_order(each: list[Shown]) -> Shown:
    return Shown(", then ".join(each) or "nothing")


def is_last(got: Any) -> bool:
    return getattr(got, "finish_reason", None) is not None


def kind_of(got: Any) -> Any:
    if isinstance(got, list | tuple):
        return Shown(f"a {type(got).__name__}")
    return Shown("an iterator of chunks") if hasattr(got, "__next__") else got


def tell(case: Case) -> str:
    told = [fault_in_words(name, fault) for name, fault in zip(NAMES, case.faults)]
    unlike = {
        f"each would answer {case.answer}": True,
        f"in chunks of {case.size}": case.size > 1,
        f"ending with {case.last.strip('+')!r}{' in the same chunk' * case.last.endswith('+')}": case.last != "length",
    }
    told.append(", ".join(text for text, is_so in unlike.items() if is_so))
    told += [f"the request has {case.request}"] if case.request != {"seed": 7} else []
    told += [f"max_moves is {case.max_moves}"] if case.max_moves is not None else []
    told += [f"`choose` prefers {', '.join(case.order[: len(case.faults)])}"] if case.order != NAMES else []
    told += [f"each serves {case.load} other streams"] if case.load else []
    told += ["another stream begins on A after the first chunk"] if case.joins else []
    told += [f"the reader leaves after {counted(case.leaves, 'chunk')}"] if case.leaves is not None else []
    return "; ".join(told if case.faults else ["`replicas` is empty", *told[1:]]) + "."


def fault_in_words(name: str, fault: str) -> str:
    if not fault:
        return f"{name} is fine"
    when, kind = fault.split()
    if when == "call":
        return f"`{name}.stream(...)` {WORDS[kind].removesuffix(' after {}')}"
    return f"{name}'s stream {WORDS[kind].format(counted(int(when), 'chunk'))}"


def smaller(case: Case) -> Iterator[Case]:
    yield from (case._replace(faults=faults) for faults in without_one(case.faults))
    usual = Case([])
    for name in ("size", "last", "max_moves", "order", "load", "joins", "request"):
        if getattr(case, name) != getattr(usual, name) and "max_tokens" not in case.request:
            yield case._replace(**{name: getattr(usual, name)})
    if len(case.answer) > 2 and "output_token_ids" not in case.request and case.leaves is None:
        yield case._replace(answer=case.answer[:-1])


TASK = Task(
    reference="lessons_lib.serving.failover:relay",
    cases=cases,
    run=run,
    tell=tell,
    known=KNOWN,
    smaller=smaller,
    about={
        "what `choose` got": "`choose` is called once before a replica is asked, with those that haven't been lost: "
        "take the chosen one out of that list. After a chunk with a `finish_reason` no replica is asked.",
        "what was asked": "One replica serves the stream. After a loss, the next is asked for what is missing, with "
        "the same seed; at most `max_moves` after the first.",
        "the loads when a replica was asked": "`stream_once` raises the load before it asks, so that the next choice "
        "counts this stream, and lowers it however the stream ends. A loop of your own has to do that, too: add 1, and "
        "subtract 1 in `finally`.",
        "what the reader gets": "Each chunk as it comes, and one with a reason as the last: that of the replica, "
        "'length' if no token is missing, or 'error' with a message.",
        "the number of chunks that your code has read": "Pass each chunk on before you read the next one. Otherwise "
        "it isn't a stream.",
        "the load of each replica": "`stream_once` lowers the load when it is closed. `with closing(stream_once(...))` "
        "closes it however the stream ends, and if the reader leaves. A loop of your own subtracts 1 in `finally`.",
        "the list of streams that aren't closed": "Close the stream however it ends: `stream.close()` tells a replica "
        "that still runs to abort the request.",
        "the caller's list `replicas`": "The balancer needs its list for other requests. Take replicas out of a copy, "
        "`list(replicas)`.",
        "the caller's `request`": '`request` is the caller\'s. Make a new dict: `{**request, "seed": ...}`.',
        "returned": "The reader should get each chunk as soon as it is there. Yield them, one by one.",
        "raised ReplicaLost": "Catch it around the loop over the chunks: another replica can go on. If no replica is "
        'left, or no move, the reader gets that as a chunk: `yield Chunk([], "error", "...")`.',
        "raised AttributeError": "`choose` returns an index in the list that it gets. `stream_once` takes the replica "
        "at that index, and then the request.",
        "raised KeyError": 'The field may be missing: `request.get("seed")`.',
        "raised TypeError": "The `token_ids` of a chunk are a list: `[]` if there are none.",
        "raised ValueError": "A refusal reaches the reader as a chunk, which `stream_once` yields. And `remove` raises "
        "ValueError if the list doesn't have the replica: `choose` must get the list that you remove it from.",
        "raised IndexError": "`choose` returns an index in the list that it gets. If no replica is left, don't call "
        "it, and tell the reader.",
        "raised RuntimeError": "`close()` raises GeneratorExit at the `yield`. Don't catch it (`except:` and `except "
        "BaseException` do), and yield nothing after it.",
    },
)

EXERCISE = TASK.exercise(
    id="15.3",
    title="the core of a balancer",
    hints=(
        "What do you have to remember while the chunks pass by, so that another replica can go on? And how many "
        "ways are there in which the stream ends: which of them does `stream_once` show you, and how?",
        "A loop over replicas around a loop over the chunks of `stream_once`. If the inner loop ends by itself, "
        "the reader has had its last chunk. ReplicaLost leads to another round, and `request_to_go_on` gets the "
        "first request and *all* tokens so far. Keep a list of remaining replicas, and take the chosen one out "
        "of it. The outer loop ends for one of three reasons, and the last chunk depends on which: no token is "
        "missing, no replica is left, or no move is left.",
        "Before the loop: a seed, `token_ids, remaining, asked = [], list(replicas), request`. `while asked is not "
        "None and remaining and max_moves >= 0`: `replica = remaining.pop(choose(remaining))`; in `try`: `with "
        "closing(stream_once(replica, asked)) as chunks:`, for each chunk `token_ids += chunk.token_ids` and `yield "
        "chunk`, and `return` after the loop; in `except ReplicaLost`: `max_moves -= 1` and `asked = "
        'request_to_go_on(request, token_ids)`. Behind the outer loop: `Chunk([], "length")` if `asked` is None, '
        'otherwise `Chunk([], "error", "...")`.',
    ),
    points=3,
)
