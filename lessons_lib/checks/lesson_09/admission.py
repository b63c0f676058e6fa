"""Checks 09.2, `conservative`: whether all promises together fit in the pool."""

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import a_sequence, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.scheduler import conservative
from lessons_lib.scheduling.stalling import Scheduler

# (block size, blocks of the pool, running, new); a sequence is (prompt, max_tokens, answer so far).
# A running sequence has blocks for its computed tokens.
CASES = (
    (4, 3, [], (4, 5, 0)),
    (4, 9, [], (4, 5, 0)),
    (4, 11, [], (4, 5, 0)),
    (4, 2, [], (4, 5, 0)),
    (4, 1, [], (4, 5, 0)),
    (4, 1, [], (4, 1, 0)),
    (4, 2, [], (6, 3, 0)),
    (4, 4, [(4, 5, 1)], (4, 5, 0)),
    (4, 5, [(4, 5, 1)], (4, 5, 0)),
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
    (4, 4, [(6, 6, 1)], (1, 1, 0)),
)
WAITING = (9, 20, 0)  # waits behind the new sequence


def check_conservative(attempt) -> None:
    outcomes = []
    for case in CASES:
        scheduler, new = _made(*case)
        told = _told(*case)
        before = (names_of(scheduler.running), names_of(scheduler.waiting), len(scheduler.pool.free_queue))
        got = call(attempt, scheduler, new, case=told)
        if before != (names_of(scheduler.running), names_of(scheduler.waiting), len(scheduler.pool.free_queue)):
            what = "your code changed the scheduler: its list of running sequences, its queue or its free blocks."
            raise Mistake(
                what,
                case=told,
                idea=(
                    "This function only answers a question; its caller does the admitting. `[*scheduler.running, "
                    "sequence]` is a new list."
                ),
            )
        outcomes.append(_as_bool(got, told))
    wanted = [_asked(conservative, case) for case in CASES]
    wrong = next((number for number, (got, want) in enumerate(zip(outcomes, wanted)) if got != want), None)
    if wrong is not None:
        case = CASES[wrong]
        promises = [blocks_for(prompt + max_tokens - 1, case[0]) for prompt, max_tokens, _ in [*case[2], case[3]]]
        total = f"{sum(promises)} block{'s' * (sum(promises) > 1)}"
        added = (
            f"the promises are {' + '.join(map(str, promises))} = {total}"
            if len(promises) > 1
            else f"the promise is {total}"
        )
        what = (
            f"{added}, and the pool has {case[1]}, so the function should return {wanted[wrong]}; "
            f"yours returned {outcomes[wrong]}."
        )
        raise Mistake(what, case=_told(*case), idea=_why(outcomes))
    _check_nothing_else(attempt)


def _check_nothing_else(attempt) -> None:
    """The rule is about promised blocks: neither the watermark nor the batch slots matter."""
    case = (4, 4, [(4, 5, 1)], (4, 5, 0))
    for limits, told, idea in (
        (
            {"watermark": 1},
            " The watermark is 1.",
            "The watermark belongs to `optimistic`. Here the promises cover all that the sequences may need, so no "
            "further blocks are kept free.",
        ),
        (
            {"max_num_seqs": 1},
            " A has the only batch slot.",
            "This rule is about blocks only. Whether a batch slot is free is checked by its caller.",
        ),
    ):
        scheduler, new = _made(*case, **limits)
        got = call(attempt, scheduler, new, case=_told(*case) + told)
        if not _as_bool(got, _told(*case)):
            what = (
                "the promises are 2 + 2 = 4 blocks, and the pool has 4, so the function should return True; yours "
                "returned False."
            )
            raise Mistake(what, case=_told(*case) + told, idea=idea)


def _made(block_size, num_blocks, running, new, **limits):
    scheduler = Scheduler(BlockPool(num_blocks, block_size), **limits)
    for name, (prompt, max_tokens, answered) in zip("ABCD", running):
        computed = prompt + answered - 1 if answered else 0
        sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
        sequence.blocks = scheduler.pool.allocate(min(blocks_for(computed, block_size), len(scheduler.pool.free_queue)))
        scheduler.running.append(sequence)
    wanted, behind = (
        a_sequence("N", new[0], max_tokens=new[1]),
        a_sequence("Z", WAITING[0], max_tokens=WAITING[1]),
    )
    scheduler.waiting.add(wanted)
    scheduler.waiting.add(behind)
    return scheduler, wanted


