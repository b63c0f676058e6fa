"""`POST /v1/chat/completions`: answers to messages, which the chat template writes as one prompt."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lessons_lib.engine.outputs import NewToken
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http.generation import Generation
from lessons_lib.serving.http.logprobs import chat_logprobs, prompt_logprobs
from lessons_lib.serving.http.protocol import ChatRequest
from lessons_lib.serving.messages import RequestEnded


@dataclass
class ChatGeneration(Generation):
    """One request of this kind. It has one prompt."""

    id_prefix: ClassVar[str] = "chatcmpl"
    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"
    prompt_field: ClassVar[str] = "messages"

    body: ChatRequest

    async def prepare(self) -> None:
        body = self.body
        if body.top_logprobs and not body.logprobs:
            raise BadRequest(
                f"top_logprobs is {body.top_logprobs}, and logprobs isn't true; set it, or leave both out."
            )
        if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
            raise BadRequest(
                f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}; they mean "
                "the same. Leave out max_tokens, the older one."
            )
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        # None for what fits: the engine knows what does.
        max_tokens = body.max_completion_tokens or body.max_tokens
        self.params.append(body.sampling_params(max_tokens, logprobs))
        messages = [message.to_template() for message in body.messages]
        self.prompts.append(await self.served.encode_chat(messages, **body.template_options()))

    def first_choices(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(self.params[0].n)
        ]

    def choice(self, index: int, prompt_index: int, tokens: list[NewToken]) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs:
            logprobs = chat_logprobs([token.logprobs for token in tokens if token.logprobs], self.served)
        delta, last = {"content": "".join(token.text for token in tokens)}, tokens[-1]
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": last.finish_reason}
        if last.finish_reason:
            choice["stop_reason"] = last.stop_reason
        if self.body.return_token_ids:
            choice["token_ids"] = [token.token for token in tokens]
        return choice

    def choices(self, prompt_index: int, end: RequestEnded) -> list[dict[str, Any]]:
        choices = []
        for each in end.completions:
            message = {"role": "assistant", "content": each.text, "refusal": None}
            logprobs = None if each.logprobs is None else chat_logprobs(each.logprobs, self.served)
            choice = {"index": each.index, "message": message, "logprobs": logprobs}
            choice |= {"finish_reason": each.finish_reason, "stop_reason": each.stop_reason}
            choices.append(choice | {"token_ids": each.token_ids} if self.body.return_token_ids else choice)
        return choices

    def more_fields(self, ends: list[RequestEnded]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None and ends[0].prompt_logprobs:
            fields["prompt_logprobs"] = prompt_logprobs(ends[0].prompt_logprobs, self.served)
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = self.prompts[0]
        return fields
