"""Judges an engine: tries each item, and says which levels it has reached."""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lessons_lib.checks.sandbox import run_guarded
from lessons_lib.conformance.driver import MakeEngine, NotOffered
from lessons_lib.conformance.items import Item, Level
from lessons_lib.conformance.served import Broken

HELD, BROKEN, NOT_OFFERED = "held", "broken", "not offered"
SIGNS = {HELD: "✓", BROKEN: "✗", NOT_OFFERED: "–"}


@dataclass(frozen=True)
class Verdict:
    """What became of an item, and the reason if it isn't held."""

    item: Item
    status: str
    reason: str = ""

    def __str__(self) -> str:
        if self.status == NOT_OFFERED:
            return f"{SIGNS[self.status]} {self.item.name}: {self.reason}"
        line = f"{SIGNS[self.status]} {self.item.name}: {self.item.sentence}"
        lesson = f" ({self.item.where})" if self.status == BROKEN else ""
        return line + (f"\n    {self.reason}{lesson}" if self.reason else "")


@dataclass
class Report:
    """Of one engine: level -> the verdicts of its items."""

    verdicts: dict[str, list[Verdict]]

    @property
    def reached(self) -> list[str]:
        """The levels from the first on of which every item holds. An item that isn't offered doesn't hold, unless the
        engine has no means to show it (see `is_reached`)."""
        reached = []
        for name, verdicts in self.verdicts.items():
            if not is_reached(verdicts):
                break
            reached.append(name)
        return reached

    @property
    def broken(self) -> list[Verdict]:
        return [each for verdicts in self.verdicts.values() for each in verdicts if each.status == BROKEN]

    @property
    def held(self) -> list[Verdict]:
        return [each for verdicts in self.verdicts.values() for each in verdicts if each.status == HELD]


def is_reached(verdicts: list[Verdict]) -> bool:
    """Nothing is broken, and at least half of the items could be shown to hold."""
    held = sum(each.status == HELD for each in verdicts)
    return not any(each.status == BROKEN for each in verdicts) and 2 * held >= len(verdicts) > 0


def judge(
    make_engine: MakeEngine,
    levels: Iterable[Level],
    told: Callable[[Verdict], None] = lambda verdict: None,
    seconds: float = 60.0,
) -> Report:
    """Try the items of some levels, in order. `told` gets each verdict; an item that takes longer is broken."""
    verdicts: dict[str, list[Verdict]] = {}
    for level in levels:
        verdicts[level.name] = []
        for item in level.items:
            verdict = _try(item, make_engine, seconds)
            verdicts[level.name].append(verdict)
            told(verdict)
    return Report(verdicts)


def _try(item: Item, make_engine: MakeEngine, seconds: float) -> Verdict:
    outcome = run_guarded(lambda: item.try_on(make_engine), seconds)
    error = outcome.error
    if outcome.timed_out:
        where = outcome.stuck_calls[-1] if outcome.stuck_calls else None
        at = f" It was last seen in {where.function} ({where.file}, line {min(where.lines)})." if where else ""
        return Verdict(item, BROKEN, f"not done after {seconds:g} seconds: a loop doesn't end.{at}")
    if error is None:
        return Verdict(item, HELD)
    if isinstance(error, NotOffered | NotImplementedError):
        return Verdict(item, NOT_OFFERED, str(error))
    if isinstance(error, Broken):
        return Verdict(item, BROKEN, str(error))
    return Verdict(item, BROKEN, f"the engine raised {type(error).__name__}: {error} ({place_of(error)}).")


def place_of(error: BaseException) -> str:
    """The last line of the engine's own code that an error has passed, else the line that raised it."""
    calls = traceback.extract_tb(error.__traceback__)
    own = [each for each in calls if not {"lessons_lib", "site-packages"} & {*Path(each.filename).parts}]
    last = (own or calls)[-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])}, line {last.lineno}, in {last.name}: `{last.line}`"
