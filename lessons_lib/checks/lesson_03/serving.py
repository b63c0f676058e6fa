"""Judges 03.6, `step_in_blocks`: which requests leave, grow, give up their blocks, and are admitted."""

from collections import deque
from random import Random
from traceback import walk_tb

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_03.books import counted
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.kv_cache.block_serving import CachedRequest, step_in_blocks
from lessons_lib.kv_cache.block_table import BlockTable


class _Scene:
    """A pool, its requests, the running ones and the queue."""

    def __init__(self, num_blocks: int, running: str, waiting: str, block_size: int = 4):
        """`running`: "A 3+9 5" is a request A with a prompt of 3, an answer of 9, and 5 tokens stored, and so on,
        separated by commas. `waiting`: the same, without the tokens stored."""
        self.pool = BlockPool(num_blocks, block_size)
        self.running = [self._request(*text.split()) for text in running.split(", ") if text]
        self.waiting = deque(self._request(*text.split()) for text in waiting.split(", ") if text)
        self.requests = {request.id: request for request in [*self.running, *self.waiting]}

    def _request(self, name: str, lengths: str, stored: str = "0") -> CachedRequest:
        prompt, answer = map(int, lengths.split("+"))
        table = BlockTable(self.pool)
        table.append(int(stored))
        return CachedRequest(name, prompt, answer, table)

    def told(self) -> str:
        size = self.pool.block_size
        parts = [f"{counted(self.pool.num_blocks, 'block')} of {size}, {len(self.pool.free_queue)} free"]
        for request in self.running:
            of = f" of {request.prompt_tokens + request.answer_tokens - 1}"
            parts.append(f"{request.id} runs with {request.table.num_tokens}{of} tokens")
        if self.waiting:
            prompts = [f"{request.id} (prompt {request.prompt_tokens})" for request in self.waiting]
            parts.append(f"waiting: {', '.join(prompts)}")
        return "; ".join(parts) + "."


class _State:
    """What is compared after a step."""

    def __init__(self, scene: _Scene):
        self.running = [request.id for request in scene.running]
        self.waiting = [request.id for request in scene.waiting]
        self.tokens = {name: request.table.num_tokens for name, request in scene.requests.items()}
        self.blocks = {name: len(request.table.blocks) for name, request in scene.requests.items()}


def check_step_in_blocks(attempt) -> None:
    _check_admission(attempt)
    _check_growth(attempt)
    _check_first_come(attempt)
    _check_leaving(attempt)
    _check_last_gives_up(attempt)
    _check_gives_up_its_own(attempt)
    _check_several_give_up(attempt)
    _check_long_runs(attempt)
    _check_order_of_growth(attempt)


def _after(attempt, scene: _Scene, case: str) -> _State:
    """The state after one step of the attempt; what no step may do is named here."""
    finished = {request.id: request.table.num_tokens for request in scene.running if request.finished}
    unfinished = {request.id for request in [*scene.running, *scene.waiting]}.difference(finished)
    one_short = {
        request.id
        for request in scene.running
        if request.table.num_tokens + 1 == request.prompt_tokens + request.answer_tokens - 1
    }
    try:
        call(lambda: attempt(scene.waiting, scene.running, scene.pool), case=case)
    except OutOfBlocks as error:
        who, idea = _who_needed_it(error, scene)
        raise Mistake(f"your step let OutOfBlocks through{who}.", case=case, idea=idea) from None
    except RuntimeError as error:
        if "deque mutated" not in str(error) and "changed size" not in str(error):
            raise
        raise Mistake(
            "your code changes `waiting` while a loop goes over it, and Python stops that.",
            case=case,
            idea="Look at `waiting[0]` in a `while` loop instead.",
        ) from None
    if not all(isinstance(request, CachedRequest) for request in [*scene.running, *scene.waiting]):
        raise Mistake("`running` and `waiting` should contain requests, and nothing else.", case=case)
    state = _State(scene)
    for name, request in scene.requests.items():
        runs, waits = state.running.count(name), state.waiting.count(name)
        if name in finished and runs:
            others_left = any(other not in state.running for other in finished)
            _refuse_finished(name, state.tokens[name] - finished[name], others_left, case)
        if runs + waits > 1:
            raise Mistake(
                f"{name} is listed {runs + waits} times: `running` is {state.running}, `waiting` {state.waiting}.",
                case=case,
                idea="A request that moves from one to the other must be removed from where it was.",
            )
        if name in one_short and runs + waits == 0:
            raise Mistake(
                f"{name}'s last token was due in this step, and afterwards {name} is in neither `running` nor "
                "`waiting`.",
                case=case,
                idea="Finished requests leave at the beginning of a step. One that gets its last token in this step "
                "leaves in the next one.",
            )
        if name in unfinished and runs + waits == 0:
            raise Mistake(
                f"{name} isn't finished, but it is in neither `running` nor `waiting`.",
                case=case,
                idea="Its table holds its prompt. If you admitted it, it must be in the caller's list: append it to "
                "`running`, without making a new list first, as `running = [...]` does."
                if state.tokens[name]
                else "Take a request out of the queue only when you admit it, and put one that gives up its blocks "
                "back into the queue.",
            )
        if not runs and (state.blocks[name] or state.tokens[name]):
            what = "has left" if name in finished else "is waiting"
            raise Mistake(
                f"{name} {what}, but its table still holds {counted(state.tokens[name], 'token')} in "
                f"{counted(state.blocks[name], 'block')}.",
                case=case,
                idea="Call `release()` of its table."
                if name in finished or state.tokens[name] != 1
                else "It got a token although it had already given up its blocks: only requests in `running` grow.",
            )
    return state


