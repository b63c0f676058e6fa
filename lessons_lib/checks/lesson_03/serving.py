"""03.3, `step_in_blocks`: which requests leave, grow, give up their blocks, and are admitted."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_serving import CachedRequest, step_in_blocks
from lessons_lib.kv_cache.block_table import BlockTable

# Blocks, their size, the running requests and the waiting ones. "A 3+9 5" is a request A with a prompt of 3, an answer
# of 9, and 5 tokens stored; a waiting one has none.
Case = tuple[int, int, str, str]
IDS = "XABCDEFGHIJ"


class Scene:
    """A pool, its requests, the running ones and the queue."""

    def __init__(self, case: Case):
        num_blocks, size, running, waiting = case
        self.pool = BlockPool(num_blocks, size)
        self.running = [self._request(*text.split()) for text in running.split(", ") if text]
        self.waiting = deque(self._request(*text.split()) for text in waiting.split(", ") if text)
        self.requests = [*self.running, *self.waiting]

    def _request(self, name: str, lengths: str, stored: str = "0") -> CachedRequest:
        prompt, answer = map(int, lengths.split("+"))
        table = BlockTable(self.pool)
        table.append(int(stored))
        return CachedRequest(name, prompt, answer, table)

    def seen(self) -> dict[str, Any]:
        return {
            "running": [request.id for request in self.running],
            "waiting": [request.id for request in self.waiting],
            **{f"the tokens of {each.id}": each.table.num_tokens for each in self.requests},
            **{f"the number of blocks of {each.id}": len(each.table.blocks) for each in self.requests},
        }


def run(step: Any, case: Case, watch: Watch) -> None:
    scene = Scene(case)
    one = partial(step, scene.waiting, scene.running, scene.pool)
    watch("the step", one, look=scene.seen, returns=lambda _: None)
    if case == QUEUE:
        watch("the step", dict, look=lambda: {"the new blocks": [each.table.blocks[-1] for each in scene.running]})


def tell(case: Case) -> str:
    scene, size = Scene(case), case[1]
    parts = [f"{counted(scene.pool.num_blocks, 'block')} of {size}, {len(scene.pool.free_queue)} free"]
    for request in scene.running:
        parts.append(f"{request.id} runs with {request.table.num_tokens} of {request.tokens_in_the_end} tokens")
    if scene.waiting:
        parts.append("waiting: " + ", ".join(f"{each.id} (prompt {each.prompt_tokens})" for each in scene.waiting))
    return "; ".join(parts) + "."


QUEUE = (4, 4, "A 3+9 4, B 3+9 4", "")


def cases() -> Iterator[Case]:
    for num_blocks, running, waiting in (
        (4, "", "A 4+9"), (9, "", "A 10+9"), (4, "", "A 5+30"), (4, "", "A 4+9, B 5+9, C 4+9"), (4, "", ""),
        (6, "A 3+9 5, B 3+9 7", "C 3+9"), (4, "A 3+9 4, B 3+9 5", "C 3+9"), (3, "", "A 4+9, B 12+9, C 4+9"),
        (3, "X 5+9 5", "A 5+9"), (6, "A 3+2 4", ""), (6, "A 3+2 4, B 3+3 5, C 3+9 5", "D 9+9"),
        (2, "A 3+1 3, B 4+1 4", ""), (3, "A 3+9 8, B 3+2 4", ""), (6, "A 3+3 4", ""),
        (5, "A 3+9 5, B 3+9 8, C 6+9 4", "D 3+9"), (5, "A 3+9 8, B 3+9 5, C 6+9 4", "D 3+9"),
        (4, "A 3+9 5, B 8+9 8", "D 3+9"), (4, "A 3+9 8, B 7+9 8", ""), (4, "A 3+9 5, B 3+9 8", "D 8+9"),
        (5, "A 3+9 8, B 9+9 8, C 8+9 4", "D 3+9"), (4, "A 3+19 8, B 3+19 4, C 4+19 4", "D 3+9"),
        (3, "A 3+19 4, B 3+19 4, C 9+19 3", "D 9+9"),
    ):  # fmt: skip
        yield num_blocks, 4, running, waiting
    yield QUEUE
    for seed in range(8):
        draw = Random(seed)
        size, num_blocks = draw.choice((1, 3, 4)), draw.randint(8, 14)
        lengths = [(draw.randint(1, 8), draw.randint(1, 8 * size)) for _ in range(10)]
        requests = ((prompt, min(answer, num_blocks * size + 1 - prompt)) for prompt, answer in lengths)
        text = ", ".join(f"{name} {prompt}+{answer}" for name, (prompt, answer) in zip("ABCDEFGHIJ", requests))
        yield from steps_of((num_blocks, size, "", text))


def steps_of(case: Case) -> Iterator[Case]:
    """Every third step of a long run, each as a case of its own."""
    scene = Scene(case)
    for index in range(60):
        if index % 3 == 2 and (scene.waiting or scene.running):
            running = [f"{each.id} {lengths(each)} {each.table.num_tokens}" for each in scene.running]
            waiting = [f"{each.id} {lengths(each)}" for each in scene.waiting]
            yield case[0], case[1], ", ".join(running), ", ".join(waiting)
        step_in_blocks(scene.waiting, scene.running, scene.pool)


def lengths(request: CachedRequest) -> str:
    return f"{request.prompt_tokens}+{request.answer_tokens}"


def smaller(case: Case) -> Iterator[Case]:
    for place in (3, 2):
        names = case[place].split(", ") if case[place] else []
        for index in range(len(names))[::-1]:
            yield *case[:place], ", ".join(names[:index] + names[index + 1 :]), *case[place + 1 :]


def about(name: str) -> Callable[[dict, dict], str]:
    """What should have happened to the request in which the lists, or its tokens, differ first."""
    return lambda mine, want: sentence(name, mine[name], want)


def sentence(name: str, got: Any, want: dict[str, Any]) -> str:
    before = {each.id: each for each in Scene(want["case"]).running}
    finished = [id for id, each in before.items() if each.finished]
    back = [
        id for id, each in before.items() if want[f"the tokens of {id}"] <= each.table.num_tokens and id not in finished
    ]
    if name not in ORDER:
        id = name.split(" ")[-1]
    elif sorted(got) != sorted(want[name]):
        wrong = [id for id in got if id not in want[name] or got.count(id) > 1]
        id = min(wrong or set(want[name]) - set(got))
    elif name == "waiting" or not back:
        return ORDER[name]
    else:
        id = back[0]
    if id in finished:
        return (
            f"{id} has all its tokens, so it leaves before anything else: release its table, and take it out of "
            "`running`. Go over a copy of the list: removing from it would skip the next one."
        )
    if id in back and id in want["running"]:
        return f"{id} gives up its blocks. Then its prompt fits, so it is admitted again, like any other."
    if id in back:
        return (
            f"A running request finds no free block, and {id} was admitted last: it releases its table, goes from "
            "`running` to the front of `waiting`, and grows no more. The other one tries again at once."
        )
    if id in before and name not in ORDER:
        return f"{id} runs on: it stores one token more, also if another gives up its blocks for that."
    if id in before:
        return f"{id} runs on: it leaves in the step after its last token, and gives up blocks only if it was last."
    if id in want["running"] and name not in ORDER:
        return f"{id} is admitted, and stores its whole prompt, and no more in this step."
    if id in want["running"]:
        return (
            f"{id}'s prompt fits in the free blocks when its turn comes, so it goes from the front of `waiting` to the "
            f"end of `running`, the caller's list, in the same step. {FITS}"
        )
    first = want["waiting"][0]
    because = "the first that doesn't fit ends the step" if id == first else f"{first} comes first, and doesn't fit"
    return f"{id} stays in `waiting`: {because}. {FITS}"


FITS = "Compare blocks with blocks: `blocks_for(...)` of the prompt alone with `len(pool.free_queue)`."
ORDER = {
    "running": "Take the first of `waiting`, and put it at the end of `running`: that is the order of admission.",
    "waiting": "A request that gives up its blocks arrived before those that wait: it goes to the front, `appendleft`.",
}

TASK = Task(
    reference="lessons_lib.kv_cache.block_serving:step_in_blocks",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    clear=0.8,
    known=mistakes("""
        Change the two lists in place. `running = [...]` makes another list, and the caller's stays as it was: so does
        what you return.
        - for request in [ ... running.remove(request)
        + done, running = [each for each in running if each.finished], [each for each in running if not each.finished]
        + for request in done: request.table.release()
        The request admitted last returns *all* its blocks and starts over: `release()` its table. `pool.free` alone
        leaves the table as it was.
        - last.table.release()
        or ~ last.table.release() => pool.free(last.table.blocks)
        A request with room in its last block needs no free one. Another gives up its blocks only after an `append` has
        raised OutOfBlocks.
        < running[grown].table.append() => if not pool.free_queue: raise OutOfBlocks
        """),
    about={
        **{name: about(name) for name in ORDER},
        **{(name := f"{of} of {id}"): about(name) for id in IDS for of in ("the tokens", "the number of blocks")},
        "the new blocks": "The first of `running` grows, and takes its block, first.",
        "raised OutOfBlocks": "If a running request finds no free block, catch OutOfBlocks, and let the one that was "
        "admitted last return its blocks; then try again. Append a prompt only if it fits.",
        "raised IndexError": "`running` and `waiting` may be empty, and get shorter: look before you take.",
        "raised TypeError": "`finished` is a property: read it without parentheses.",
    },
)

EXERCISE = TASK.exercise(
    id="03.3",
    title="the step, in blocks",
    hints=(
        "Write three loops, one for each point, and test each with the table in the text. The second is the hard "
        "one: the list gets shorter while you go over it, so a `for` loop over `running` won't do.",
        "Go over `running` by index, in a `while` loop that compares the index with `len(running)`. Try to append; "
        "only if that succeeds, go on to the next index. On `OutOfBlocks`, take the last request out of `running`, "
        "release its table, and put it at the front of the queue; the loop then tries the same index again. If "
        "that request was the one at this index, the index is now past the end, and the loop ends by itself.",
        "The second loop: `try: running[index].table.append(); index += 1`, `except OutOfBlocks: last = "
        "running.pop(); last.table.release(); waiting.appendleft(last)`. The third: `while waiting and "
        "blocks_for(waiting[0].prompt_tokens, pool.block_size) <= len(pool.free_queue):`. The first goes over a "
        "copy: `for request in [each for each in running if each.finished]`.",
    ),
    time_limit=2.0,
)
