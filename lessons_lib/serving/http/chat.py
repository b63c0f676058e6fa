"""`POST /v1/chat/completions`: answers to messages, which the chat template writes as one prompt."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from lessons_lib.engine.outputs import NewToken
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http.generation import Generation
from lessons_lib.serving.http.logprobs import chat_logprobs, prompt_logprobs
from lessons_lib.serving.http.protocol import ChatRequest, to_template
from lessons_lib.serving.http.tools import CallReader, Messages, Piece, Tools, new_call_id
from lessons_lib.serving.messages import RequestEnded


@dataclass
class ChatGeneration(Generation):
    """One request of this kind. It has one prompt.

    Attributes:
        tools: the functions that the answer may call; None if there are none.
        readers: of the streamed completions, by index: they find calls.
    """

    id_prefix: ClassVar[str] = "chatcmpl"
    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"
    prompt_field: ClassVar[str] = "messages"

    body: ChatRequest
    tools: Tools | None = None
    readers: dict[int, CallReader] = field(default_factory=dict)

    async def prepare(self) -> None:
        body = self.body
        if body.top_logprobs and not body.logprobs:
            raise BadRequest(f"top_logprobs is {body.top_logprobs}, and logprobs isn't true; set it or leave both out.")
        if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
            raise BadRequest(
                f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}; they mean "
                "the same. Leave out max_tokens, the older one."
            )
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        # None for what fits: the engine knows what does.
        max_tokens = body.max_completion_tokens or body.max_tokens
        await self.ask(max_tokens, logprobs, to_template(body.messages), **body.template_options())

    async def ask(self, max_tokens: int | None, logprobs: int | None, messages: Messages, **options: Any) -> None:
        """Find prompt and params: of messages, and of the request's tools."""
        body, tools, form, own = self.body, self.body.offered(), self.served.call_format, dict[str, Any]()
        described = tools.for_template if tools else None
        if tools and tools.choice != "none":
            self.tools, self.rules_field = tools, "tools"
            own["structured_outputs"] = tools.rules(form, body.text_rules())
            if form.begin_token is not None:
                own["skip_special_tokens"] = False  # it is one
        self.params.append(body.sampling_params(max_tokens, logprobs, **own))
        self.prompts.append(await self.served.encode_chat(messages, described, **options))

    def first_choices(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(self.params[0].n)
        ]

    def chunk_choices(self, index: int, prompt_index: int, tokens: list[NewToken]) -> list[dict[str, Any]]:
        last, body = tokens[-1], self.body
        pieces, finish_reason = self.read(index, "".join(token.text for token in tokens), last.finish_reason)
        deltas = [delta_of([piece]) for piece in pieces]
        if body.return_token_ids:  # with what they say in one chunk, since a balancer may lose the next one
            deltas = [delta_of(pieces)]
        if finish_reason == "tool_calls" or (not deltas and (finish_reason or body.logprobs)):
            deltas.append({})
        choices: list[dict[str, Any]] = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
        ]
        if body.logprobs:
            choices[0]["logprobs"] = chat_logprobs([each.logprobs for each in tokens if each.logprobs], self.served)
        if body.return_token_ids:
            choices[0]["token_ids"] = [token.token for token in tokens]
        if finish_reason:
            choices[-1] |= {"finish_reason": finish_reason, "stop_reason": last.stop_reason}
        return choices

    def read(self, index: int, text: str, finish_reason: str | None) -> tuple[list[Piece], str | None]:
        """(pieces that more text of a completion adds, its finish reason)."""
        if self.tools is None:
            return [Piece(text)], finish_reason
        if index not in self.readers:
            self.readers[index] = CallReader(self.tools, self.served.call_format)
            if known := self.body.output_token_ids:  # their pieces were sent by another replica
                skips = self.params[0].skip_special_tokens
                list(self.readers[index].read(self.served.decode(known, skip_special_tokens=skips)))
        reader = self.readers[index]
        pieces = list(reader.read(text, finish_reason is not None))
        return pieces, "tool_calls" if reader.num_calls and finish_reason == "stop" else finish_reason

    def choices(self, prompt_index: int, end: RequestEnded) -> list[dict[str, Any]]:
        choices = []
        for each in end.completions:
            pieces, finish_reason = self.read(each.index, each.text, each.finish_reason)
            message = {"role": "assistant", "content": "", "refusal": None} | delta_of(pieces)
            for call in message.get("tool_calls", ()):
                message["content"] = message["content"] or None
                del call["index"]
            logprobs = None if each.logprobs is None else chat_logprobs(each.logprobs, self.served)
            choice = {"index": each.index, "message": message, "logprobs": logprobs}
            choice |= {"finish_reason": finish_reason, "stop_reason": each.stop_reason}
            choices.append(choice | {"token_ids": each.token_ids} if self.body.return_token_ids else choice)
        return choices

    def more_fields(self, ends: list[RequestEnded]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None and ends[0].prompt_logprobs:
            fields["prompt_logprobs"] = prompt_logprobs(ends[0].prompt_logprobs, self.served)
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = self.prompts[0]
        return fields


def delta_of(pieces: list[Piece]) -> dict[str, Any]:
    """Pieces of an answer, as streams tell them."""
    delta: dict[str, Any] = {}
    for piece in pieces:
        calls = delta.setdefault("tool_calls", []) if piece.call is not None else []
        if piece.call is None:
            delta["content"] = delta.get("content", "") + piece.text
        elif piece.name is not None:
            named = {"name": piece.name, "arguments": ""}
            calls.append({"index": piece.call, "id": new_call_id(), "type": "function", "function": named})
        elif calls and calls[-1]["index"] == piece.call:
            calls[-1]["function"]["arguments"] += piece.text
        else:
            calls.append({"index": piece.call, "function": {"arguments": piece.text}})
    return delta
