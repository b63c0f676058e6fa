"""What goes wrong, as OpenAI's error body with the status that its clients turn into a typed exception."""

import json
import math
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.prompts import BadRequest, shortened
from lessons_lib.serving.admission import Overloaded
from lessons_lib.serving.messages import Draining, EngineDead

TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}  # of all others: invalid_request_error


class ClientGone(Exception):
    """The client has closed its connection: no answer will be read."""


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        param: the field of the request that is to blame.
        code: a word for programs, such as "model_not_found".
        headers: more headers of the response, such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return AsciiJSONResponse(self.body(), self.status, self.headers)


class AsciiJSONResponse(JSONResponse):
    """JSON that a message can't break, whatever halves of characters it quotes from a request."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode("ascii")


def api_error(error: BaseException, fields: Any = ()) -> ApiError:
    """The answer to an exception.

    Args:
        fields: names of the request's fields; the one that the message begins with is the param.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, (BadRequest, OutOfBlocks)):
        first_word = str(error).split(maxsplit=1)[0].rstrip(",")
        return ApiError(400, str(error), param=first_word if first_word in fields else None)
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
        detail = f"{request.method} {request.url.path}: {error.detail}."
        return ApiError(error.status_code, detail, headers=dict(error.headers or {})).response()

    @app.exception_handler(ClientGone)
    async def _gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # nginx's, for the log: nothing is sent any more

    for kind in (BadRequest, OutOfBlocks, Overloaded, Draining, EngineDead):

        @app.exception_handler(kind)
        async def _refused(request: Request, error: Exception) -> JSONResponse:
            return api_error(error, FIELDS).response()

    @app.exception_handler(ApiError)
    async def _api(request: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(Exception)
    async def _other(request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response()


def validation_error(errors: list[Any]) -> ApiError:
    """A body that isn't JSON, or doesn't fit the model of the request: what is wrong with the first field that is.

    Args:
        errors: pydantic's.
    """
    # Names that aren't offered say more than the branches of a union that they fail as well.
    first = next((error for error in errors if error["type"] == "not_offered"), errors[0])
    location = [str(part) for part in first["loc"] if part not in ("body", *UNIONS)]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body isn't JSON: {first['ctx']['error']} (at character {first['loc'][-1]}).")
    if first["type"] == "not_offered":
        return ApiError(400, _sentence(first["msg"]), param=[*location, first["ctx"].get("field")][0])
    if not location:
        return ApiError(400, NO_OBJECT)
    param, path = location[0], ".".join(location)
    if first["type"] == "missing":
        return ApiError(400, f"{path} is missing.", param=param)
    if first["type"] == "extra_forbidden":
        near = get_close_matches(location[-1], (first.get("ctx") or {}).get("fields", FIELDS), 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return ApiError(400, f"{shortened(path)} isn't a field of this request.{hint}", param=param[:100])
    if not _is_branch(first["loc"][-1]):
        return ApiError(400, f"{path} is {shortened(first['input'])}; it must be {_wanted(first['msg'])}.", param=param)
    # A field of several types. The type whose error lies deepest is the one that was meant.
    field = first["loc"][:-1]
    branches = [error for error in errors if error["loc"][: len(field)] == field]
    depth = max(len(error["loc"]) for error in branches)
    wanted = dict.fromkeys(_wanted(error["msg"]) for error in branches if len(error["loc"]) == depth)
    path = ".".join(str(part) for part in field if part not in ("body", *UNIONS))
    return ApiError(
        400, f"{path} is {shortened(first['input'])}; it must be {' or '.join(list(wanted)[:3])}.", param=param
    )


NO_OBJECT = "the body must be a JSON object, sent with `Content-Type: application/json`."
UNIONS = ("TokenizeRequest", "TokenizeChatRequest")  # in pydantic's locations, beside names of fields
FIELDS: list[str] = []  # of all requests, for "did you mean"; protocol.py fills it


def _is_branch(part: str | int) -> bool:
    """Whether this part of pydantic's location names a type, not a field."""
    return isinstance(part, str) and (part in ("str", "int") or part.startswith("constrained-") or "[" in part)


def _wanted(message: str) -> str:
    """Pydantic's "Input should be a valid string" without the beginning."""
    for beginning in ("Input should be ", "String should ", "List should ", "Dictionary should "):
        if message.startswith(beginning):
            rest = message[len(beginning) :]
            return rest if beginning.startswith("Input") else f"{beginning.split()[0].lower()} to {rest}"
    return message


def _sentence(message: str) -> str:
    return message if message.endswith(".") else f"{message}."