def _told(block_size, num_blocks, running, new) -> str:
    def one(name, prompt, max_tokens, answered):
        return f"{name} (prompt {prompt}, max_tokens {max_tokens}, answer tokens so far {answered})"

    runs = ", ".join(one(name, *lengths) for name, lengths in zip("ABCD", running))
    pool = f"{num_blocks} block{'s' * (num_blocks > 1)} of {block_size}"
    return f"{pool}; running: {runs or 'none'}; may N (prompt {new[0]}, max_tokens {new[1]}) be admitted?"


def _as_bool(got, case: str) -> bool:
    if type(got).__name__ not in ("bool", "bool_"):
        raise Mistake(
            f"the function should return True or False; yours returned {got!r}.",
            case=case,
            idea="Return the comparison of the promised blocks with the blocks of the pool.",
        )
    return bool(got)


def _asked(rule, case) -> bool:
    return bool(rule(*_made(*case)))


def _rule(
    tokens=lambda s: s.most_tokens,
    sequences=lambda scheduler, s: [*scheduler.running, s],
    blocks=blocks_for,
    room=lambda pool: pool.num_blocks,
    below=False,
):
    """`conservative` with one part changed."""

    def rule(scheduler, sequence) -> bool:
        promised = sum(blocks(tokens(other), scheduler.pool.block_size) for other in sequences(scheduler, sequence))
        return promised < room(scheduler.pool) if below else promised <= room(scheduler.pool)

    return rule


def _rounded_once(scheduler, sequence) -> bool:
    tokens = sum(other.most_tokens for other in [*scheduler.running, sequence])
    return blocks_for(tokens, scheduler.pool.block_size) <= scheduler.pool.num_blocks


def _rounded_twice(scheduler, sequence) -> bool:
    size = scheduler.pool.block_size
    blocks = sum(
        len(other.blocks) + blocks_for(other.most_tokens - other.num_computed_tokens, size)
        for other in [*scheduler.running, sequence]
    )
    return blocks <= scheduler.pool.num_blocks


def _new_known(scheduler, sequence) -> bool:
    return _promised(scheduler, scheduler.running, lambda s: s.most_tokens) + _promised(
        scheduler, [sequence], lambda s: s.num_tokens
    ) <= (scheduler.pool.num_blocks)


def _running_known(scheduler, sequence) -> bool:
    return _promised(scheduler, scheduler.running, lambda s: s.num_tokens) + _promised(
        scheduler, [sequence], lambda s: s.most_tokens
    ) <= (scheduler.pool.num_blocks)


def _promised(scheduler, sequences, tokens) -> int:
    return sum(blocks_for(tokens(sequence), scheduler.pool.block_size) for sequence in sequences)


def _needed_against_free(scheduler, sequence) -> bool:
    return blocks_for(sequence.most_tokens, scheduler.pool.block_size) <= len(scheduler.pool.free_queue)


def _rest_against_free(scheduler, sequence) -> bool:
    needs = sum(
        blocks_for(other.most_tokens, scheduler.pool.block_size) - len(other.blocks)
        for other in [*scheduler.running, sequence]
    )
    return needs < len(scheduler.pool.free_queue)


