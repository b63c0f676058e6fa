"""What a test called before it failed, in a few words: the case that its message shows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lessons_lib.conformance.contract import NewTokens

MOST_SHOWN = 10


@dataclass
class Seen:
    """The calls of one engine.

    Attributes:
        told: they, and what the steps returned, in words.
        served: requests that got tokens, in order.
        aborted: requests that were aborted.
        early: those of them that had got tokens before.
        later: requests that got tokens after the first abort.
    """

    told: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)


class Calls:
    """The calls of the engine that a test used last: `seen`."""

    def __init__(self) -> None:
        self.seen = Seen()

    def noted_of(self, make_engine: Callable[..., Any]) -> Callable[..., Any]:
        def making(**limits: int) -> Any:
            engine, seen = make_engine(**limits), Seen()
            for name in ("add_request", "step", "abort"):
                setattr(engine, name, self._noted(name, getattr(engine, name), seen))
            return engine

        return making

    def _noted(self, name: str, method: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
        def noting(*args: Any, **named: Any) -> Any:
            self.seen = seen
            returned = method(*args, **named)
            if name == "step":
                seen.told.append(f"step gave {_events(returned)}")
                served = [event.request_id for event in returned if event.token_ids]
                seen.served += served
                seen.later += served if seen.aborted else []
            else:
                request_id: Any = args[0] if args else named.get("request_id")
                seen.told.append(f"{name} of {request_id!r}")
                if name == "abort":
                    seen.aborted.append(request_id)
                    seen.early += [request_id] if request_id in seen.served else []
            return returned

        return noting

    def __str__(self) -> str:
        """As the end of a sentence; nothing if there was no call."""
        all_told = [
            each + (f", {n} times" if (n := len(list(same))) > 1 else "") for each, same in groupby(self.seen.told)
        ]
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