def _who_needed_it(error: OutOfBlocks, scene: _Scene) -> tuple[str, str]:
    """The `append` that raised, in words, or "", and what to do."""
    at_a_prompt = (
        "Before you append a prompt, compare the blocks that it needs, `blocks_for(...)`, with the free ones, "
        "`len(pool.free_queue)`."
    )
    while_growing = (
        "If a running request finds no free block, the one that was admitted last returns its blocks; then try again."
    )
    for frame, _ in walk_tb(error.__traceback__):
        table, count = frame.f_locals.get("self"), frame.f_locals.get("count")
        for request in scene.requests.values():
            if request.table is table and table.num_tokens == 0 and count == request.prompt_tokens:
                needed = blocks_for(count, scene.pool.block_size)
                free = len(scene.pool.free_queue)
                return (
                    f", at the prompt of {request.id}: it needs {counted(needed, 'block')}, with {free} free",
                    at_a_prompt,
                )
            if request.table is table and table.num_tokens:
                return f", at the next token of {request.id}: it needs a block, and none is free", while_growing
    return "", f"Two calls can raise it. {at_a_prompt} {while_growing}"


def _refuse_finished(name: str, more: int, others_left: bool, case: str) -> None:
    """`more`: how many tokens the finished request got in this step. `others_left`: whether another one has left."""
    if more < 0:
        raise Mistake(
            f"the blocks of {name} were freed, but {name} is still in `running`.",
            case=case,
            idea="Did you ask `request.finished` after the release? It counts the tokens in the table, so it is False "
            "then. Or did you write `running = [...]`? That leaves the caller's list as it was: change it in place.",
        )
    if others_left:
        raise Mistake(
            f"{name} was finished before this step, like others that have left, but it is still in `running`.",
            case=case,
            idea="All finished requests leave in the same step. Do you remove requests from `running` while a loop "
            "goes over it? Then the loop skips the one after each. Go over a copy.",
        )
    raise Mistake(
        f"{name} had its whole answer before this step, but it "
        f"{'got one more token' if more else 'is still in `running`'}.",
        case=case,
        idea="Finished requests leave first, before the others grow.",
    )


def _compare(got: _State, want: _State, case: str, why=None) -> None:
    if (got.running, got.waiting) != (want.running, want.waiting):
        raise Mistake(
            f"after the step `running` should be {want.running} and `waiting` {want.waiting}; yours are {got.running} "
            f"and {got.waiting}.",
            case=case,
            idea=why(got, want) if why else "",
        )
    for name, tokens in want.tokens.items():
        if got.tokens[name] != tokens:
            raise Mistake(
                f"after the step {name} should hold {counted(tokens, 'token')}; it holds {got.tokens[name]}.",
                case=case,
                idea=why(got, want) if why else "",
            )


def _expected(make) -> _State:
    scene = make()
    step_in_blocks(scene.waiting, scene.running, scene.pool)
    return _State(scene)


def _one_step(attempt, make, why=None) -> None:
    """One step on a fresh scene, compared with the reference. `why`: (got, want) -> the idea to show."""
    scene = make()
    case = scene.told()
    got, want = _after(attempt, scene, case), _expected(make)
    _compare(got, want, case, why)


