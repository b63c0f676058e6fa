"""What a notebook shows of a report: the levels as a table, what is broken, and what to do next."""

from collections import Counter
from dataclasses import dataclass

from lessons_lib.conformance.capstone import PACKAGE, engine_of
from lessons_lib.conformance.driver import MakeEngine
from lessons_lib.conformance.levels import LEVELS, levels_up_to
from lessons_lib.conformance.report import BROKEN, HELD, NOT_OFFERED, SIGNS, Report, Verdict, is_reached, judge
from lessons_lib.viz.tables.table import Table
from lessons_lib.viz.words import code_as_html

MOST_TOLD = 3  # of a level's failures; the first ones often cause the others
NEXT_STEPS = {
    "answers": "Serve one request at a time: `add_request` notes it, `step` computes its next token, "
    "`has_unfinished` says whether one is left. No cache yet, if you like: compute the whole sequence in each step.",
    "batches": "Serve many at once: give up to `max_num_seqs` requests a batch slot, keep each one's keys and values, "
    "and pack what each has to compute into one row with a block-diagonal mask. Free the slot in the step in which "
    "its request ends.",
    "manners": "Refuse what makes no sense before anything changes. Then `abort` in every state, then `stream`, "
    "then a pass of the model that raises.",
    "memory": "Count the blocks: take them as a request grows, give all of them back once, preempt when none is free.",
    "sharing": "Find what was computed before by chained hashes of full blocks, and copy before you write.",
    "sampling": "Draw with a seed, and let the draw depend on the request and the position only.",
    "server": "Put it behind a URL: lesson 14 has the parts.",
}


@dataclass(frozen=True)
class Judged:
    """The report of an engine, to be shown at the end of a cell. `broken_import` says why there is none."""

    name: str
    report: Report
    broken_import: str = ""

    @property
    def next_level(self) -> str | None:
        """The first level that isn't reached, None if all of them are."""
        return next((name for name, each in self.report.verdicts.items() if not is_reached(each)), None)

    def table(self) -> Table:
        titles = {level.name: level.title for level in LEVELS}
        reached = self.report.reached
        rows = []
        for name, verdicts in self.report.verdicts.items():
            counts = Counter(each.status for each in verdicts)
            is_reached = "✓" if name in reached else "not yet"
            rows.append([name, titles.get(name, ""), is_reached, counts[HELD], counts[BROKEN], counts[NOT_OFFERED]])
        columns = ["level", "what it judges", "reached", "✓ held", "✗ broken", "– not offered"]
        return Table(columns, rows, caption=f"{self.name}: reached {', '.join(reached) or 'no level yet'}")

    def told(self) -> list[str]:
        """What is broken, up to the first level that isn't reached, and what to do next."""
        if self.broken_import:
            return [self.broken_import]
        if (level := self.next_level) is None:
            return []
        verdicts = self.report.verdicts[level]
        broken = [each for each in verdicts if each.status == BROKEN]
        failed = broken or [each for each in verdicts if each.status != HELD]
        first_of_reason: dict[str, Verdict] = {}
        for each in failed:
            first_of_reason.setdefault(each.reason, each)
        told = list(first_of_reason.values())[:MOST_TOLD]
        lines = [
            f"{SIGNS[each.status]} {each.item.name} ({each.item.where}): {each.item.sentence}.\n{each.reason}"
            for each in told
        ]
        if len(failed) > len(told):
            lines.append(f"… and {len(failed) - len(told)} more of this level. Begin with the first.")
        num_held = sum(each.status == HELD for each in verdicts)
        if broken and 2 * num_held >= len(verdicts):  # the level is under way: what to write first is written
            left = f"{len(broken)} of its {len(verdicts)} items {'is' if len(broken) == 1 else 'are'} broken."
            return [*lines, f"Level {level}: {left}"]
        return [*lines, f"Next, {level}: {NEXT_STEPS[level]}"]

    def __str__(self) -> str:
        return "\n\n".join([*([] if self.broken_import else [str(self.table())]), *self.told()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        table = "" if self.broken_import else self.table()._repr_mimebundle_()["text/html"]
        told = "".join(f"<p style='white-space:pre-line'>{code_as_html(line)}</p>" for line in self.told())
        return {"text/plain": str(self), "text/html": table + told}


def judge_size(make_engine: MakeEngine, size: str = "small", name: str = "your engine") -> Judged:
    """Try the items of a size, or of the levels up to one; `name` is what the table calls the engine."""
    return Judged(name, judge(make_engine, levels_up_to(size)))


def judge_package(size: str = "small") -> Judged:
    """Judge the engine in `my_serving` of this folder, from its files as they are now. An error in them is told."""
    try:
        make_engine = engine_of()
    except Exception as error:
        return Judged(PACKAGE, Report({}), f"✗ {PACKAGE} can't be imported: {type(error).__name__}: {error}")
    return judge_size(make_engine, size, PACKAGE)
