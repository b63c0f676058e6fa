"""The items that an engine is judged by, and the levels that they make up."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lessons_lib.conformance.driver import Bench


@dataclass(frozen=True)
class Item:
    """One thing that must hold.

    Attributes:
        name: "level.what".
        sentence: what must hold.
        lesson: where it is taught: a lesson's number, or the part of the contract that says it, such as "Engine.step".
        test: returns if it holds; raises Broken if it doesn't, NotOffered if the engine doesn't have it.
    """

    name: str
    sentence: str
    lesson: str
    test: Callable[[Bench], None]

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
    """Items that belong together.

    Attributes:
        name, title: such as "memory" and "Blocks, and too few of them".
        items: in the order in which they are tried: what they have in common comes first.
    """

    name: str
    title: str
    items: list[Item] = field(default_factory=list)

    def item(self, sentence: str, lesson: str) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
        """Makes a function an item of this level; its name is the function's."""

        def note(test: Callable[[Bench], None]) -> Callable[[Bench], None]:
            self.items.append(Item(f"{self.name}.{test.__name__}", sentence, lesson, test))
            return test

        return note
