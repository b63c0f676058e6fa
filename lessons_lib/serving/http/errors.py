"""Errors: OpenAI's body, with the status that its clients turn into a typed exception."""

import math
from collections.abc import Sized
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.validate import BadRequest, shortened
from lessons_lib.serving.admission import Overloaded
from lessons_lib.serving.messages import Draining, EngineDead

TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}  # of all others: invalid_request_error


USE_CHAT, TEXT_ONLY = "use /v1/chat/completions", "its model reads and writes text only; use another server"
NOT_EMBEDDED = "its model writes text; use a server with an embedding model"
NOT_STORED = "nothing is stored; send the text in a message"
# Paths that OpenAI's and others' clients ask for, and the way out.
OTHER_PATHS = {
    **dict.fromkeys(("/v1/messages", "/chat/completions", "/api/chat"), USE_CHAT),
    "/responses": "use /v1/responses",
    "/v1/responses": "there are only POST /v1/responses, and GET and DELETE of one",
    **dict.fromkeys(("/v1/conversations", "/v1/assistants", "/v1/threads"), f"{USE_CHAT} and send all messages"),
    **dict.fromkeys(("/v1/embeddings", "/v1/rerank", "/v1/score", "/embeddings"), NOT_EMBEDDED),
    **dict.fromkeys(("/v1/audio", "/v1/images", "/v1/videos", "/v1/realtime"), TEXT_ONLY),
    **dict.fromkeys(("/v1/files", "/v1/uploads", "/v1/vector_stores"), NOT_STORED),
    **dict.fromkeys(("/completions", "/api/generate"), "use /v1/completions"),
    **dict.fromkeys(("/models", "/api/tags"), "use /v1/models"),
    "/v1/moderations": "nothing is moderated; use another server",
    "/v1/batches": "send the requests at once, they are batched",
    "/v1/fine_tuning": "nothing is trained; serve another model",
}


class ClientGone(Exception):
    """The client has closed its connection: no answer will be read."""


class ApiError(Exception):
    """An answer that is an error: `param` is the field of the request at fault, `code` a word for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ):  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def api_error(error: BaseException, fields: Any = ()) -> ApiError:
    """The answer to an exception. If its message begins with one of `fields`, that is the param."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (BadRequest, OutOfBlocks)):
        first_word = str(error).split(maxsplit=1)[0].rstrip(",").split(".")[0]
        param, code = first_word if first_word in fields else None, getattr(error, "code", None)
        return ApiError(400, str(error), param=param, code=code)
    if isinstance(error, Overloaded):
        seconds = max(1, math.ceil(error.retry_after))  # of RFC 9110: a whole number
        return ApiError(429, str(error), code="rate_limit_exceeded", headers={"Retry-After": str(seconds)})
    if isinstance(error, Draining):
        return ApiError(503, str(error), code="draining")
    if isinstance(error, EngineDead):
        return ApiError(503, str(error), code="engine_dead")
    return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")


def install(app: FastAPI) -> None:
    """Answer every exception of an app's routes in OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return validation_error(list(error.errors())).response()

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400 and (cause := error.__cause__):  # json's, about depth and long numbers
            reason = str(cause).split(";")[0]
            return ApiError(400, f"the body can't be read: {reason}. Send a smaller value.").response()
        detail = f"{request.method} {request.url.path}: {error.detail}."
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        advice = [each for start, each in OTHER_PATHS.items() if path == start or path.startswith(f"{start}/")]
        if error.status_code == 404 and advice:
            return ApiError(404, f"{detail} This server doesn't offer it: {advice[0]}.", code="not_offered").response()
        return ApiError(error.status_code, detail, headers=dict(error.headers or {})).response()

    @app.exception_handler(ClientGone)
    async def _gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # nginx's, for the log: nothing is sent any more

    for kind in (BadRequest, OutOfBlocks, Overloaded, Draining, EngineDead, ApiError, Exception):

        @app.exception_handler(kind)
        async def _other(request: Request, error: Exception) -> JSONResponse:
            return api_error(error, FIELDS).response()


def validation_error(errors: list[Any]) -> ApiError:
    """The answer to a body that isn't JSON, or doesn't fit the model of the request, from pydantic's errors: it names
    the first field that is wrong."""
    # A name that isn't offered, or another type of object, says more than other errors.
    first = min(errors, key=lambda error: (error["type"] != "not_offered", error["loc"][-1:] != ("type",)))
    location = [str(part) for part in first["loc"] if part not in ("body", *TAGS)]
    kind, value = first["type"], first.get("input")
    if kind == "json_invalid":
        return ApiError(400, f"the body isn't JSON: {first['ctx']['error']} (at character {first['loc'][-1]}).")
    if kind == "not_offered":
        message = first["msg"].removesuffix(".") + "."
        return ApiError(400, message, param=[*location, first["ctx"].get("field")][0])
    if not location:
        return ApiError(400, NO_OBJECT)
    param, path = location[0], ".".join(location)
    if kind == "missing":
        return ApiError(400, f"{path} is missing.", param=param)
    if kind == "extra_forbidden":
        near = get_close_matches(location[-1], (first.get("ctx") or {}).get("fields", FIELDS), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return ApiError(400, f"{shortened(path)} isn't a field of this request.{hint}", param=param[:100])
    if location[-1] == "[key]":
        path = ".".join(location[:-2])
        message = f'{path} has the key {shortened(location[-2])}; it must be a token id, such as "42".'
        return ApiError(400, message, param=param)
    is_size = kind in ("too_short", "too_long")
    told = f"has {len(value)} items" if is_size and isinstance(value, Sized) else f"is {shortened(value)}"
    # From pydantic's "Input should be a valid string".
    wanted = first["msg"].split(" should ", 1)[-1].split(" after validation", 1)[0]
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        wanted = "be a JSON object"
    return ApiError(400, f"{path} {told}; it must {wanted}.", param=param)


NO_OBJECT = "the body must be a JSON object, sent with `Content-Type: application/json`."
# The branches of unions, which pydantic's locations name beside fields; see protocol.py.
TAGS = ("(text)", "(texts)", "(token ids)", "(lists of token ids)", "(parts)", "(object)")
FIELDS: list[str] = []  # of all requests, for "did you mean"; protocol.py fills it
