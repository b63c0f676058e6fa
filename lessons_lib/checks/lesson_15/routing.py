"""15.1, `choose_replica`: the longest beginning that a replica was sent, unless that replica is too busy."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Shown, Task, Watch, mistakes
from lessons_lib.serving.router import Replica

PROMPT, OTHER = "abcdefgh", "stuvwxyz"  # blocks of the prompt, and of others
HASH = {letter: letter.encode() * 32 for letter in PROMPT + OTHER}

GIVEN = "the list `replicas`"
SAYS = "what the replicas say, (load, num_sent, number of blocks sent),"


class Case(NamedTuple):
    """The prompt's blocks; of each replica (load, num_sent, the blocks that it was sent); the limit."""

    prompt: str
    replicas: list[tuple[int, int, str]]
    limit: int


# Blocks | load/num_sent/blocks sent, of each replica | limit.
SCENES = """
ab | 3/0/ | 0
ab | 3/1/ab | 0
a | 0/0/, 0/0/a | 2
abcd | 0/0/a, 0/0/ab | 2
abcd | 0/0/stuvw, 0/0/ab | 2
abcd | 0/0/bcd, 0/0/a | 2
ab | 0/0/, 3/0/ab | 3
ab | 20/0/, 22/0/ab | 3
ab | 0/2/, 0/1/, 9/0/ab | 3
abcd | 1/0/ab, 0/0/, 9/0/abcd | 3
ab | 0/0/, 4/0/ab, 6/0/, 6/0/ | 3
 | 1/0/abc, 0/0/ | 5
"""


def cases() -> Iterator[Case]:
    for scene in SCENES.strip("\n").split("\n"):
        prompt, told, limit = scene.split("|")
        parts = (one.split("/") for one in told.split(","))
        replicas = [(int(load), int(num_sent), sent.strip()) for load, num_sent, sent in parts]
        yield Case(prompt.strip(), replicas, int(limit))
    draw = Random(5)
    for _ in range(120):
        replicas = [
            (draw.randrange(5), draw.randrange(4), draw.choice((PROMPT, PROMPT, OTHER))[: draw.randrange(5)])
            for _ in range(draw.randint(1, 5))
        ]
        yield Case(PROMPT[: draw.randrange(6)], replicas, draw.randrange(4))


def smaller(case: Case) -> Iterator[Case]:
    prompt, replicas, limit = case
    for place, (load, num_sent, sent) in enumerate(replicas):
        others = replicas[:place], replicas[place + 1 :]
        if len(replicas) > 1:
            yield Case(prompt, [*others[0], *others[1]], limit)
        for less in ((load, num_sent, sent[:-1]), (load, 0, sent), (load - 1, num_sent, sent)):
            if less != replicas[place] and less[0] >= 0:
                yield Case(prompt, [*others[0], less, *others[1]], limit)
    if prompt:
        yield Case(prompt[:-1], replicas, limit)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    made = [Replica(load, num_sent) for load, num_sent, _ in case.replicas]
    for replica, (*_, sent) in zip(made, case.replicas):
        replica.sent_blocks.add([HASH[letter] for letter in sent])
    replicas, hashes = list(made), [HASH[letter] for letter in case.prompt]
    names = {id(replica): f"replica {index}" for index, replica in enumerate(made)}

    def look() -> dict[str, Any]:
        return {
            GIVEN: [Shown(names.get(id(each), "another")) for each in replicas],
            "the list `block_hashes`": [Shown(each[:1].decode()) for each in hashes],
            SAYS: [(each.load, each.num_sent, len(each.sent_blocks)) for each in made],
        }

    def returns(got: Any) -> Any:
        index = got if isinstance(got, bool) or not hasattr(got, "__index__") else int(got)
        return Shown(f"{names[id(got)]} itself, which is no index") if id(got) in names else index

    # Through a lambda, so that the replicas, which aren't plain data, are looked at here.
    watch("`choose_replica`", lambda: attempt(hashes, replicas, case.limit), look=look, returns=returns)


def tell(case: Case) -> str:
    replicas = [
        f"replica {index}: load {load}, num_sent {num_sent}, was sent [{', '.join(sent)}]"
        for index, (load, num_sent, sent) in enumerate(case.replicas)
    ]
    return (
        f"the prompt's blocks are [{', '.join(case.prompt)}]; {'; '.join(replicas)}; imbalance_limit is {case.limit}."
    )


