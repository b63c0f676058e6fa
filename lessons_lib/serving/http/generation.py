"""The common part of both kinds of completion: one HTTP request, whose prompts are requests of the engine, answered in
one piece or as a stream."""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from lessons_lib import __version__
from lessons_lib.engine.outputs import NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.serving.async_engine import AsyncEngine, RequestStream
from lessons_lib.serving.http.errors import ApiError
from lessons_lib.serving.http.protocol import CompletionFields, StreamOptions
from lessons_lib.serving.http.served_model import ServedModel
from lessons_lib.serving.http.sse import DONE, EventStream, unless_gone
from lessons_lib.serving.mailbox import Mailbox
from lessons_lib.serving.messages import RequestEnded

FINGERPRINT = f"lessons_lib-{__version__}"
_serial_numbers = itertools.count()  # two clients may send the same x-request-id


@dataclass
class Generation:
    """One HTTP request while it is served.

    Attributes:
        request: as it came.
        rules_field: the field that has made `structured_outputs`, if it isn't given.
        count: tokens that a stream has told.
        prompts, params: token ids and parameters of each prompt; `prepare` finds them.
        created: when the request came, in seconds since 1970.
    """

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    prompt_field: ClassVar[str]
    limit_field: ClassVar[str] = "max_tokens"
    end_of_stream: ClassVar[bytes] = DONE

    front: AsyncEngine
    served: ServedModel
    request: Request
    body: CompletionFields
    prompts: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))
    rules_field: str | None = None
    count: int = 0

    @property
    def id(self) -> str:
        """Of the response."""
        return f"{self.id_prefix}-{self.request.headers['x-request-id']}"

    # The two kinds differ in these.

    async def prepare(self) -> None:
        """Find prompts and params.

        Raises:
            BadRequest: something can't be served as it is.
        """
        raise NotImplementedError

    def first_choices(self) -> list[dict[str, Any]]:
        """Choices before the first token of a stream, one chunk each."""
        return []

    def chunk_choices(self, index: int, prompt_index: int, tokens: list[NewToken]) -> list[dict[str, Any]]:
        """Some tokens of one completion, for a chunk each."""
        raise NotImplementedError

    def choices(self, prompt_index: int, end: RequestEnded) -> list[dict[str, Any]]:
        """The completions of one prompt, for the response."""
        raise NotImplementedError

    def more_fields(self, ends: list[RequestEnded]) -> dict[str, Any]:
        """More fields of the response than choices and usage."""
        return {}

    def count_of(self, num_tokens: int) -> int:
        """The number of these tokens that the client gets."""
        return num_tokens

    async def respond(self) -> Response:
        """Serve the request. Status and head are sent once there is a first token, so that errors have a status.

        Raises:
            What `AsyncEngine.add` raises; ApiError; ClientGone.
        """
        check_model(self.body.model, self.served)
        self.rules_field = None if self.body.structured_outputs else self.body.form_field
        await self.prepare()
        if self.body.output_token_ids and len(self.prompts) > 1:
            raise BadRequest(f"output_token_ids is given with {len(self.prompts)} prompts; one completion can go on.")
        self._check_context()
        try:
            if not self.body.stream:
                return JSONResponse(await unless_gone(self.request.receive, self.whole()))
            silence = self.request.app.state.settings.keep_alive_interval
            return await EventStream(self.events(), silence, self.end_of_stream).begun(self.request.receive)
        except BadRequest as error:  # the engine has other names for some fields
            message = re.sub(f"^request '{re.escape(self.id)}-[0-9]+'", self.prompt_field, str(error))
            message = message.replace("output_ids", "output_token_ids")
            if self.rules_field:
                message = message.replace("structured_outputs", self.rules_field)
            raise BadRequest(message) from error

    async def whole(self) -> dict[str, Any]:
        """The response in one piece."""
        async with self._started() as streams:
            return self.body_of([await self._ended(stream) for stream in streams])

    def body_of(self, ends: list[RequestEnded]) -> dict[str, Any]:
        """The response to what has ended."""
        count = sum(self.count_of(len(each.token_ids)) for end in ends for each in end.completions)
        choices = [choice for index, end in enumerate(ends) for choice in self.choices(index, end)]
        return self._head(self.kind) | {"choices": choices, "usage": self._usage(count, ends)} | self.more_fields(ends)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream. Each item has the tokens that one step of the engine has computed for the request."""
        async with self._started() as streams, aclosing(arrivals(streams)) as arriving:
            # With the first tokens, not before them: nothing may be sent while the status can still be an error.
            parts = self.first_events()
            async for arrived in arriving:
                for prompt_index, tokens in arrived:
                    of_completion: dict[int, list[NewToken]] = {}
                    for token in tokens:
                        of_completion.setdefault(token.index, []).append(token)
                    for completion, own in of_completion.items():
                        parts += self.events_of(prompt_index * self.params[0].n + completion, prompt_index, own)
                if parts:
                    yield "".join(parts).encode("ascii")
                    parts = []
            ends = [await self._ended(stream) for stream in streams]
        if last := self.last_events(ends):
            yield "".join(last).encode("ascii")

    def first_events(self) -> list[str]:
        """Events before the first token."""
        self.count = len(self.body.output_token_ids or ())
        return [] if self.body.output_token_ids else [self._chunk(choice) for choice in self.first_choices()]

    def events_of(self, index: int, prompt_index: int, tokens: list[NewToken]) -> list[str]:
        """Events about some tokens of one completion."""
        self.count += self.count_of(len(tokens))
        return [self._chunk(choice) for choice in self.chunk_choices(index, prompt_index, tokens)]

    def last_events(self, ends: list[RequestEnded]) -> list[str]:
        """Events behind the last token."""
        return [self._chunk(None, self._usage(self.count, ends))] if self._options.include_usage else []

    @cached_property
    def _options(self) -> StreamOptions:
        return self.body.stream_options or StreamOptions()

    @cached_property
    def _start(self) -> str:
        """The same in all chunks."""
        return json.dumps(self._head(self.chunk_kind))[:-1]

    def _chunk(self, choice: dict[str, Any] | None, usage: dict[str, Any] | None = None) -> str:
        more: dict[str, Any] = {"choices": [choice] if choice else []}
        if self._options.include_usage:
            more["usage"] = self._usage(self.count) if choice and self._options.continuous_usage_stats else usage
        return f"data: {self._start}, {json.dumps(more)[1:]}\n\n"

    def _check_context(self) -> None:
        """Refuse a prompt that is too long, or leaves too little room, as the engine would, but in the API's words."""
        longest = self.served.max_model_len
        for prompt, params in zip(self.prompts, self.params):
            length, max_tokens = len(prompt), params.max_tokens or 1
            if longest is not None and length + max_tokens > longest:
                asked = f", and {self.limit_field} is {shortened(params.max_tokens)}" if length < longest else ""
                room = f"Ask for {longest - length} or fewer" if length < longest else "Shorten the prompt"
                raise ApiError(
                    400,
                    f"the prompt has {length} tokens{asked}. This model's maximum context length is {longest} tokens, "
                    f"for prompt and completion together: the context is {longest}. {room}.",
                    param=self.limit_field if length < longest else self.prompt_field,
                    code="context_length_exceeded",
                )

    async def _ended(self, stream: RequestStream) -> RequestEnded:
        """The end of a prompt's request; ApiError if it failed, or the server has ended it."""
        end = await stream.end()
        if end.error is not None:
            is_dead = self.front.error is not None
            code = "engine_dead" if is_dead else "request_failed"
            raise ApiError(503 if is_dead else 500, f"the request failed: {end.error}", code=code)
        if end.is_aborted:
            raise ApiError(503, "the server has ended the request; send it again, here or elsewhere.", code="aborted")
        return end

    def _head(self, kind: str) -> dict[str, Any]:
        """The first fields of the response, and of each chunk."""
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}
        return named | {"system_fingerprint": FINGERPRINT}

    def _usage(self, num_completion_tokens: int, ends: list[RequestEnded] | None = None) -> dict[str, Any]:
        """Tokens of all prompts and completions; from their ends, also how many were cached, or guessed (lesson 18)."""
        prompt, completion = sum(map(len, self.prompts)), num_completion_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        if ends is None:
            return usage
        completions = [each for end in ends for each in end.completions]
        accepted = sum(each.num_accepted_tokens for each in completions)
        rejected = sum(each.num_draft_tokens for each in completions) - accepted
        guesses = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        cached = {"cached_tokens": sum(end.num_cached_tokens for end in ends)}
        return usage | {"prompt_tokens_details": cached, "completion_tokens_details": guesses}

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[list[RequestStream]]:
        """The streams of the prompts. Those that still run when the block is left are aborted."""
        async with AsyncExitStack() as stack:
            streams: list[RequestStream] = []
            options: dict[str, Any] = dict(tier=self.body.priority or 0, is_interactive=bool(self.body.stream))
            options["cache_salt"] = self.body.cache_salt
            if self.body.cache_control:
                options["pin_seconds"] = self.body.cache_control.seconds
            for prompt, params in zip(self.prompts, self.params):
                request_id = f"{self.id}-{next(_serial_numbers)}"
                known = self.body.output_token_ids or ()
                stream = await self.front.add(prompt, params, request_id=request_id, output_ids=known, **options)
                stack.push_async_callback(stream.aclose)
                streams.append(stream)
            yield streams


def check_model(name: str | None, served: ServedModel) -> None:
    """Refuse a request that names another model: ApiError."""
    if name not in (None, served.name):
        message = f"the model {name[:200]!r} isn't served here; {served.name!r} is."
        raise ApiError(404, message, param="model", code="model_not_found")


async def arrivals(streams: list[RequestStream]) -> AsyncGenerator[list[tuple[int, list[NewToken]]], None]:
    """(index, new tokens) of all streams that have some, until all have ended."""
    if len(streams) == 1:
        async for tokens in streams[0]:
            yield [(0, tokens)]
        return
    mailbox: Mailbox[tuple[int, list[NewToken]]] = Mailbox()

    async def read(index: int, stream: RequestStream) -> None:
        async for tokens in stream:
            mailbox.put((index, tokens))

    async def read_all() -> None:
        try:
            await asyncio.gather(*(read(index, stream) for index, stream in enumerate(streams)))
        finally:
            mailbox.close()

    reading = asyncio.ensure_future(read_all())
    try:
        while new := await mailbox.take():
            yield new
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
