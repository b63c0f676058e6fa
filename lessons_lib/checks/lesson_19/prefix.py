"""19.3, `longest_usable`: the longest cached prefix that all kinds of layers can go on from."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes, without_one
from lessons_lib.hybrid.cache_groups import CacheGroup

Case = list[tuple[str, int]]  # of each group: X for a kept block and . for another, and the blocks that it needs

# Group / group; each has a letter for a block, and how many at the end of a prefix it needs
CASES = """
XXX 3
X.X 3
... 3
XXX 3 / ... 1
XXX 3 / X.X 1
XXX 3 / ..X 2
XXX 3 / .XX 2
XXXX 4 / .XX. 2
XX.X 4 / ...X 1
XXXX 4 / X... 2
XXXX 4 / ..XX 2 / X... 1
XXXXX 5 / .XXXX 2 / .X... 1
XXXXXX 6 / ....XX 2 / ..X... 1
XXXXXX 6 / .XX.XX 2 / ..X... 1
XXXXXX 6 / .XX..X 2 / ..X..X 1
XXXXXX 6 / X..X.. 2 / X..X.. 1
XXX 3 / ... 0
XX.XXX 6 / XXXXXX 2 / .....X 1
.XX 3 / .XX 2
.X 1 / XX 2
XXXXX 9 / ..... 0 / ....X 1
X.XX.XX.XX 2 / XXX.XX.XX. 1
"""


def cases() -> Iterator[Case]:
    for line in CASES.strip().split("\n"):
        yield [(kept, int(needed)) for kept, needed in (group.split() for group in line.split("/"))]
    draw = Random(19)
    for _ in range(40):
        length = draw.randint(1, 9)
        rows = [("".join(draw.choices("X.", (4, 1), k=length)), length)] * draw.randint(0, 1)
        for needed in draw.sample(range(1, 5), draw.randint(1, 2)):
            rows.append(("".join(draw.choices("X.", (2, 1), k=length)), needed))
        yield rows


def run(attempt: Any, case: Case, watch: Watch) -> None:
    groups = [CacheGroup([letter == "X" for letter in kept], needed) for kept, needed in case]
    watch("`longest_usable`", attempt, groups)


def tell(case: Case) -> str:
    told = "; ".join(f"{kept} needs {needed}" for kept, needed in case)
    return f"{told}. (X is a block that is kept. A number says how many at the end of a prefix are needed.)"


def smaller(case: Case) -> Iterator[Case]:
    yield from without_one(case)
    if len(case[0][0]) > 1:
        yield [(kept[:-1], needed) for kept, needed in case]


def broken(seen: dict[str, Any], want: dict[str, Any]) -> str:
    """What a group lacks after the prefix that was returned."""
    count = seen["returned"]
    for kept, needed in want["case"] if isinstance(count, int) else ():
        gap = kept.find(".", max(0, count - needed), count)
        if gap >= 0:
            return f"A prefix of {count} isn't usable: the group {kept} needs its block {gap}, which isn't kept."
    return "A prefix is usable if in each group the last `num_needed` of its blocks are kept, or all if it needs more."


MISTAKES = """
The longest prefix of each group alone, and of these the shortest, isn't enough: where the shortest ends, another group
may have lost its blocks.
- for count
+ if len(groups) > 1:
+     return min(longest_usable([group]) for group in groups)
+ ...
A prefix is usable only if *all* groups have what they need. One isn't enough.
~ if all(all => if any(all
Only the last blocks of a prefix are needed, as many as the group says. A gap before them doesn't matter.
~ max(0, count - group.num_needed) => 0
A prefix that is shorter than what the group needs is usable if all of its blocks are kept.
~ if all(all( => if all(group.num_needed <= count and all(
The needed blocks are next to each other, at the end of the prefix: a gap begins the count anew.
~ all(group.is_kept[max(0, count - group.num_needed) : => min(group.num_needed, count) <= sum(group.is_kept[:
A group may need no block at all: a window of one token sees only itself.
~ max(0, count - group.num_needed) => max(0, count - (group.num_needed or 1))
A longer prefix may be usable even if a shorter one isn't: don't stop at the first gap.
~ range(len(groups[0].is_kept), 0, -1) => range(1, len(groups[0].is_kept) + 1)
~ if all => if not all
~ return count => return count - 1
~ return 0 => return count
The longest prefix is wanted, not the shortest usable one.
~ range(len(groups[0].is_kept), 0, -1) => range(1, len(groups[0].is_kept) + 1)
Return how many blocks, not the index of the last one.
~ return count => return count - 1
All blocks together may be usable, too: begin with that length.
~ range(len(groups[0].is_kept), => range(len(groups[0].is_kept) - 1,
The blocks *before* the end count: those at the beginning of the prompt aren't what a window sees.
~ max(0, count - group.num_needed) : count => : min(count, group.num_needed)
A state needs the copy at the very end of the prefix, not one somewhere before it.
~ all(group.is_kept[max(0, => (any if group.num_needed == 1 else all)(group.is_kept[max(0, group.num_needed != 1 and
Too few blocks are looked at: the group needs one more.
~ count - group.num_needed) => count - group.num_needed + 1)
"""

TASK = Task(
    reference="lessons_lib.hybrid.cache_groups:longest_usable",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={"returned": broken},
    clear=0.75,
)

EXERCISE = TASK.exercise(
    id="19.3",
    title="a prefix for all groups",
    hints=(
        "Take one length, say 3 blocks. How do you see in the picture of the groups whether a sequence can go on "
        "behind them? Which blocks does each group look at?",
        "Try the lengths from the longest to 1. A length fits if, for each group, the slice of its last `num_needed` "
        "blocks has no gap. The slice begins at 0 if the prefix is shorter. If no length fits, the result is 0.",
        "`for n in range(len(groups[0].is_kept), 0, -1):`; `if all(all(each.is_kept[max(0, n - each.num_needed) : n]) "
        "for each in groups):`; `return n`; after the loop `return 0`.",
    ),
)
