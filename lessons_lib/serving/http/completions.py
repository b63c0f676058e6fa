"""`POST /v1/completions`: texts that go on."""

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.engine.outputs import CompletionOutput, NewToken
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http.generation import Generation
from lessons_lib.serving.http.logprobs import completion_logprobs, prompt_logprobs
from lessons_lib.serving.http.protocol import MAX_COMPLETIONS, CompletionRequest
from lessons_lib.serving.messages import RequestEnded

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclass
class TextGeneration(Generation):
    """One request of this kind.

    Attributes:
        echoed: for each prompt, the text that its completions begin with.
        lengths: choice -> length of its text so far, by the texts of its tokens.
    """

    id_prefix: ClassVar[str] = "cmpl"
    kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"
    prompt_field: ClassVar[str] = "prompt"

    body: CompletionRequest
    echoed: list[str] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)

    async def prepare(self) -> None:
        self._check()
        params = functools.cache(self._params)
        for prompt in self.body.prompts():
            if isinstance(prompt, str):
                token_ids, text = await self.served.encode(prompt, self.body.add_special_tokens is not False), prompt
            else:
                token_ids, text = prompt, ""
                if self.body.echo:  # without it, the engine finds tokens that have no text
                    self.served.check_tokens("prompt", token_ids)
                    text = self.served.decode(token_ids, self.body.skip_special_tokens is not False)
            self.prompts.append(token_ids)
            self.echoed.append(text if self.body.echo else "")
            self.params.append(params(self._max_tokens(len(token_ids))))
            await asyncio.sleep(0)  # others' turn: a request may have a thousand prompts
        if known := self.body.output_token_ids:
            self.served.check_tokens("output_token_ids", known)
            self.lengths[0] = sum(len(self.served.token_text(token)) for token in known)

    def chunk_choices(self, index: int, prompt_index: int, tokens: list[NewToken]) -> list[dict[str, Any]]:
        is_first, length = index not in self.lengths, self.lengths.get(index, 0)
        token_ids = [token.token for token in tokens]
        text, logprobs = "".join(token.text for token in tokens), None
        if self.body.logprobs is not None:
            found = [token.logprobs for token in tokens]
            logprobs = completion_logprobs(token_ids, found, self.served, length)
            length += sum(len(self.served.token_text(token)) for token in token_ids)
        self.lengths[index] = length
        if self.body.max_tokens == 0:
            text, token_ids = "", []
        text = self.echoed[prompt_index] + text if is_first else text
        return [self._fields(index, text, logprobs, tokens[-1], token_ids)]

    def choices(self, prompt_index: int, end: RequestEnded) -> list[dict[str, Any]]:
        return [self._whole_choice(prompt_index, each, end) for each in end.completions]

    def count_of(self, num_tokens: int) -> int:
        return 0 if self.body.max_tokens == 0 else num_tokens

    def _fields(
        self, index: int, text: str, logprobs: Any, end: NewToken | CompletionOutput, token_ids: list[int]
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs}
        choice |= {"finish_reason": end.finish_reason, "stop_reason": end.stop_reason}
        return choice | {"token_ids": token_ids} if self.body.return_token_ids else choice

    def _whole_choice(self, prompt_index: int, completion: CompletionOutput, end: RequestEnded) -> dict[str, Any]:
        prompt, count = self.prompts[prompt_index], self.count_of(len(completion.token_ids))
        index, token_ids = prompt_index * self.params[0].n + completion.index, completion.token_ids[:count]
        text = self.echoed[prompt_index] + (completion.text if count else "")
        choice = self._fields(index, text, None, completion, token_ids)
        if completion.logprobs is not None:
            found: list[TokenLogprobs | None] = [*completion.logprobs[:count]]
            of_tokens = token_ids
            if self.body.echo and end.prompt_logprobs:
                found, of_tokens = [*end.prompt_logprobs, *found], prompt + token_ids
            choice["logprobs"] = completion_logprobs(of_tokens, found, self.served)
        if self.body.prompt_logprobs is not None and end.prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(end.prompt_logprobs, self.served)
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = prompt
        return choice

    def _check(self) -> None:
        body = self.body
        num_prompts, n = len(body.prompts()), body.n or 1
        if num_prompts * n > MAX_COMPLETIONS:
            raise BadRequest(
                f"n is {n} for {num_prompts} prompts, so {num_prompts * n} completions; a request may have "
                f"{MAX_COMPLETIONS}. Send fewer prompts, or ask for fewer."
            )
        if body.max_tokens == 0 and not body.echo:
            raise BadRequest("max_tokens is 0; it must be at least 1, unless echo asks for the prompt alone.")
        if body.echo and body.logprobs is not None:
            if body.stream:
                raise BadRequest(
                    "echo, logprobs and stream are given; log-probabilities of a prompt come only in one piece. Leave "
                    "out one of them."
                )
            if body.prompt_logprobs not in (None, body.logprobs):
                raise BadRequest(
                    f"prompt_logprobs is {body.prompt_logprobs} and logprobs {body.logprobs}; with echo they must be "
                    "the same, or leave out prompt_logprobs."
                )

    def _max_tokens(self, prompt_length: int) -> int:
        max_tokens, longest = self.body.max_tokens, self.served.max_model_len
        if max_tokens is None:
            max_tokens = DEFAULT_MAX_TOKENS if longest is None else min(DEFAULT_MAX_TOKENS, longest - prompt_length)
        return max(1, max_tokens)

    def _params(self, max_tokens: int) -> SamplingParams:
        body = self.body
        own = {"prompt_logprobs": body.logprobs} if body.echo and body.logprobs is not None else {}
        return body.sampling_params(max_tokens, body.logprobs, **own)
