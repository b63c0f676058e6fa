"""What is answered, for the OpenAPI document. Responses are written as dicts, which takes a tenth of the time."""

from typing import Any, Literal

from pydantic import BaseModel


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorBody


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class CachedTokens(BaseModel):
    cached_tokens: int


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionLogprobs(BaseModel):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob]
    refusal: None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class Tokens(BaseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for FastAPI's `responses`."""
    return {status: {"model": Error, "description": DESCRIPTIONS[status]} | _headers(status) for status in statuses}


def _headers(status: int) -> dict[str, Any]:
    if status != 429:
        return {}
    seconds = {"description": "when to try again, in seconds", "schema": {"type": "integer"}}
    return {"headers": {"Retry-After": seconds}}


DESCRIPTIONS = {
    400: "The request can't be served as it is.",
    401: "No key, or a wrong one.",
    403: "A page of another site has sent the request, or it was sent to another name of this server.",
    404: "No such model, or no such path.",
    413: "The body is too large.",
    429: "The server is full.",
    500: "The request failed.",
    503: "The server is draining, or its engine is dead.",
}
OF_ALL = (400, 401, 403, 413, 500)
OF_GENERATION = (*OF_ALL, 404, 429, 503)
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A completion, or with `stream` its chunks as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
