"""Judges 09.2, `conservative`: whether all promises together fit into the pool."""

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import a_sequence, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import Scheduler, conservative

# (block size, blocks of the pool, running, newcomer); a sequence is (prompt, cap, answer so far). Who runs holds blocks for what is computed.
CASES = (
    (4, 3, [], (4, 5, 0)),
    (4, 9, [], (4, 5, 0)),
    (4, 2, [], (4, 5, 0)),
    (4, 1, [], (4, 5, 0)),
    (4, 1, [], (4, 1, 0)),
    (4, 2, [], (6, 3, 0)),
    (4, 4, [(4, 5, 1)], (4, 5, 0)),
    (4, 3, [(4, 5, 1)], (4, 5, 0)),
    (4, 2, [(4, 5, 1)], (1, 1, 0)),
    (4, 4, [(5, 1, 0), (5, 1, 0)], (1, 1, 0)),
    (4, 5, [(5, 1, 0), (5, 1, 0)], (1, 1, 0)),
    (16, 9, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 18, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 17, [(13, 30, 4), (62, 60, 1)], (3, 100, 0)),
    (16, 21, [(13, 30, 4), (62, 60, 1), (3, 100, 9)], (21, 20, 0)),
    (16, 20, [(13, 30, 4), (62, 60, 1), (3, 100, 9)], (21, 20, 0)),
    (1, 10, [(3, 4, 2)], (2, 3, 0)),
    (1, 9, [(3, 4, 2)], (2, 3, 0)),
)
WAITING = (9, 20, 0)  # stands in the queue behind the newcomer


def check_conservative(attempt) -> None:
    outcomes = []
    for case in CASES:
        scheduler, newcomer = _made(*case)
        told = _told(*case)
        before = (names_of(scheduler.running), names_of(scheduler.waiting), len(scheduler.pool.free_queue))
        got = call(attempt, scheduler, newcomer, case=told)
        if before != (names_of(scheduler.running), names_of(scheduler.waiting), len(scheduler.pool.free_queue)):
            what = "your code changed the scheduler: another list of running sequences, another queue or other free blocks than before."
            raise Mistake(
                what,
                case=told,
                idea="This function only answers a question. Whoever asks does the admitting: `[*scheduler.running, sequence]` is a new list.",
            )
        outcomes.append(_as_bool(got, told))
    wanted = [_asked(conservative, case) for case in CASES]
    wrong = next((number for number, (got, want) in enumerate(zip(outcomes, wanted)) if got != want), None)
    if wrong is not None:
        case = CASES[wrong]
        promises = [blocks_for(prompt + max_tokens - 1, case[0]) for prompt, max_tokens, _ in [*case[2], case[3]]]
        what = f"the promises are {' + '.join(map(str, promises))} = {sum(promises)} block{'s' * (sum(promises) > 1)}, and the pool has {case[1]}: {wanted[wrong]}. Yours says {outcomes[wrong]}."
        raise Mistake(what, case=_told(*case), idea=_why(outcomes))


def _made(block_size, num_blocks, running, newcomer):
    scheduler = Scheduler(BlockPool(num_blocks, block_size))
    for name, (prompt, max_tokens, answered) in zip("ABCD", running):
        computed = prompt + answered - 1 if answered else 0
        sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
        sequence.blocks = scheduler.pool.allocate(min(blocks_for(computed, block_size), len(scheduler.pool.free_queue)))
        scheduler.running.append(sequence)
    wanted, behind = (
        a_sequence("N", newcomer[0], max_tokens=newcomer[1]),
        a_sequence("Z", WAITING[0], max_tokens=WAITING[1]),
    )
    scheduler.waiting.add(wanted)
    scheduler.waiting.add(behind)
    return scheduler, wanted


def _told(block_size, num_blocks, running, newcomer) -> str:
    def one(name, prompt, max_tokens, answered):
        return f"{name} (prompt {prompt}, max_new_tokens {max_tokens}, {answered} answered)"

    runs = ", ".join(one(name, *numbers) for name, numbers in zip("ABCD", running))
    return f"{num_blocks} block{'s' * (num_blocks > 1)} of {block_size}; running: {runs or 'nobody'}; may N (prompt {newcomer[0]}, max_new_tokens {newcomer[1]}) come in?"


