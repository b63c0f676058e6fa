"""Lesson 14: a mailbox for each stream. The engine puts tokens in and goes on; the reader takes them when it can."""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items for one reader, in the order in which they were put in.

    `put` never waits, so a slow reader can't hold up the engine. The mailbox of a stream doesn't grow without bound
    either: a request has at most `max_tokens` tokens.

    It belongs to one event loop: all calls are made in its thread.

    Attributes:
        is_closed: nothing follows.
    """

    def __init__(self) -> None:
        self._items: list[T] = []
        self._has_news = asyncio.Event()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item, and wake the reader. After `close`, nothing is added."""
        if not self.is_closed:
            self._items.append(item)
            self._has_news.set()

    def close(self) -> None:
        """Let nothing follow. Items in the mailbox can still be taken."""
        self.is_closed = True
        self._has_news.set()

    def clear(self) -> None:
        """Drop all items."""
        self._items = []

    async def take(self) -> list[T]:
        """All items that have arrived since the last call. Waits for one if there is none.

        A reader that is cancelled while it waits loses nothing.

        Returns:
            one item or more; none only if the mailbox is closed and empty.
        """
        while not self._items and not self.is_closed:
            self._has_news.clear()
            await self._has_news.wait()
        items, self._items = self._items, []
        return items
