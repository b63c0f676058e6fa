"""What a test called before it failed, in a few words: the case that its message shows."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

from lessons_lib.conformance.contract import NewTokens

MOST_SHOWN = 10


class Calls:
    """The calls of the engine that a test used last, with what its steps returned.

    Attributes:
        told: those calls, in words.
        early: requests that got tokens before they were aborted.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self.early: list[str] = []

    def noted_of(self, make_engine: Callable[..., Any]) -> Callable[..., Any]:
        def making(**limits: int) -> Any:
            engine, told, served, early = make_engine(**limits), list[str](), set[str](), list[str]()
            for name in ("add_request", "step", "abort"):
                setattr(engine, name, self._noted(name, getattr(engine, name), told, served, early))
            return engine

        return making

    def _noted(
        self, name: str, method: Callable[..., Any], told: list[str], served: set[str], early: list[str]
    ) -> Callable[..., Any]:
        def noting(*args: Any, **named: Any) -> Any:
            self.told, self.early = told, early
            returned = method(*args, **named)
            if name == "step":
                told.append(f"step gave {_events(returned)}")
                served.update(event.request_id for event in returned if event.token_ids)
            else:
                request_id = args[0] if args else named.get("request_id")
                told.append(f"{name} of {request_id!r}")
                if name == "abort" and request_id in served:
                    early.append(request_id)
            return returned

        return noting

    def __str__(self) -> str:
        """As the end of a sentence; nothing if there was no call."""
        all_told = [each + (f", {n} times" if (n := len(list(same))) > 1 else "") for each, same in groupby(self.told)]
        shown, last = [], ""
        for index, each in enumerate(all_told):
            if not MOST_SHOWN / 2 <= index < len(all_told) - MOST_SHOWN / 2 or "abort of" in (each + last):
                shown.append(each)
            elif shown[-1] != "…":
                shown.append("…")
            last = each
        return f". Until then: {'; '.join(shown)}" if shown else ""


def _events(events: list[NewTokens]) -> str:
    told = [f"{each.request_id!r} {each.token_ids} {each.finish_reason or ''}".rstrip() for each in events]
    return " and ".join(told) or "nothing"