MISTAKES = """
A prefix cache finds nothing behind a gap. Count from the start of the prompt, and stop at the first block that the
replica wasn't sent.
- for count, block ... return len => return sum(block in replica.sent_blocks for block in block_hashes)
The replica with the longest beginning gets the request, as long as it isn't too busy. Yours looks at loads only.
= best = by_load[0]
A cached prefix isn't worth any wait: above the limit, the least loaded replica gets the request.
~ if replicas[best].load <= limit => if True
A part of the prompt helps, too: count the matched blocks up to the first missing one, even if the rest isn't there.
~ num_matched(replicas[index])) => (bool(block_hashes) and block_hashes[-1] in replicas[index].sent_blocks))
The replica that matches *most* blocks is the best one.
= best = min(by_load, key=lambda index: num_matched(replicas[index]))
Load and matched blocks aren't added up. Most blocks first; the load only decides ties, and whether it's too busy.
= best = max(range(len(replicas)), key=lambda index: num_matched(replicas[index]) - replicas[index].load)
The count starts at 0 for each replica. Yours goes on from that of the one before.
= best = max(by_load, key=lambda index: sum(map(num_matched, replicas[: index + 1])))
Blocks of other prompts don't help this one. Count only the blocks of *this* prompt.
~ num_matched(replicas[index]) => len(replicas[index].sent_blocks)
or ~ num_matched(replicas[index]) => min(len(block_hashes), len(replicas[index].sent_blocks))
Two matched blocks save more than one: compare how many match, not whether some do.
~ num_matched(replicas[index]) => num_matched(replicas[index]) > 0
Exactly at the limit isn't *more than* the limit, so the replica may still be chosen.
~ <= limit => < limit
The limit is how far the load may be *above the smallest load*: a difference, not the load itself, and not a factor.
= limit = imbalance_limit
or = limit = replicas[by_load[0]].load * imbalance_limit
The limit compares the best match's load with the *smallest* load. The largest doesn't matter.
~ if replicas[best].load <= limit => if max(each.load for each in replicas) - replicas[best].load <= imbalance_limit
The limit is about the load. `num_sent` counts requests that have ended, too.
~ replicas[best].load <= limit => replicas[best].num_sent - replicas[by_load[0]].num_sent <= imbalance_limit
The limit counts from the smallest load of all, not from the mean, and not from the first replica's.
= limit = sum(each.load for each in replicas) / len(replicas) + imbalance_limit
or = limit = replicas[0].load + imbalance_limit
If the best match is too busy, the *least loaded* replica gets the request, even if another one matches something.
- best =
+ allowed = [index for index in by_load if replicas[index].load <= limit]
+ best = max(allowed, key=lambda index: num_matched(replicas[index]))
Of two replicas that match the same number of blocks, the less loaded one is chosen.
~ max(by_load => max(range(len(replicas))
or ~ max(by_load => max(by_load[::-1]
If they match the same and have the same load, `num_sent` decides. Otherwise an idle system would send everything to
the first replica.
= by_load = sorted(range(len(replicas)), key=lambda index: replicas[index].load)
`num_sent` decides among the least loaded replicas, too, when the best match is too busy.
~ else by_load[0] => else min(range(len(replicas)), key=lambda index: replicas[index].load)
The smaller `num_sent` is preferred, not the larger.
~ , replicas[index].num_sent) => , -replicas[index].num_sent)
The load comes before `num_sent`, which only decides between equal loads.
~ (replicas[index].load, replicas[index].num_sent) => replicas[index].num_sent
Replicas that are equal in everything: the first of them.
~ sorted(range(len(replicas)) => sorted(reversed(range(len(replicas)))
Is a `return` missing?
- return best if
The caller needs the index: it looks the replica up itself.
~ return best if => return replicas[best] if
~ else by_load[0] => else replicas[by_load[0]]
A replica is always chosen. If none matches anything, it is the least loaded one.
< return best if => if not num_matched(replicas[best]): return None
A position in a sorted or filtered list isn't a position in the caller's `replicas`. Sort or filter *indices*.
- return best if => return 0
If no block is missing, the loop ends without finding a gap, and your count is None. All blocks match then.
- return len(block_hashes) => return None
Your count is the same for one matched block as for none. It's how many match, not the index of the last that does.
- for count, block ... return len
+ count = 0
+ for index, block in enumerate(block_hashes):
+     if block not in replica.sent_blocks: break
+     count = index
+ return count
Your count is the same whether all blocks match or all but the last. If all do, it is the length of the prompt; a block
at which a loop stops doesn't count.
- return len(block_hashes) => return len(block_hashes) - 1
`sent_blocks` only answers `block in replica.sent_blocks`. And a set would forget the order of the prompt's blocks: ask
for one after the other.
- for count, block ... return len => return len(set(block_hashes) & set(replica.sent_blocks))
"""
SORTED = "The caller goes on with its list, and the index is a position in it. Sort a list of indices, or a copy."
BEST = (
    "The index, from 0, of the replica that matches most blocks (ties: smaller load, smaller `num_sent`, the first). "
    "If its load is more than `imbalance_limit` above the smallest: the least loaded one."
)

TASK = Task(
    reference="lessons_lib.serving.router:choose_replica",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={
        "returned": lambda mine, want: SORTED if mine[GIVEN] != want[GIVEN] else BEST,
        GIVEN: SORTED,
        "the list `block_hashes`": "The caller still uses `block_hashes`. Read it without taking anything out.",
        SAYS: "Only choose. The balancer itself counts the request, in `Replica.begin`.",
        "raised StopIteration": "If no block is missing, `next` and `index` find nothing: `next(..., "
        "len(block_hashes))` has a default.",
        "raised IndexError": "The prompt may have no full block, and a replica all of them: don't read beyond the end "
        "of `block_hashes`.",
        "raised AttributeError": "A replica has a `load`, a `num_sent` and `sent_blocks`, which answers `block in "
        "replica.sent_blocks` and nothing else. Only choose: the balancer itself notes what it sends.",
        "raised TypeError": "Is something None where a number is needed? What does your count return if none, or all, "
        "of the blocks match?",
        "raised ValueError": "There may be a single replica, or none that matches anything. The best match may be the "
        "least loaded one.",
    },
)

EXERCISE = TASK.exercise(
    id="15.1",
    title="which replica",
    hints=(
        "Two questions, one after the other. Which replica would save the most? And is it too busy? You need two "
        "replicas for that: the best one, and the least loaded one.",
        "Write a small function that counts the blocks that a replica was sent, and stops at the first one missing. "
        "`min` and `max` take a `key`; with a tuple as the key, later elements decide ties. The best one has the most "
        "matched blocks, then the smallest load, then the smallest `num_sent`.",
        "`by_load = sorted(range(len(replicas)), key=lambda i: (replicas[i].load, replicas[i].num_sent))`. The least "
        "loaded one is `by_load[0]`. `best = max(by_load, key=lambda i: num_matched(replicas[i]))`: `max` returns the "
        "first of several equal ones. Return `best` if its load is at most `replicas[by_load[0]].load + "
        "imbalance_limit`.",
    ),
)
