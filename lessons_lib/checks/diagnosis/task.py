"""`Task`: judges an answer by its reference, and names the known mistake whose behavior is the answer's."""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lessons_lib.checks.diagnosis.mistakes import Known
from lessons_lib.checks.diagnosis.telling import first_of, meaning, told
from lessons_lib.checks.diagnosis.watching import Differs, Step, Watch, fresh, is_tensor, same
from lessons_lib.checks.exercise import Exercise, Mistake, current_case

CLEAR = 0.4
LOOKED_AT = 6  # failing cases in which every known mistake is tried; those that never agree are left out
PATIENCE = 0.6  # seconds of computing in which these are tried, if no known mistake does all that the answer does
Failures = dict[int, Step]  # of an answer that differs from the reference: case -> the first step that does
KEPT = (
    "The same calls give something else the second time. Your code keeps something between calls or between objects: a "
    "global, a default argument, an attribute of the class. Or it draws something at random."
)


@dataclass(eq=False)
class Task:
    """What an exercise asks for, and what learners get wrong.

    Attributes:
        reference: "module:name" of the reference code.
        cases: function () -> the cases, smallest first; anything that `run` takes.
        run: function (answer, case, watch): does what the case says, through `watch`. It gets a copy of the case.
        tell: function (case) -> the case in words.
        known: the mistakes.
        about: what a difference means if no mistake is recognised: from what is seen, such as "table.blocks", or
            "raised OutOfBlocks", to a sentence, or to a function of what is seen and what should be, which makes one.
            The latter has the case, too: `want["case"]`.
        smaller: function (case) -> smaller cases, in the order in which they are tried.
        facts: function (case) -> what sentences may mention in braces.
        refusals: names of the exceptions that the exercise asks for.
        clear: the share of the failures in which an answer does as a mistake does, from which it is named: more where
            little can be seen, such as True or False.
        probes: functions (answer) that raise `Mistake`; called once the answer agrees with the reference in all cases.
        enough: failing cases after which no more are tried, where a case takes long.
    """

    reference: str
    cases: Callable[[], Iterable[Any]]
    run: Callable[[Any, Any, Watch], None]
    tell: Callable[[Any], str]
    known: list[Known] = field(default_factory=list)
    about: dict[str, str | Callable[[dict, dict], str]] = field(default_factory=dict)
    smaller: Callable[[Any], Iterable[Any]] = lambda case: ()
    facts: Callable[[Any], dict[str, Any]] | None = None
    refusals: tuple[str, ...] = ()
    probes: tuple[Callable[[Any], None], ...] = ()
    clear: float = CLEAR
    enough: int | None = None

    @cached_property
    def right(self) -> Any:
        """The reference."""
        module, name = self.reference.split(":")
        return getattr(importlib.import_module(module), name)

    @cached_property
    def all_cases(self) -> list[Any]:
        return list(self.cases())

    @cached_property
    def wanted(self) -> list[list[Step]]:
        """What the reference does in each case."""
        return [self.steps_of(case) for case in self.all_cases]

    @cached_property
    def wrong(self) -> "list[Wrong]":
        """The known mistakes. What they do is computed as far as it is asked for, and kept."""
        return [Wrong(self, known) for known in self.known]

    def __call__(self, attempt: Any) -> None:
        """Judge an answer.

        Raises:
            Mistake: it is wrong.
            Exception: what the answer raised, if no known mistake explains it.
        """
        failures, tried = self.failures_of(attempt)
        known = self.named(failures, tried) if failures else None
        if known is None or known.likeness(failures, tried) < 1:
            self._refuse_state(attempt, failures, tried)
        if failures:
            raise self._explained(attempt, failures, known)
        for probe in self.probes:
            probe(attempt)

    def exercise(self, id: str, title: str, hints: tuple[str, ...], **others: Any) -> Exercise:
        """The exercise that this task judges."""
        return Exercise(id, title, self.reference, self, hints, **others)

    def failures_of(self, attempt: Any) -> tuple[Failures, int]:
        """Where an answer differs from the reference, and how many cases were tried."""
        failures: Failures = {}
        tried = 0
        for case, wanted in zip(self.all_cases, self.wanted):
            current_case.text = self.tell(case)
            try:
                failure = self.failure(attempt, case, wanted)
            except NotImplementedError:
                if not failures:
                    raise
                break  # one method is wrong, and another isn't written yet: the first one is told
            if failure:
                failures[tried] = failure
            tried += 1
            if len(failures) == self.enough:
                break
        return failures, tried

    def steps_of(self, case: Any) -> list[Step]:
        """What the reference does in a case."""
        watch = Watch(self.refusals)
        self.run(self.right, fresh(case), watch)
        return watch.steps

    def failure(self, attempt: Any, case: Any, wanted: list[Step]) -> Step | None:
        """The first step in which an answer differs from the reference; None if it doesn't."""
        watch = Watch(self.refusals, wanted)
        try:
            self.run(attempt, fresh(case), watch)
        except Differs:
            return watch.steps[-1]
        except NotImplementedError:
            raise
        except Exception as error:  # noqa: BLE001 - what the answer returned can't be used
            return Step("its result is used", {"raised": watch.name_of(error)}, error, place=len(watch.steps))
        if len(watch.steps) < len(wanted):
            return Step(wanted[len(watch.steps)].done, {}, place=len(watch.steps))
        return None

    def named(self, failures: Failures, tried: int) -> "Wrong | None":
        """The known mistake that fails where the answer does, and in the same way; None if none is near. Only the first
        cases count, as many as were tried. One that does in all cases what the answer does ends the search.

        A failure that many mistakes have in common says little, so it counts less.
        """
        current_case.begins()  # the time that this takes isn't the answer's
        first = sorted(failures)[:LOOKED_AT]
        near = []
        for each in self.wrong:
            if each.does(first[0], failures[first[0]]):
                if each.is_it(failures, tried):
                    return each
                near.append(each)
        if not any(all(each.does(index, failures[index]) for index in first) for each in near):
            tries = within(PATIENCE, self.wrong)
            near = [each for each in tries if any(each.does(index, failures[index]) for index in first)]
        near = [each for each in within(PATIENCE, near) if each.likeness(failures, tried)]
        weights = {}
        for index, step in failures.items():
            kinds = {each.known.why for each in near if each.does(index, step)}
            weights[index] = 1 / max(1, len(kinds))
        likeness = {each: each.likeness(failures, tried, weights) for each in near}
        likely = [each for each in near if likeness[each] > self.clear]
        # With two mistakes at once, each of them explains a part of the failures, and fails nowhere else.
        parts = [each for each in near if self.clear == CLEAR and each.explains(failures, tried)]
        return max(likely or parts, key=likeness.__getitem__, default=None)

    def _refuse_state(self, attempt: Any, failures: Failures, tried: int) -> None:
        """Each case again, in the reverse order."""
        for index in range(tried)[::-1]:
            case, wanted, before = self.all_cases[index], self.wanted[index], failures.get(index)
            current_case.text = self.tell(case)
            again = self.failure(attempt, case, wanted)
            if again is None if before else again:
                shown = again or before
                what = self._told(shown, wanted)
                raise Mistake(f"{'the second time, ' if again else 'the first time, '}{what}", self.tell(case), KEPT)

    def _told(self, step: Step, wanted: list[Step]) -> str:
        return told(step, wanted[min(step.place, len(wanted) - 1)], self.refusals, len(wanted) == 1)

    def _explained(self, attempt: Any, failures: Failures, known: "Wrong | None") -> BaseException:
        """The mistake, in the smallest case: what came, what was expected, and why."""
        index = next(index for index in sorted(failures) if known is None or known.does(index, failures[index]))
        case = self.shrunk(attempt, self.all_cases[index], known.attempt if known else None)
        wanted, text = self.steps_of(case), self.tell(case)
        current_case.text = text
        step = self.failure(attempt, case, wanted)
        if step is None:  # it isn't the same twice
            return Mistake("your code gives something else each time.", text, KEPT)
        want = wanted[min(step.place, len(wanted) - 1)]
        if isinstance(step.error, Mistake) and known is None:
            return Mistake(step.error.what, step.error.case or text, step.error.idea)
        is_accident = step.error is not None and step.seen.get("raised") not in self.refusals
        if (
            known is None
            and is_accident
            and "raised" not in want.seen
            and f"raised {type(step.error).__name__}" not in self.about
        ):
            return step.error
        why = known.known.why if known else self._about(step, want, case)
        if known and self.facts:
            why = why.format_map(self.facts(case))
        mistake = Mistake(told(step, want, self.refusals, len(wanted) == 1), text, why)
        mistake.__context__ = step.error
        return mistake

    def _about(self, mine: Step, want: Step, case: Any) -> str:
        name, meant = first_of(mine, want), meaning(mine, want)
        raised = (f"raised {type(mine.error).__name__}", f"should raise {want.seen.get('raised')}")
        if name == "raised" and raised[1] in self.about:
            return str(self.about[raised[1]])  # says more than that another exception is expected
        keys = (*raised, name) if name in ("returned", "raised") else (name, raised[1])
        about = next((self.about[key] for key in keys if key in self.about), "")
        are_tensors = is_tensor(mine.seen.get(name)) and is_tensor(want.seen.get(name))
        if isinstance(about, str) or (meant and not are_tensors):
            return meant or str(about)
        return about(mine.seen, want.seen | {"case": case}) or meant

    def shrunk(self, attempt: Any, case: Any, mistaken: Any = None) -> Any:
        """The smallest case in which an answer fails, and does so as the mistaken one, if there is one."""
        for smaller in self.smaller(case):
            wanted = self.steps_of(smaller)
            mine = self.failure(attempt, smaller, wanted) if wanted else None
            if mine and (mistaken is None or alike(self.failure(mistaken, smaller, wanted), mine)):
                return self.shrunk(attempt, smaller, mistaken)
        return case


