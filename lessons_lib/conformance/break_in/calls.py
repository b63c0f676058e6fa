"""What a test called before it failed, in a few words: the case that its message shows."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from lessons_lib.conformance.contract import NewTokens

MOST_SHOWN = 10
Call = tuple[str, Any, list[NewTokens]]  # method, id of the request, what a step returned


class Calls:
    """The calls of the engine that a test used last, in order: `made`. `has_aborted`: a request, on any engine."""

    def __init__(self) -> None:
        self.made: list[Call] = []
        self.has_aborted = False

    def noted_of(self, make_engine: Callable[..., Any]) -> Callable[..., Any]:
        def making(**limits: int) -> Any:
            engine, made = make_engine(**limits), list[Call]()
            for name in ("add_request", "step", "abort"):
                setattr(engine, name, self._noted(name, getattr(engine, name), made))
            return engine

        return making

    def _noted(self, name: str, method: Callable[..., Any], made: list[Call]) -> Callable[..., Any]:
        def noting(*args: Any, **named: Any) -> Any:
            self.made = made
            request_id = args[0] if args else named.get("request_id")
            self.has_aborted |= name == "abort" and request_id in [each for _, each, _ in made]
            returned = method(*args, **named)
            made.append((name, request_id, returned or []))
            return returned

        return noting

    def aborts(self) -> list[int]:
        """Which calls are aborts."""
        return [index for index, (name, *_) in enumerate(self.made) if name == "abort"]

    def served(self, calls: slice) -> list[str]:
        """The requests that got tokens in some of the calls, in order."""
        return [event.request_id for *_, events in self.made[calls] for event in events if event.token_ids]

    def __str__(self) -> str:
        """As the end of a sentence; nothing if there was no call."""
        all_told = [
            each + (f", {n} times" if (n := len(list(same))) > 1 else "")
            for each, same in groupby(_told(*call) for call in self.made)
        ]
        shown, last = [], ""
        for index, each in enumerate(all_told):
            if not MOST_SHOWN / 2 <= index < len(all_told) - MOST_SHOWN / 2 or "abort of" in (each + last):
                shown.append(each)
            elif shown[-1] != "…":
                shown.append("…")
            last = each
        return f". Until then: {'; '.join(shown)}" if shown else ""


def _told(name: str, request_id: Any, events: list[NewTokens]) -> str:
    if name != "step":
        return f"{name} of {request_id!r}"
    told = [f"{each.request_id!r} {each.token_ids} {each.finish_reason or ''}".rstrip() for each in events]
    return f"step gave {' and '.join(told) or 'nothing'}"
