"""03.3, `step_in_blocks`: which requests leave, grow, give up their blocks, and are admitted."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_serving import CachedRequest, step_in_blocks
from lessons_lib.kv_cache.block_table import BlockTable

# Blocks, their size, the running requests and the waiting ones, and how many steps. "A 3+9 5" is a request A with a
# prompt of 3, an answer of 9, and 5 tokens stored; a waiting one has none.
Case = tuple[int, int, str, str, int]


class Scene:
    """A pool, its requests, the running ones and the queue."""

    def __init__(self, case: Case):
        num_blocks, size, running, waiting, _ = case
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
    for index in range(case[4]):
        done = "the step" if case[4] == 1 else f"step {index + 1}"
        watch(done, partial(step, scene.waiting, scene.running, scene.pool), look=scene.seen, returns=lambda _: None)
    if case == ORDER:
        watch(
            "the step", dict, look=lambda: {f"{each.id}'s new block": each.table.blocks[-1] for each in scene.running}
        )


def tell(case: Case) -> str:
    scene, size = Scene(case), case[1]
    parts = [f"{counted(scene.pool.num_blocks, 'block')} of {size}, {len(scene.pool.free_queue)} free"]
    for request in scene.running:
        parts.append(f"{request.id} runs with {request.table.num_tokens} of {request.tokens_in_the_end} tokens")
    if scene.waiting:
        parts.append("waiting: " + ", ".join(f"{each.id} (prompt {each.prompt_tokens})" for each in scene.waiting))
    return "; ".join(parts) + "."


ORDER = (4, 4, "A 3+9 4, B 3+9 4", "", 1)


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
        yield num_blocks, 4, running, waiting, 1
    yield ORDER
    for seed in range(8):
        draw = Random(seed)
        size, num_blocks = draw.choice((1, 3, 4)), draw.randint(8, 14)
        lengths = [(draw.randint(1, 8), draw.randint(1, 8 * size)) for _ in range(10)]
        requests = ((prompt, min(answer, num_blocks * size + 1 - prompt)) for prompt, answer in lengths)
        text = ", ".join(f"{name} {prompt}+{answer}" for name, (prompt, answer) in zip("ABCDEFGHIJ", requests))
        yield from steps_of((num_blocks, size, "", text, 60))


def steps_of(case: Case) -> Iterator[Case]:
    """Every third step of a long run, each as a case of its own."""
    scene = Scene(case)
    for index in range(case[4]):
        if index % 3 == 2 and (scene.waiting or scene.running):
            running = [f"{each.id} {lengths(each)} {each.table.num_tokens}" for each in scene.running]
            waiting = [f"{each.id} {lengths(each)}" for each in scene.waiting]
            yield case[0], case[1], ", ".join(running), ", ".join(waiting), 1
        step_in_blocks(scene.waiting, scene.running, scene.pool)


def lengths(request: CachedRequest) -> str:
    return f"{request.prompt_tokens}+{request.answer_tokens}"


def smaller(case: Case) -> Iterator[Case]:
    num_blocks, size, running, waiting, steps = case
    for place, text in ((3, waiting), (2, running)):
        names = text.split(", ") if text else []
        for index in range(len(names))[::-1]:
            fewer = ", ".join(names[:index] + names[index + 1 :])
            yield (num_blocks, size, fewer, waiting, steps) if place == 2 else (num_blocks, size, running, fewer, steps)


MISTAKES = """
Every finished request leaves, wherever it is in `running`. Does your loop stop early? Or does it remove requests from
the list that it goes over, and so skip the one after each? Go over a copy.
- for request in [ ... running.remove(request)
+ for request in running:
+     if request.finished:
+         request.table.release()
+         running.remove(request)
or
- for request in [ ... running.remove(request)
+ while running and running[0].finished: running.pop(0).table.release()
or
~ if request.finished] => if request.finished][:1]
A finished request returns its blocks: call `release()` of its table.
- for request in [ ... running.remove(request)
+ running[:] = [request for request in running if not request.finished]
Change the two lists in place. `running = [...]` makes another list, and the caller's stays as it was: so does what you
return.
- for request in [ ... running.remove(request)
+ done, running = [each for each in running if each.finished], [each for each in running if not each.finished]
+ for request in done: request.table.release()
or
- for request in [ ... running.append(request)
Did you ask `request.finished` after the release? It counts the tokens in the table, so it is False then.
- for request in [ ... running.remove(request)
+ for request in running:
+     if request.finished: request.table.release()
+ running[:] = [each for each in running if not each.finished]
Finished requests leave first, before the others grow and new ones are admitted.
- for request in [ ... running.remove(request)
+ pass
- while waiting and ... running.append(request)
+ ...
+ for request in [request for request in running if request.finished]:
+     request.table.release()
+     running.remove(request)
or
- while waiting and
+ for request in [request for request in running if request.finished]:
+     request.table.release()
+     running.remove(request)
+ ...
- for request in [ ... running.remove(request)
+ for each in (): pass
Finished requests leave at the beginning of a step. One that gets its last token in this step leaves in the next one.
- while waiting and
+ for request in [request for request in running if request.finished]:
+     request.table.release()
+     running.remove(request)
+ ...
No request ever leaves: a finished one returns its blocks and is removed from `running`.
- for request in [ ... running.remove(request)
+ pass
In the step that admits it, a request stores only its prompt. Let the running requests grow before you admit any.
- while waiting and ... running.append(request)
+ pass
- grown = 0
+ while waiting and blocks_for(waiting[0].prompt_tokens, pool.block_size) <= len(pool.free_queue):
+     running.append(waiting.popleft())
+     running[-1].table.append(running[-1].prompt_tokens)
+ ...
In the step that admits it, a request stores its prompt, and not one token more. It grows from the next step on.
~ append(request.prompt_tokens) => append(request.prompt_tokens + 1)
Each request that is still running appends one token to its table, and no more: `request.table.append()`.
- running[grown].table.append()
+ pass
or
~ running[grown].table.append() => running[grown].table.append(2)
Your step lets OutOfBlocks through. If a running request finds no free block, the one that was admitted last returns its
blocks; then try again.
- try: ... waiting.appendleft(last)
+ running[grown].table.append()
+ grown += 1
Another request returned its blocks. The one admitted *last* does, `running[-1]`, whichever needs one or has the most.
- last = running.pop()
+ last, grown = running.pop(0), max(grown - 1, 0)
or
~ running.pop() => running.pop(0)
or
~ running.pop() => running.pop(grown)
or
- last = running.pop()
+ last = running.pop(max(range(len(running)), key=lambda place: running[place].table.num_tokens))
The request admitted last may be the one that needs a block. Then it gives up its own: no other request does.
- last = running.pop()
+ last = running.pop(-2 if grown == len(running) - 1 > 0 else -1)
+ grown = min(grown, len(running) - 1)
No block is free, but a running request needs one: the request admitted last returns its blocks. Yours just stalls.
- last = running.pop() ... waiting.appendleft(last)
+ grown += 1
A request that gives up its blocks arrived before those that wait, so it goes back to the front: `appendleft`.
~ waiting.appendleft(last) => waiting.append(last)
The request admitted last returns *all* its blocks, goes to the front of the queue, and starts over: `release()` its
table.
- last.table.release()
It got a token although it had given up its blocks and waits: only requests in `running` grow.
- grown = 0 ... waiting.appendleft(last)
+ for request in list(running):
+     while True:
+         try: request.table.append()
+         except OutOfBlocks:
+             last = running.pop()
+             last.table.release()
+             waiting.appendleft(last)
+         else: break
A block is free now for the request that needs it: try again at once, after each request that gives up its own.
~ waiting.appendleft(last) => waiting.appendleft(last); grown += 1
or
- grown = 0 ... waiting.appendleft(last)
+ for request in list(running):
+     if request in running:
+         try: request.table.append()
+         except OutOfBlocks:
+             last = running.pop()
+             last.table.release()
+             waiting.appendleft(last)
The request that gave up its blocks is in neither `running` nor `waiting`: put it back into the queue, at the front.
- waiting.appendleft(last)
The others grow in the same step: don't stop once a request has given up its blocks.
~ waiting.appendleft(last) => waiting.appendleft(last); grown < len(running) and running[grown].table.append(); break
`pool.free` alone leaves the table as it was: `release()` empties it, its tokens too.
~ request.table.release() => pool.free(request.table.blocks)
or
~ last.table.release() => pool.free(last.table.blocks)
or
~ last.table.release() => pool.free(last.table.blocks); last.table.blocks = []
Of several that give up their blocks, the one admitted last gives up first, and the one admitted first is at the very
front of the queue: put each there as it gives up.
~ grown = 0 => grown, back = 0, 0
~ waiting.appendleft(last) => waiting.insert(back, last); back += 1
Running requests grow in order of admission: the first one takes its block first.
~ running[grown].table => running[len(running) - 1 - grown].table
A request with room in its last block needs no free one and keeps its blocks. It gives them up only after an `append`
has raised OutOfBlocks.
- running[grown].table.append()
+ if not pool.free_queue: raise OutOfBlocks
+ ...
While the prompt of the first waiting request fits in the free blocks, admit that request: yours stops too early, or
admits none.
~ while waiting and => while False and
A request that has just lost its blocks has no special rule: if its prompt fits, it is admitted again in the same step.
~ grown = 0 => grown, before = 0, len(waiting)
~ while waiting and => while len(waiting) <= before and waiting and
or
~ grown = 0 => grown, back = 0, []
~ waiting.appendleft(last) => back.insert(0, last)
- while waiting and ... running.append(request)
+ ...
+ waiting.extendleft(back[::-1])
The queue may be empty: ask `waiting` first, before you look at `waiting[0]`.
~ while waiting and => while
`finished` is a property: read it without parentheses.
~ if request.finished] => if request.finished()]
To admit a request, append its whole prompt to its table.
- request.table.append(request.prompt_tokens)
or
~ append(request.prompt_tokens) => append()
Admit as many as fit, not only one per step.
~ while waiting and => if waiting and
Admit in the order of the queue, and put each new request at the end of `running`.
~ running.append(request) => running.insert(0, request)
Take the first one of the queue: `popleft()`.
~ waiting.popleft() => waiting.pop()
A prompt that needs exactly the free blocks fits: `<=`.
~ <= len(pool.free_queue) => < len(pool.free_queue)
Before you append a prompt, compare the blocks that it needs, `blocks_for(...)`, with the free ones,
`len(pool.free_queue)`.
~ <= len(pool.free_queue) => <= pool.num_blocks
Compare blocks with blocks: `blocks_for(...)` with the free ones. A prompt's length counts tokens.
~ blocks_for(waiting[0].prompt_tokens, pool.block_size) <= => waiting[0].prompt_tokens <=
or
~ <= len(pool.free_queue) => <= len(pool.free_queue) * pool.block_size
A later one would fit. But requests are admitted first come, first served: stop at the first that doesn't fit.
- while waiting and ... running.append(request)
+ for request in list(waiting):
+     if blocks_for(request.prompt_tokens, pool.block_size) <= len(pool.free_queue):
+         waiting.remove(request)
+         request.table.append(request.prompt_tokens)
+         running.append(request)
Only the prompt has to fit. The length of the answer isn't known yet, so keep no room for it, nor for running requests.
~ blocks_for(waiting[0].prompt_tokens, => blocks_for(waiting[0].tokens_in_the_end,
or
~ blocks_for(waiting[0].prompt_tokens, => blocks_for(waiting[0].prompt_tokens + waiting[0].answer_tokens,
or
~ blocks_for(waiting[0].prompt_tokens, => blocks_for(waiting[0].prompt_tokens + 1,
or
~ <= len(pool.free_queue) => <= len(pool.free_queue) - len(running)
Its table holds its prompt, but it isn't in the caller's list: append an admitted request to `running`.
- running.append(request)
An admitted request is listed twice: take it out of the queue, with `popleft()`.
~ waiting.popleft() => waiting[0]
Take a request out of the queue only when you admit it: one that doesn't fit stays at the front.
- while waiting and
+ while waiting:
- request = waiting.popleft()
+ request = waiting.popleft()
+ if blocks_for(request.prompt_tokens, pool.block_size) > len(pool.free_queue): continue
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_serving:step_in_blocks",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "running": "Finished requests leave; the others grow, and the last one gives up its blocks whenever none is "
        "free; then new ones are admitted while the first prompt in the queue fits.",
        "waiting": "A request that gives up its blocks goes to the front of the queue; the first one is admitted "
        "first.",
    },
)

EXERCISE = Exercise(
    id="03.3",
    title="the step, in blocks",
    reference=TASK.reference,
    test=TASK,
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