def _check_admission(attempt) -> None:
    def why(got, want) -> str:
        if got.running == want.running and any(got.tokens[name] == want.tokens[name] + 1 for name in got.running):
            return (
                "In the step that admits it, a request stores only its prompt. Do you append one token more, or admit "
                "before the running requests grow? It grows from the next step on."
            )
        if any(got.tokens[name] < want.tokens[name] for name in got.running):
            return "To admit a request, append its whole prompt to its table."
        return "While the prompt of the first waiting request fits in the free blocks, admit that request."

    def in_blocks(got, want) -> str:
        return "10 tokens need 3 blocks of 4. Compare blocks with blocks: `blocks_for(...)` with the free ones."

    def without_answer(got, want) -> str:
        return "Only the prompt has to fit. The length of the answer isn't known yet, so keep no blocks free for it."

    def as_many(got, want) -> str:
        if got.running == ["A"]:
            return "Admit as many as fit, not only one per step."
        if got.running == ["A", "B"]:
            return "C's prompt needs one block, and one is free: that is enough."
        if sorted(got.running) == want.running:
            return "Admit in the order of the queue, and put each new request at the end of `running`."
        return ""

    _one_step(attempt, lambda: _Scene(4, "", "A 4+9"), why)
    _one_step(attempt, lambda: _Scene(9, "", "A 10+9"), in_blocks)
    _one_step(attempt, lambda: _Scene(4, "", "A 5+30"), without_answer)
    _one_step(attempt, lambda: _Scene(4, "", "A 4+9, B 5+9, C 4+9"), as_many)
    _one_step(attempt, lambda: _Scene(4, "", ""))


def _check_growth(attempt) -> None:
    def why(got, want) -> str:
        if got.running == want.running and got.tokens.get("C", 0) == want.tokens.get("C", 0) + 1:
            return (
                "C is admitted in this step, so it stores only its prompt. Let the running requests grow before you "
                "admit."
            )
        if any(got.tokens[name] > want.tokens[name] for name in "AB"):
            return "One token per request and step."
        if "C" in got.running and "C" not in want.running and got.tokens["B"] < 5:
            return (
                "B has room in its last block, so it needs no free one and keeps its blocks. A request gives up its "
                "blocks only after an `append` has raised OutOfBlocks."
            )
        if "C" in got.running and "C" not in want.running:
            return (
                "One block was free and A needed it. Let the running requests grow before you admit: a new one must "
                "not take a block that a running one needs."
            )
        return "Each request that is still running appends one token to its table: `request.table.append()`."

    _one_step(attempt, lambda: _Scene(6, "A 3+9 5, B 3+9 7", "C 3+9"), why)
    _one_step(attempt, lambda: _Scene(4, "A 3+9 4, B 3+9 5", "C 3+9"), why)


def _check_first_come(attempt) -> None:
    def why(got, want) -> str:
        if "C" in got.running:
            return "B doesn't fit and C would. But requests are admitted first come, first served: stop at B."
        return "B's prompt needs three blocks; two are free. Leave B at the front of the queue."

    def free_ones(got, want) -> str:
        return "Compare the prompt's blocks with the free ones, `len(pool.free_queue)`." if "A" in got.running else ""

    _one_step(attempt, lambda: _Scene(3, "", "A 4+9, B 12+9, C 4+9"), why)
    _one_step(attempt, lambda: _Scene(3, "X 5+9 5", "A 5+9"), free_ones)


def _check_leaving(attempt) -> None:
    def why(got, want) -> str:
        if got.waiting and not want.waiting:
            return (
                "The blocks of finished requests are free in the same step, for running requests and for new ones. "
                "Release them first."
            )
        if got.tokens.get("C", 0) != want.tokens.get("C", 0):
            return "C is the one after two that have left. Did the loop skip it, or count it twice?"
        return "Finished requests release their tables and leave; the others grow; then new ones are admitted."

    _one_step(attempt, lambda: _Scene(6, "A 3+2 4", ""), why)
    _one_step(attempt, lambda: _Scene(6, "A 3+2 4, B 3+3 5, C 3+9 5", "D 9+9"), why)
    _one_step(attempt, lambda: _Scene(2, "A 3+1 3, B 4+1 4", ""), why)
    _one_step(attempt, lambda: _Scene(3, "A 3+9 8, B 3+2 4", ""), why)


