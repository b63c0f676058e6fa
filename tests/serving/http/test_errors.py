"""The answer to each exception that a request can end with."""

import pytest

from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import Overloaded
from lessons_lib.serving.http.errors import ApiError, api_error, validation_error
from lessons_lib.serving.messages import Draining, EngineDead

BAD, SERVER = "invalid_request_error", "server_error"


@pytest.mark.parametrize(
    "error, status, kind, param, code",
    [
        (BadRequest("top_p is 2"), 400, BAD, "top_p", None),
        (BadRequest("top_p, which is 2, is too much"), 400, BAD, "top_p", None),
        (BadRequest("the prompt is empty"), 400, BAD, None, None),
        (OutOfBlocks("request 'a' needs 9 blocks; the pool has 5"), 400, BAD, None, None),
        (Overloaded("the server is full", 2.1), 429, "rate_limit_error", None, "rate_limit_exceeded"),
        (Draining("the server is draining"), 503, SERVER, None, "draining"),
        (EngineDead("the engine hangs"), 503, SERVER, None, "engine_dead"),
        (KeyError("x"), 500, SERVER, None, "internal_error"),
        (ApiError(404, "no such model", param="model"), 404, BAD, "model", None),
    ],
)
def test_the_answer_to_an_exception(error, status, kind, param, code):
    answer = api_error(error, ["top_p", "model"])
    said = answer.body()["error"]
    assert (answer.status, said["type"], said["param"], said["code"]) == (status, kind, param, code)
    assert str(error).strip("'") in said["message"]


@pytest.mark.parametrize("seconds, header", [(0.1, "1"), (1.0, "1"), (2.1, "3"), (60.0, "60")])
def test_when_to_try_again_is_a_whole_number_of_seconds(seconds, header):
    assert api_error(Overloaded("full", seconds)).response().headers["retry-after"] == header


def test_a_name_that_is_not_offered_says_more_than_the_branches_of_a_union():
    other = {"type": "string_type", "loc": ("body", "prompt"), "msg": "Input should be a valid string", "input": 1}
    ours = {"type": "not_offered", "loc": ("body",), "msg": "best_of isn't offered", "ctx": {"field": "best_of"}}
    answer = validation_error([other, ours])
    assert (answer.status, answer.message, answer.param) == (400, "best_of isn't offered.", "best_of")
    assert validation_error([other]).message == "prompt is 1; it must be a valid string."