WHY = (
    (lambda scheduler, sequence: True, "It always returns True. Compare what is promised with what the pool has."),
    (lambda scheduler, sequence: False, "It always returns False, so nothing would ever run."),
    (_rule(tokens=lambda s: s.num_tokens), (
        "You count the tokens known now. A promise covers the most tokens a sequence may ever have: "
        "`most_tokens`."
    )),
    (_rule(tokens=lambda s: s.most_tokens + 1), (
        "If `most_tokens` fills its blocks exactly, you count a block too many. Do you count the last token of the "
        "answer, which is returned but never computed? Or does `// block_size + 1` stand for rounding up?"
    )),
    (_rule(tokens=lambda s: s.max_new_tokens), (
        "The prompt is in the cache too: `most_tokens` counts prompt and answer."
    )),
    (_rule(tokens=lambda s: len(s.prompt_ids)), (
        "You count only the prompts. The answers need blocks too, up to `max_tokens`: use `most_tokens`."
    )),
    (_rule(sequences=lambda scheduler, s: scheduler.running), (
        "You left out the new sequence: it isn't in `scheduler.running` yet, and needs blocks like the others."
    )),
    (_rule(sequences=lambda scheduler, s: [s]), (
        "The promises of the running sequences don't count here. They hold until these sequences finish: add them to "
        "the promise of the new one."
    )),
    (_rule(sequences=lambda scheduler, s: [*scheduler.running, *scheduler.waiting]), (
        "You count the sequences that wait behind the new one. Nothing has been promised to them."
    )),
    (_rule(sequences=lambda scheduler, s: [*scheduler.running, *scheduler.waiting, s]), (
        "You count the waiting sequences. Nothing has been promised to them, and the new one is still among them."
    )),
    (_new_known, (
        "You promise the new sequence only its known tokens. It grows like the others: use `most_tokens` for it too."
    )),
    (_running_known, (
        "You count the running sequences with the tokens known now. Each is promised blocks for its `most_tokens`."
    )),
    (_rule(blocks=lambda tokens, size: blocks_for(tokens, size) + 1), (
        "A block too many is added to each promise: `most_tokens` is already the most that a sequence can have."
    )),
    (_rule(tokens=lambda s: s.most_tokens + len(s.output_ids)), (
        "You add the answer so far to `most_tokens`, which already contains it: prompt + max_tokens − 1."
    )),
    (_rule(tokens=lambda s: s.most_tokens - s.num_computed_tokens), (
        "You leave out the tokens that are already computed. Their blocks are in the pool too: a promise covers all "
        "`most_tokens`."
    )),
    (_rule(blocks=lambda tokens, size: blocks_for(tokens, 16)), (
        "You seem to take 16 as the block size. It is `scheduler.pool.block_size`."
    )),
    (_rounded_once, (
        "You add up tokens, then round to blocks. A block belongs to one sequence: round up for each, then add."
    )),
    (_rule(blocks=lambda tokens, size: tokens // size), (
        "A partly filled block counts as a whole one: round up, with `blocks_for(tokens, block_size)`."
    )),
    (_rule(blocks=lambda tokens, size: tokens), (
        "You add up tokens, but the pool counts blocks: `blocks_for(tokens, block_size)`."
    )),
    (_rule(room=lambda pool: len(pool.free_queue)), (
        "You compare all promises with the free blocks only. The blocks that running sequences hold are part of "
        "their promises: compare with `pool.num_blocks`."
    )),
    (_needed_against_free, (
        "You compare the new sequence with the blocks that are free now. Some of those are promised to running "
        "sequences, which will need them later."
    )),
    (_rule(room=lambda pool: len(pool.used)), (
        "That is the number of blocks in use. Compare the promises with all blocks of the pool."
    )),
    (_rounded_twice, (
        "You round up the blocks a sequence has and the blocks it still needs separately. Its last block may "
        "have room left: round up `most_tokens` once."
    )),
    (_rule(below=True), "Promises that fill the pool exactly can all be kept: `<=`, not `<`."),
    (_rest_against_free, (
        "Promises that fill the pool exactly can all be kept: the blocks still needed may equal the free blocks."
    )),
)  # fmt: skip


def _why(outcomes: list[bool]) -> str:
    for rule, idea in WHY:
        if outcomes == [_asked(rule, case) for case in CASES]:
            return idea
    if outcomes == [not _asked(conservative, case) for case in CASES]:
        return "True and False are swapped in every case: True means that the sequence may be admitted."
    return (
        "Add up `blocks_for(most_tokens, block_size)` over the running sequences and the new one. The sum must "
        "not exceed `pool.num_blocks`."
    )
