"""The checks of the engines of lesson 17: the items of their levels, up to the first that doesn't hold."""

from collections.abc import Callable
from pathlib import Path

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.conformance.capstone import PACKAGE
from lessons_lib.conformance.driver import MakeEngine, NotOffered
from lessons_lib.conformance.items import Item
from lessons_lib.conformance.levels import levels_up_to
from lessons_lib.conformance.report import place_of
from lessons_lib.conformance.served import Broken, BrokenRule


def check_up_to(last: str) -> Callable[[MakeEngine], None]:
    """A check that tries the items of the levels up to one, or up to the last of a size.

    Raises:
        Mistake: an item is broken, or too few of a level can be shown to hold.
        NotImplementedError: no item of the first level can be tried.
    """

    def check(make_engine: MakeEngine) -> None:
        for level in levels_up_to(last):
            missing = [reason for item in level.items if (reason := _not_offered(item, make_engine))]
            if level.name == "answers" and len(missing) == len(level.items):
                raise NotImplementedError(missing[0])
            if 2 * len(missing) > len(level.items):
                raise Mistake(
                    f"{len(missing)} of the {len(level.items)} items of level `{level.name}` can't be shown to hold.",
                    case=missing[0],
                    idea="Write what is missing; `judge_package()` lists it.",
                )

    return check


def _not_offered(item: Item, make_engine: MakeEngine) -> str:
    """Try an item; "" if it holds, else what the engine doesn't offer."""
    current_case.text = f"{item.name}: {item.sentence}"
    try:
        item.try_on(_checked(make_engine))
    except Broken as error:
        idea = "" if isinstance(error, BrokenRule) else _where(item)
        raise Mistake(f"`{item.name}` is broken. {item.sentence}.", case=str(error), idea=idea) from error
    except NotOffered as error:
        return f"{item.name}: {error}"
    except (Mistake, NotImplementedError):
        raise
    except Exception as error:
        if PACKAGE not in (place := place_of(error)):  # of a cell, `check` names the line
            raise
        what = f"your engine raised {type(error).__name__}: {error}"
        raise Mistake(what, case=current_case.text, idea=f"It was in {place}.") from None
    return ""


def _where(item: Item) -> str:
    """What to read about an item."""
    if item.is_in_contract:
        return f"The contract says it: read `{item.lesson}` in `lessons_lib/conformance/contract.py`."
    return f"Lesson {item.lesson} is about this."


def _checked(make_engine: MakeEngine) -> MakeEngine:
    """`make_engine`, which must return an engine."""

    def made(*arguments: object) -> object:
        try:
            engine = make_engine(*arguments)
        except SyntaxError as error:  # of a file that `make_engine` imports
            raise Mistake(
                f"line {error.lineno} of {Path(error.filename or '').name} can't be read: {error.msg}.",
                case=(error.text or "").strip(),
                idea="Mend it in the file. Your cell can stay as it is.",
            ) from error
        if not hasattr(engine, "add_request"):
            raise Mistake(
                f"`make_engine` returned {type(engine).__name__}, which has no `add_request`.",
                idea="Return your engine: `return engine_of('my_serving')(model, limits, tokenizer)`.",
            )
        return engine

    return made
