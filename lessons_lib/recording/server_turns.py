"""Lesson 14: requests on their way through a server: commands, turns of the engine's owner, mailboxes, readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from lessons_lib.engine.outputs import NewToken
from lessons_lib.recording.words import count
from lessons_lib.serving.engine_loop import EngineLoop
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import AbortRequest, AddRequest, Command, Event, NewTokens, RequestEnded
from lessons_lib.serving.owner import own_engine


@dataclass(frozen=True)
class Reader:
    """A client: after how many turns it takes its mail again, and how many tokens it reads before it leaves."""

    request: AddRequest
    pause: int = 0
    leaves_after: int | None = None


@dataclass(frozen=True)
class ServerMoment:
    """A server at one moment.

    Attributes:
        event: what has just happened, in words.
        commands: in the owner's mailbox, in order: "add A", "abort A".
        is_computing: the engine's thread makes a step.
        in_engine: requests that the engine has.
        boxes: request -> the texts of the tokens in its mailbox.
        read: request -> the texts that its client has taken, one for each token.
        ended: request -> "has left" or "has read all", of clients that have.
    """

    event: str
    commands: tuple[str, ...]
    is_computing: bool
    in_engine: tuple[str, ...]
    boxes: dict[str, tuple[str, ...]]
    read: dict[str, tuple[str, ...]]
    ended: dict[str, str]


async def record_server(engine: Any, readers: Mapping[str, Reader]) -> list[ServerMoment]:
    """Serve a reader each with lesson 14's owner and mailboxes, until the last has ended."""
    return await _Server(engine, readers).serve()


class _Server(Executor):
    """The owner's executor: a turn begins once the readers have taken what they can. So a run is always the same."""

    def __init__(self, engine: Any, readers: Mapping[str, Reader]):
        self.loop, self.readers, self.turn, self.tokenizer = EngineLoop(engine), readers, 0, engine.tokenizer
        self.commands: Mailbox[Command] = Mailbox()
        self.boxes: dict[str, Mailbox[NewToken]] = {name: Mailbox() for name in readers}
        self.waiting: list[str] = []
        self.box_texts: dict[str, list[str]] = {name: [] for name in readers}
        self.read: dict[str, list[str]] = {name: [] for name in readers}
        self.ended: dict[str, str] = {}
        self.is_computing, self.in_engine = False, tuple[str, ...]()
        self.moments: list[ServerMoment] = []

    async def serve(self) -> list[ServerMoment]:
        self.note("Nothing to do: the owner waits")
        owner = asyncio.create_task(own_engine(self.loop, self.commands, self.deliver, self))
        await asyncio.gather(*(self.client(name, reader) for name, reader in self.readers.items()))
        while self.loop.open or self.waiting:
            await asyncio.sleep(0)
        self.note("All clients have left, and the owner waits")
        self.commands.close()
        await owner
        return self.moments

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run(hops: int) -> None:
            if hops:
                asyncio.get_running_loop().call_soon(run, hops - 1)
                return
            self.turn += 1
            commands: list[Command] = args[0]
            arrived, self.waiting = self.waiting[: len(commands)], self.waiting[len(commands) :]
            gone = {command.request_id for command in commands if isinstance(command, AbortRequest)}
            added = [command.request_id for command in commands if isinstance(command, AddRequest)]
            self.in_engine = tuple(name for name in [*self.loop.open, *added] if name not in gone)
            self.is_computing = True
            self.note(f"Turn {self.turn} begins" + (f" with {', '.join(arrived)}" if arrived else ""))
            future.set_result(function(*args, **kwargs))

        run(20)
        return future

    def send(self, name: str, words: str, command: Command) -> None:
        self.waiting.append(f"{words} {name}")
        self.commands.put(command)

    def deliver(self, events: list[Event]) -> None:
        self.is_computing, self.in_engine, told = False, tuple(self.loop.open), []
        for event in events:
            if isinstance(event, NewTokens):
                for token in event.tokens:
                    self.boxes[token.request_id].put(token)
                    self.box_texts[token.request_id].append(self.tokenizer.decode([token.token]))
                told.append(f"tokens of {', '.join(dict.fromkeys(token.request_id for token in event.tokens))}")
            elif isinstance(event, RequestEnded):
                self.boxes[event.request_id].close()
                told.append(f"{event.request_id} has ended")
        self.note(f"Turn {self.turn} is over: {'; '.join(told) or 'no tokens'}")

    async def client(self, name: str, reader: Reader) -> None:
        self.send(name, "add", reader.request)
        self.note(f"{name}'s client sends a command: add {name}")
        while tokens := await self.boxes[name].take():
            self.read[name] += self.box_texts[name]
            self.box_texts[name].clear()
            self.note(f"{name}'s client takes {count(len(tokens), 'token')}")
            if reader.leaves_after is not None and len(self.read[name]) >= reader.leaves_after:
                self.send(name, "abort", AbortRequest(name))
                self.ended[name] = "has left"
                return self.note(f"{name}'s client leaves: a command to abort {name}")
            until = self.turn + reader.pause
            while self.turn < until and self.loop.open:
                await asyncio.sleep(0)
        self.ended[name] = "has read all"
        return None

    def note(self, event: str) -> None:
        boxes, read = ({name: tuple(texts) for name, texts in each.items()} for each in (self.box_texts, self.read))
        self.moments.append(
            ServerMoment(event, tuple(self.waiting), self.is_computing, self.in_engine, boxes, read, dict(self.ended))
        )