class Wrong:
    """A known mistake, and what it does."""

    def __init__(self, task: Task, known: Known):
        self.task, self.known = task, known
        self._failed: dict[int, Step | None] = {}

    @cached_property
    def attempt(self) -> Any:
        return self.known.attempt(self.task.right)

    def failure(self, index: int) -> Step | None:
        """The first step in which it differs from the reference in a case; None if it doesn't."""
        if index not in self._failed:
            case, wanted = self.task.all_cases[index], self.task.wanted[index]
            self._failed[index] = self.task.failure(self.attempt, case, wanted)
        return self._failed[index]

    def does(self, index: int, step: Step) -> bool:
        """Whether it goes wrong in a case in this way."""
        return alike(self.failure(index), step)

    def is_it(self, failures: Failures, tried: int) -> bool:
        """Whether it does in every case what an answer does."""
        return all(
            self.does(index, failures[index]) if index in failures else self.failure(index) is None
            for index in range(tried)
        )

    def explains(self, failures: Failures, tried: int) -> bool:
        """Whether an answer goes wrong in the same way wherever it does."""
        own = {index: self.failure(index) for index in range(tried)}
        return all(step is None or (index in failures and alike(failures[index], step)) for index, step in own.items())

    def likeness(self, failures: Failures, tried: int, weights: dict[int, float] | None = None) -> float:
        """Of the cases in which it or an answer fails, the share in which both do the same; 1 if in all."""
        weights = weights or {}
        agreed = sum(weights.get(index, 1.0) for index, step in failures.items() if self.does(index, step))
        others = sum(weights.get(index, 1.0) for index, step in failures.items() if not self.does(index, step))
        only_it = [index for index in range(tried) if index not in failures and self.failure(index) is not None]
        others += len(only_it) / max(1, len(only_it) + len(failures))
        return agreed / (agreed + others) if agreed else 0.0


def without_one(items: list[Any]) -> Iterator[list[Any]]:
    """Lists that lack one of the elements, if there is more than one."""
    return (items[:index] + items[index + 1 :] for index in range(len(items)) if len(items) > 1)


def within(seconds: float, wrong: "list[Wrong]") -> "Iterator[Wrong]":
    """As many of the mistakes as can be tried in a time; what they do is kept for the next answer."""
    began = time.process_time()
    for each in wrong:
        yield each
        if time.process_time() - began > seconds:
            return


def alike(one: Step | None, other: Step) -> bool:
    return one is not None and one.place == other.place and same(one.seen, other.seen)
