"""What engines have in common that serve in a thread of their own: `step` waits for what they have computed."""

import queue
from collections import deque
from collections.abc import Iterator

from lessons_lib.conformance.contract import NewTokens, Params, Refused

PATIENCE = 0.2  # seconds that a `step` waits for something to return


class ThreadedEngine:
    """The contract over a queue. The engine behind it puts NewTokens there, from any thread.

    Attributes:
        arrived: what the engine has put there.
        open: the requests whose end has not been returned.
        unread: of each stream that is being read, what has arrived for it.
    """

    features: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.arrived: queue.Queue[NewTokens] = queue.Queue()
        self.open: set[str] = set()
        self.kept: list[NewTokens] = []
        self.unread: dict[str, deque[NewTokens]] = {}

    def take(self, request_id: str) -> None:
        """Note a request.

        Raises:
            Refused: its id is in use.
        """
        if request_id in self.open:
            raise Refused(f"request id {request_id!r} is being served; give every request its own id.")
        self.open.add(request_id)

    def step(self) -> list[NewTokens]:
        """What has arrived; waits a moment for the first of it."""
        new = self._without_streams(self._arrivals())
        self.open -= {event.request_id for event in new if event.finish_reason}
        return new

    def _arrivals(self) -> list[NewTokens]:
        new, self.kept = self.kept, []
        try:
            new.append(self.arrived.get(timeout=PATIENCE if self.open and not new else 0.001))
            while True:
                new.append(self.arrived.get_nowait())
        except queue.Empty:
            pass
        return [event for event in new if event.request_id in self.open]  # nothing follows an abort

    def _without_streams(self, events: list[NewTokens]) -> list[NewTokens]:
        """The events of other requests; those of streams are kept for their readers."""
        for event in events:
            if event.request_id in self.unread:
                self.unread[event.request_id].append(event)
        return [event for event in events if event.request_id not in self.unread]

    def has_unfinished(self) -> bool:
        return bool(self.open or self.kept)

    def abort(self, request_id: str) -> None:
        if request_id in self.open:
            self.open.discard(request_id)
            self.unread.pop(request_id, None)
            self.stop(request_id)

    def stop(self, request_id: str) -> None:
        """Tell the engine that a request is aborted."""
        raise NotImplementedError

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        raise NotImplementedError

    def stream(self, request_id: str, prompt_ids: list[int], params: Params) -> Iterator[int]:
        """What belongs to other requests is kept for the next `step`."""
        self.add_request(request_id, prompt_ids, params)
        unread = self.unread[request_id] = deque()
        has_ended = False
        try:
            while not has_ended and self.unread.get(request_id) is unread:
                if not unread:
                    others = self._without_streams(self._arrivals())  # first: it empties `kept`
                    self.kept += others
                    continue
                event = unread.popleft()
                has_ended = bool(event.finish_reason)
                for token in event.token_ids:
                    if self.unread.get(request_id) is not unread:
                        return  # aborted meanwhile
                    yield token
        finally:
            if self.unread.get(request_id) is unread:  # or the id is another request's by now
                del self.unread[request_id]
                if has_ended:
                    self.open.discard(request_id)
                self.abort(request_id)
