"""19.3, `longest_usable`: the longest cached prefix that all kinds of layers can go on from."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
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
    for index in range(len(case)) if len(case) > 1 else ():
        yield case[:index] + case[index + 1 :]
    if len(case[0][0]) > 1:
        yield [(kept[:-1], needed) for kept, needed in case]


MISTAKES = """
The longest prefix of each group alone, and of these the shortest, isn't enough: where the shortest ends, another group
may have lost its blocks.
- longest = 0
+ def alone(group):
+     fits = [n for n in range(1, len(group.is_kept) + 1)
+             if all(group.is_kept[max(0, n - group.num_needed) : n])]
+     return max(fits, default=0)
+ return min(map(alone, groups))
A hit ends where *all* groups have what they need. One is not enough.
~ if all(run >= => if any(run >=
Only the last blocks of a prefix are needed, as many as the group says. A gap before them doesn't matter.
~ min(group.num_needed, count) => count
A prefix that is shorter than what the group needs is usable if all of its blocks are kept.
~ min(group.num_needed, count) => group.num_needed
The needed blocks are next to each other, at the end of the prefix: a gap begins the count anew.
~ run + 1 if is_here else 0 => run + is_here
A group may need no block at all: a window of one token sees only itself.
~ min(group.num_needed, count) => max(1, min(group.num_needed, count))
A longer prefix may be usable even if a shorter one isn't: don't stop at the first gap.
- if all(run >=
- longest = count
+ if not all(run >= min(group.num_needed, count) for run, group in zip(runs, groups)):
+     break
+ longest = count
The longest prefix is wanted, not the shortest usable one.
~ longest = count => return count
The blocks *before* the end count: those at the beginning of the prompt aren't what a window sees.
- longest = 0
+ for count in range(len(groups[0].is_kept), 0, -1):
+     if all(all(group.is_kept[: min(count, group.num_needed)]) for group in groups):
+         return count
+ longest = 0
A state needs the copy at the very end of the prefix, not one somewhere before it.
- if all(run >=
+ runs_of = [count if g.num_needed == 1 and any(g.is_kept[:count]) else run for run, g in zip(runs, groups)]
+ if all(run >= min(group.num_needed, count) for run, group in zip(runs_of, groups)):
Too few blocks are looked at: the window needs one more.
~ run >= min(group.num_needed, count) => run >= min(group.num_needed - 1, count)
"""

TASK = Task(
    reference="lessons_lib.hybrid.cache_groups:longest_usable",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    about={"returned": "A prefix of n blocks is usable if in each group the last `num_needed` of these n are kept, or "
                       "all n if it needs more."},
    clear=0.75,
)  # fmt: skip

EXERCISE = Exercise(
    id="19.3",
    title="a prefix for all groups",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "Take one length, say 3 blocks. How do you see in the picture of the groups whether a sequence can go on "
        "behind them? Which blocks does each group look at?",
        "Try the lengths from the longest to 1. A length fits if, for each group, the slice of its last `num_needed` "
        "blocks has no gap. The slice begins at 0 if the prefix is shorter. If no length fits, the result is 0.",
        "`for n in range(len(groups[0].is_kept), 0, -1):`; `if all(all(each.is_kept[max(0, n - each.num_needed) : n]) "
        "for each in groups):`; `return n`; after the loop `return 0`.",
    ),
)
