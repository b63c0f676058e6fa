"""10.2, `preempt_sequence`: the victim leaves the step and the batch, gives up its blocks, and waits again."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.checks.lesson_09.made_up import names_of
from lessons_lib.kv_cache.block_copies import SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler

SIZE = 4  # of a block
STAYS = "Only the victim's keys and values are lost. Each sequence keeps its tokens, prompt and answer, and its rank."
KEPT = ("prompt_ids", "output_ids", "arrival_time", "tier", "queue_place", "max_new_tokens", "finish_reason")


class Case(NamedTuple):
    """A moment in the middle of a step; B is the victim. See SCENES."""

    words: str
    sequences: list[str]
    extras: list[str]


# In words; the sequences, "B 5+4 b2 s1": 5 prompt tokens and 4 of its answer, two blocks, one token scheduled; "c5" are
# computed, all but the last if it doesn't say; "t1" is the tier, "@1" the arrival. Without blocks, it waits.
SCENES = """
A, B run, C, D wait; the step has scheduled a token of B | A 8+1 b2 s1, B 5+4 b2 s1, C 6, D 6
A, B run, C, D wait; no token of B is scheduled yet | A 8+1 b2, B 5+4 b2, C 6, D 6
A, B run, and nothing waits | A 8+1 b2, B 8+1 b2
strict priority; A, B and C run | A 7+2 b2 s1, B 7+2 b2 s1 t1, C 7+2 b2 s1 | strict
this step has already preempted Z | A 7+2 b2 s1, B 7+2 b2 s1 | before
5 tokens of B are computed; the step has given it a third block for 7 more | A 8+1 b2 s1, B 12+0 c5 b3 s7
A, B and C arrived at the same time | A 8+1 b2 @1, B 8+1 b2 @1, C 6 @1
strict priority; A, B run, C and D wait | A 8+1 b2, B 8+1 b2 t1, C 6, D 6 t2 | strict
B is being swapped out | A 8+1 b2 s1, B 5+4 b2 | swap
B is being swapped out; the step has scheduled 7 tokens of it | A 8+1 b2, B 12+0 c5 b3 s7 | swap
B is being swapped out; this step has already preempted Z | A 7+2 b2 s1, B 7+2 b2 s1 | swap before
A and B share block 0, their first | A 8+1 b2, B 8+1 b2 | share
"""


def cases() -> Iterator[Case]:
    """Smallest first."""
    for scene in SCENES.strip().split("\n"):
        words, told, extras = [each.strip() for each in (scene + "|").split("|")[:3]]
        yield Case(words, told.split(", "), extras.split())
    draw = Random(10)
    for _ in range(20):
        told = []
        for name in draw.choice(("ABC", "CBA", "AB", "BAC")):
            prompt, answer = draw.randint(1, 9), draw.randint(0, 5)
            computed = prompt + answer - 1 if answer else draw.randrange(prompt)
            blocks = max(1, blocks_for(computed + 1, SIZE))
            scheduled = draw.choice(("", " s1"))
            told.append(f"{name} {prompt}+{answer} c{computed} b{blocks}{scheduled} t{draw.randrange(2)}")
        extras = [each for each in ("strict", "swap", "before") if draw.random() < 0.4]
        yield Case("some run", [*told, "D 6"], extras)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    policy = StrictPriority() if "strict" in case.extras else None
    options = {"policy": policy, "swap_space": BlockPool(8, SIZE), "share_prefixes": False}
    specs = {name: dict(zip(map(kind_of, rest), rest)) for name, *rest in map(str.split, case.sequences)}
    number = sum(int(spec.get("b", "b0")[1:]) for spec in specs.values())
    scheduler, output = SwappingScheduler(PrefixCache(number, SIZE), **options), SchedulerOutput()
    sequences = {name: begin(scheduler, output, name, place, specs[name]) for place, name in enumerate(specs)}
    victim = sequences["B"]
    if "share" in case.extras:
        scheduler.pool.free(victim.blocks[:1])
        victim.blocks[0] = sequences["A"].blocks[0]
        scheduler.pool.touch(victim.blocks[:1])
    if "before" in case.extras:
        sequences["Z"] = begin(scheduler, output, "Z", 9, {"+": "7+2"})
        output.preempted.append(sequences["Z"])
    scheduler.swap_space.allocate(1)  # of another sequence
    if "swap" in case.extras:
        victim.swapped = scheduler.swap_space.allocate(blocks_for(victim.num_computed_tokens, SIZE))
        output.block_copies += [BlockCopy(SWAP_OUT, *pair) for pair in zip(victim.blocks, victim.swapped)]

    def look() -> dict[str, Any]:
        counts = {getattr(each, "id", each): count for each, count in output.num_scheduled_tokens.items()}
        known = list(sequences.values())
        seen = {f"{name}.{key}": getattr(each, key) for name, each in sequences.items() for key in KEPT}
        return seen | {
            "scheduler.running": scheduler.running,
            "scheduler.waiting": [each if each in known else Shown("a copy of B") for each in scheduler.waiting],
            "the scheduled tokens": dict(sorted(counts.items(), key=str)),
            "scheduler_output.preempted": output.preempted,
            "admitted and stalled": names_of([*output.admitted, *output.stalled]),
            "scheduler_output.block_copies": list(map(repr, output.block_copies)),
            "B.swapped": victim.swapped,
            "the blocks in use of the swap space": sorted(scheduler.swap_space.used),
            "B.blocks": victim.blocks,
            "pool.ref_count": dict(sorted(scheduler.pool.ref_count.items())),
            "the free blocks": sorted(scheduler.pool.free_queue),
            "the blocks in use": sorted(scheduler.pool.used),
            "B.num_computed_tokens": victim.num_computed_tokens,
            "scheduler.num_preempted": scheduler.num_preempted,
        }

    watch("`preempt_sequence`", attempt, scheduler, output, victim, look=look, returns=lambda got: None)


def kind_of(word: str) -> str:
    return word[0] if word[0] in "bsct@" else "+"


def begin(scheduler: Any, output: Any, name: str, place: int, spec: dict[str, str]) -> Sequence:
    """A sequence that runs, or waits if it has no blocks."""
    prompt, answer = (int(number) for number in f"{spec['+']}+0".split("+")[:2])
    sequence = Sequence(
        name,
        list(range(prompt)),
        answer + 2,
        arrival_time=float(spec.get("@", f"@{place}")[1:]),
        tier=int(spec.get("t", "t0")[1:]),
        output_ids=list(range(70, 70 + answer)),
    )
    scheduler.waiting.add(sequence)
    if "b" in spec:
        scheduler.waiting.remove(sequence)
        scheduler.running.append(sequence)
        sequence.num_computed_tokens = int(spec["c"][1:]) if "c" in spec else prompt + answer - (answer > 0)
        sequence.blocks = scheduler.pool.allocate(int(spec["b"][1:]))
    if "s" in spec:
        output.num_scheduled_tokens[sequence] = int(spec["s"][1:])
    return sequence


def tell(case: Case) -> str:
    signs = {"b": "blocks", "s": "scheduled", "c": "computed", "t": "tier", "@": "arrived at"}
    told = []
    for name, *rest in map(str.split, case.sequences):
        parts = [f"{signs[each[0]]} {each[1:]}" if each[0] in signs else f"tokens {each}" for each in rest]
        told.append(f"{name} ({', '.join(parts)})")
    extras = {
        "strict": "strict priority",
        "swap": "B's cache is being copied to `B.swapped`",
        "before": "Z is preempted",
    }
    more = [extras[each] for each in case.extras if each in extras and case.words == "some run"]
    return f"{'; '.join([case.words, *more])}. B is the victim. Blocks of 4: {', '.join(told)}."


MISTAKES = """
The forward pass would compute tokens of the victim, and write their keys to blocks that it no longer has. Take it out
of `num_scheduled_tokens`; the keys of the dict are the sequences.
- scheduler_output.num_scheduled_tokens.pop
or ~ num_scheduled_tokens.pop(victim, None) => num_scheduled_tokens.pop(victim.id, None)
A victim may or may not have been scheduled in this step. Take it out only if it's there.
~ .pop(victim, None) => .pop(victim)
With 0 tokens the victim would still be part of the batch. Take it out.
~ .num_scheduled_tokens.pop(victim, None) => .num_scheduled_tokens[victim] = 0
or - scheduler_output.num_scheduled_tokens.pop
+ if victim in scheduler_output.num_scheduled_tokens: scheduler_output.num_scheduled_tokens[victim] = 0
A step may preempt several sequences. Keep those that are in the list already, and append the victim.
~ preempted.append(victim) => preempted.insert(0, victim)
or ~ scheduler_output.preempted.append(victim) => scheduler_output.preempted = [victim]
The last one admitted isn't always the victim.
~ scheduler.running.remove(victim) => scheduler.running.pop()
The waiting queue isn't a list: it keeps its sequences in the order of the policy. Call `scheduler.waiting.add(victim)`.
~ scheduler.waiting.add(victim) => scheduler.waiting.insert(0, victim)
or ~ scheduler.waiting.add(victim) => scheduler.waiting.append(victim)
or ~ scheduler.waiting.add(victim) => scheduler.waiting.appendleft(victim)
Its rank stays, and so does its place among equals: a victim goes where it was in the order.
~ scheduler.waiting.add => victim.arrival_time, victim.queue_place = 100.0, None; scheduler.waiting.add
or ~ scheduler.waiting.add(victim) => victim.arrival_time = -1.0; scheduler.waiting.add(victim)
or ~ scheduler.waiting.add(victim) => victim.queue_place = None; scheduler.waiting.add(victim)
Another sequence needs the blocks now. Return them, `scheduler.pool.free(victim.blocks)`, before the victim forgets
them.
- scheduler.pool.free
or - scheduler.pool.free
- victim.blocks =
Leave the pool's books to the pool: `scheduler.pool.free(victim.blocks)`. Another sequence may use a block, too.
~ pool.free(victim.blocks) => pool.free_queue.extend(victim.blocks)
or - scheduler.pool.free
+ for block in victim.blocks:
+     scheduler.pool.used.discard(block)
+     scheduler.pool.ref_count.pop(block, None)
+     scheduler.pool.free_queue.append(block)
All its keys and values are lost, those of the prompt too. If tokens count as computed, attention reads whatever is in
the new blocks.
- if not victim.swapped ... victim.num_computed_tokens
or
~ victim.num_computed_tokens = 0 => victim.num_computed_tokens = min(len(victim.prompt_ids), victim.num_computed_tokens)
A swapped victim's keys and values are in the swap space, so its tokens still count as computed. If `victim.swapped` is
empty, they are lost.
~ if not victim.swapped => if True
or ~ if not victim.swapped => if victim.swapped
The tokens that this step has scheduled aren't in that count yet: `update` adds them after the step.
- scheduler_output.num_scheduled_tokens.pop => count = scheduler_output.num_scheduled_tokens.pop(victim, 0)
- if not victim.swapped ... victim.num_computed_tokens => victim.num_computed_tokens -= count
or - scheduler_output.num_scheduled_tokens.pop
+ victim.num_computed_tokens -= scheduler_output.num_scheduled_tokens.pop(victim, 0)
The swap space holds the only copy of its keys and values. Free its blocks in `scheduler.pool` only, and leave
`victim.swapped` as it is.
~ scheduler.pool.free(victim.blocks) => scheduler.release(victim)
or < if not victim.swapped => victim.swapped = []
A swapped victim waits as well: only its tokens still count as computed. Everything else is the same for both.
< scheduler_output.num_scheduled_tokens.pop => if victim.swapped: return
"""

TASK = Task(
    reference="lessons_lib.scheduling.preemption:preempt_sequence",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about={
        "the scheduled tokens": "This step computes nothing of the victim, and of the others what was scheduled.",
        "scheduler_output.preempted": "The scheduler admits no sequence in a step that preempts one, and this list is "
        "how it knows. The victim comes last in it, once. It lists sequences, not ids.",
        "scheduler.running": "The victim gives up its batch slot: take it out of `scheduler.running`, and leave the "
        "others in their order.",
        "scheduler.waiting": "The victim isn't finished, so it waits, itself and once: "
        "`scheduler.waiting.add(victim)` puts it where its rank belongs. The others still wait.",
        "pool.ref_count": "All blocks of the victim become free, full or not, and no others: "
        "`scheduler.pool.free(victim.blocks)`.",
        "B.blocks": "These blocks belong to the pool now, and soon to another sequence. If the victim kept them, it "
        "would read that sequence's keys, and free its blocks. Give it a new list: `victim.blocks = []`.",
        "B.swapped": "Leave it as it is: when B is admitted again, it says where its keys and values are.",
        "B.num_computed_tokens": "It is 0 if the cache is lost, and as before if the victim is swapped.",
        "scheduler_output.block_copies": "Your function copies nothing: swapped blocks are listed before it is called.",
        "scheduler.num_preempted": "The method that calls your function counts: the preemption would be counted twice.",
        "admitted and stalled": "The victim wasn't admitted in this step, and it doesn't stall.",
    }
    | {f"{name}.{key}": STAYS for name in "ABCDZ" for key in KEPT},
)

EXERCISE = TASK.exercise(
    id="10.2",
    title="preempt",
    hints=(
        "Follow F through the first try: preempted, waiting, admitted again. Which of its attributes still says "
        "what was true before? Then go through the two ways in which victims differ: which lines assume that "
        "nothing of it is scheduled yet?",
        "The step: take the victim out of `num_scheduled_tokens` if it is there, and append it to `preempted`. The "
        "scheduler: remove the victim from `running` and add it to `waiting`. The pool: free the "
        "victim's blocks; then it has none. The victim: without its cache, no token is computed. Its token ids "
        "stay.",
        "`scheduler_output.num_scheduled_tokens.pop(victim, None)`; `scheduler_output.preempted.append(victim)`; "
        "`scheduler.running.remove(victim)`; `scheduler.waiting.add(victim)`; "
        "`scheduler.pool.free(victim.blocks)`; `victim.blocks = []`; `if not victim.swapped:` "
        "`victim.num_computed_tokens = 0`.",
    ),
)
