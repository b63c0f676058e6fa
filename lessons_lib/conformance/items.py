"""The items that an engine is judged by, and the levels that they make up."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from lessons_lib.conformance.driver import MakeEngine, Run

Test = Callable[[Run], None]


@dataclass(frozen=True)
class Item:
    """One thing that must hold.

    Attributes:
        name: "level.what".
        sentence: what must hold.
        lesson: where it is taught: a lesson's number, or the part of the contract that says it, such as "Engine.step".
        test: returns if it holds of an engine with these limits.
        needs: features of the contract without which it can't be tried.
        limits: of the engine that it gets, fields of `Limits`.
    """

    name: str
    sentence: str
    lesson: str
    test: Test
    needs: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)

    def try_on(self, make_engine: MakeEngine) -> None:
        """Try it on a new engine. Raises Broken if it doesn't hold, NotOffered if the engine doesn't have it."""
        with closing(Run(make_engine, **self.limits)) as run:
            run.needs(*self.needs)
            self.test(run)

    @property
    def is_in_contract(self) -> bool:
        """Whether `lesson` is a part of the contract."""
        return not self.lesson.isdigit()

    @property
    def where(self) -> str:
        """`lesson` in words: "lesson 00", or "contract: Engine.step"."""
        return f"{'contract:' if self.is_in_contract else 'lesson'} {self.lesson}"


@dataclass
class Level:
    """Items that belong together, in the order in which they are tried: what they have in common comes first."""

    name: str
    title: str
    items: list[Item] = field(default_factory=list)

    def item(self, sentence: str, lesson: str, *needs: str, **limits: int) -> Callable[[Test], Test]:
        """Makes a function an item of this level; its name is the function's. See `Item`."""

        def note(test: Test) -> Test:
            self.items.append(Item(f"{self.name}.{test.__name__}", sentence, lesson, test, needs, limits))
            return test

        return note