def _check_last_gives_up(attempt) -> None:
    def which(got, want) -> str:
        if got.running[:1] != ["A"]:
            return "B needs a block, and A returned its own. The request admitted *last*, `running[-1]`, returns them."
        if "C" in got.running and got.running[:2] != ["A", "B"]:
            return "B needs a block, but C was admitted after it: the request admitted *last* returns its blocks."
        return why(got, want)

    def why(got, want) -> str:
        if got.running == ["A", "B", "C"]:
            return "No block is free, but a running request needs one. The request admitted last returns its blocks."
        if got.waiting == ["D", "C"]:
            return "C arrived before D, so it goes back to the front of the queue: `appendleft`."
        if got.tokens["A"] == want.tokens["A"] and got.tokens["B"] == 5:
            return "A has its block, and B still has room: the others grow in the same step."
        if got.running == want.running and sum(got.tokens.values()) == sum(want.tokens.values()) - 1:
            return "C has returned its blocks, so now one is free for the request that needs it: try again at once."
        if got.tokens.get("B", 0) < 5:
            return (
                "C has returned its block, which is enough for A. Try again after each request that gives up its own."
            )
        if got.tokens.get("C", 0):
            return "C has just returned its blocks. It is admitted again only when its whole prompt fits."
        return "The request admitted last returns *all* its blocks, goes to the front of the queue, and starts over."

    _one_step(attempt, lambda: _Scene(5, "A 3+9 5, B 3+9 8, C 6+9 4", "D 3+9"), which)
    _one_step(attempt, lambda: _Scene(5, "A 3+9 8, B 3+9 5, C 6+9 4", "D 3+9"), why)


def _check_gives_up_its_own(attempt) -> None:
    def why(got, want) -> str:
        if got.tokens.get("B") == 1:
            return "B has returned its own blocks, so it is waiting now and doesn't grow."
        if "A" not in got.running:
            return "B needs a block, and B was admitted last: it returns its own blocks. A keeps running."
        if want.running == ["A", "B"] and got.waiting[:1] == ["B"]:
            return (
                "B's prompt fits in the blocks that it has just returned, so it is admitted again at once. Look at the "
                "queue after all running requests have grown."
            )
        return "B needs a block, and B was admitted last: it returns its own blocks, and goes back to the queue."

    _one_step(attempt, lambda: _Scene(4, "A 3+9 5, B 8+9 8", "D 3+9", block_size=4), why)
    _one_step(attempt, lambda: _Scene(4, "A 3+9 8, B 7+9 8", ""), why)
    _one_step(attempt, lambda: _Scene(4, "A 3+9 5, B 3+9 8", "D 8+9"), why)


def _check_several_give_up(attempt) -> None:
    def why(got, want) -> str:
        if got.waiting == ["C", "B"] or got.waiting == ["C", "B", "D"]:
            return "C gave up its blocks before B did, and B arrived earlier. Put each at the very front of the queue."
        if got.tokens.get("C", 0) == 1 or got.tokens.get("B", 0) == 1:
            return "A request that has given up its blocks is waiting, so it doesn't grow in this step."
        if got.tokens.get("A", 0) < want.tokens.get("A", 0) and got.running == want.running:
            return "Once a block is free, A appends its token in the same step."
        return (
            "Each time that no block is free, the request that is last in `running` *at that moment* returns its own. "
            "Here A, the first to grow, needs a block, and C returns its own; then B needs one, and B is the last. "
            "Before the step admits any request, the queue begins with B, C."
        )

    _one_step(attempt, lambda: _Scene(5, "A 3+9 8, B 9+9 8, C 8+9 4", "D 3+9"), why)
    _one_step(attempt, lambda: _Scene(4, "A 3+19 8, B 3+19 4, C 4+19 4", "D 3+9"), why)
    _one_step(attempt, lambda: _Scene(3, "A 3+19 4, B 3+19 4, C 9+19 3", "D 9+9"), why)


def _check_long_runs(attempt) -> None:
    for seed in range(20):
        rng = Random(seed)
        size, num_blocks = rng.choice((1, 3, 4)), rng.randint(8, 14)
        lengths = [(rng.randint(1, 8), rng.randint(1, 8 * size)) for _ in range(10)]
        text = ", ".join(
            f"{name} {prompt}+{min(answer, num_blocks * size + 1 - prompt)}"
            for name, (prompt, answer) in zip("ABCDEFGHIJ", lengths)
        )
        mine, theirs = _Scene(num_blocks, "", text, size), _Scene(num_blocks, "", text, size)
        while mine.waiting or not all(request.finished for request in mine.running):
            case = mine.told()
            step_in_blocks(mine.waiting, mine.running, mine.pool)
            _compare(_after(attempt, theirs, case), _State(mine), case)


def _check_order_of_growth(attempt) -> None:
    """Counts and lists can't show the order in which requests grow; the blocks that they get can."""
    scene = _Scene(4, "A 3+9 4, B 3+9 4", "")
    case = scene.told()
    call(lambda: attempt(scene.waiting, scene.running, scene.pool), case=case)
    newest = [request.table.blocks[-1] for request in scene.running]
    if newest == [3, 2]:
        raise Mistake(
            "A and B each needed a block; B got block 2, the first in the free queue, and A got block 3.",
            case=case,
            idea="Running requests grow in order of admission, and A was admitted before B.",
        )