def _as_bool(got, case: str) -> bool:
    if type(got).__name__ not in ("bool", "bool_"):
        raise Mistake(
            f"True or False should come back; yours returned {got!r}.",
            case=case,
            idea="Return the comparison: promised blocks on one side, blocks of the pool on the other.",
        )
    return bool(got)


def _asked(rule, case) -> bool:
    return bool(rule(*_made(*case)))


def _rule(
    tokens=lambda s: s.most_tokens,
    who=lambda scheduler, s: [*scheduler.running, s],
    blocks=blocks_for,
    room=lambda pool: pool.num_blocks,
    below=False,
):
    """`conservative` with one part made another way."""

    def rule(scheduler, sequence) -> bool:
        promised = sum(blocks(tokens(other), scheduler.pool.block_size) for other in who(scheduler, sequence))
        return promised < room(scheduler.pool) if below else promised <= room(scheduler.pool)

    return rule


def _rounded_once(scheduler, sequence) -> bool:
    tokens = sum(other.most_tokens for other in [*scheduler.running, sequence])
    return blocks_for(tokens, scheduler.pool.block_size) <= scheduler.pool.num_blocks


def _needed_against_free(scheduler, sequence) -> bool:
    return blocks_for(sequence.most_tokens, scheduler.pool.block_size) <= len(scheduler.pool.free_queue)


def _rest_against_free(scheduler, sequence) -> bool:
    needs = sum(
        blocks_for(other.most_tokens, scheduler.pool.block_size) - len(other.blocks)
        for other in [*scheduler.running, sequence]
    )
    return needs < len(scheduler.pool.free_queue)


WHY = (
    (lambda scheduler, sequence: True, "It says yes to everybody. Compare what is promised with what the pool has."),
    (lambda scheduler, sequence: False, "It says no to everybody, so nothing would ever run."),
    (_rule(tokens=lambda s: s.num_tokens), "You count the tokens that are known now. A promise is for the most that a sequence may ever have: `most_tokens`."),
    (_rule(tokens=lambda s: s.most_tokens + 1), "The last token of an answer is handed out and never computed, so it needs no place: prompt + max_new_tokens − 1, which is `most_tokens`."),
    (_rule(tokens=lambda s: s.max_new_tokens), "The prompt lies in the cache too: `most_tokens` counts prompt and answer."),
    (_rule(tokens=lambda s: len(s.prompt_ids)), "You count the prompts. The answers need blocks too, up to their caps: `most_tokens`."),
    (_rule(who=lambda scheduler, s: scheduler.running), "The newcomer was left out: it is not in `scheduler.running` yet, and needs its blocks as the others do."),
    (_rule(who=lambda scheduler, s: [s]), "Those who run were left out. Their promises hold until they leave."),
    (_rule(who=lambda scheduler, s: [*scheduler.running, *scheduler.waiting]), "You count those who wait behind the newcomer. Nothing is promised to them."),
    (_rounded_once, "Tokens were added up, then rounded to blocks. A block belongs to one sequence: round up for each, then add."),
    (_rule(blocks=lambda tokens, size: tokens // size), "A block that is begun counts whole: round up, with `blocks_for(tokens, block_size)`."),
    (_rule(blocks=lambda tokens, size: tokens), "These are tokens, and the pool counts blocks: `blocks_for(tokens, block_size)`."),
    (_rule(room=lambda pool: len(pool.free_queue)), "The promises of all are compared with the free blocks only. The blocks that the running ones hold are part of their promises: compare with `pool.num_blocks`."),
    (_needed_against_free, "You compare the newcomer with the blocks that are free now. Some of them are promised to those who run, and will be asked for later."),
    (_rule(room=lambda pool: len(pool.used)), "That is the number of blocks in use. The promises are compared with all blocks of the pool."),
    (_rule(below=True), "Promises that fill the pool exactly can all be kept: `<=`, not `<`."),
    (_rest_against_free, "Promises that fill the pool exactly can all be kept: what is still to come may be as much as is free."),
)  # fmt: skip


def _why(outcomes: list[bool]) -> str:
    for rule, idea in WHY:
        if outcomes == [_asked(rule, case) for case in CASES]:
            return idea
    if outcomes == [not _asked(conservative, case) for case in CASES]:
        return "Yes and no are exchanged in every case: True means that it may come in."
    return "For each running sequence and for the newcomer: `blocks_for(most_tokens, block_size)`. Add these up. They must not be more than `pool.num_blocks`."
