"""What a body may contain is bounded before it is parsed, and errors are about one value, however many are wrong."""

import gc
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lessons_lib.serving.http.protocol import ChatRequest, CompletionRequest
from lessons_lib.serving.http.security import MAX_OBJECTS, has_half_a_character, more_values_than
from lessons_lib.serving.http.settings import BODY_BYTES, BYTES_PER_TOKEN, ServerSettings

MANY = 20_000
MESSAGE = {"role": "user", "content": "x"}


def num_values(value):
    if isinstance(value, dict):
        return 1 + sum(map(num_values, value.values()))
    return 1 + sum(map(num_values, value)) if isinstance(value, list) else 1


VALUES = [
    {"prompt": [1] * 50},
    {"prompt": [[1, 2]] * 20},
    {"a": {"b": {"c": ["x"] * 30}}},
    {"prompt": ['\\", [{,', '\\\\"', "[,{", "\\"] * 10},
    {'\\"[,{': 1, "prompt": ["a,b,c"] * 40},
]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("indent", [None, 1])
def test_values_outside_texts_are_counted(value, indent):
    body, count = json.dumps(value, indent=indent).encode(), num_values(value)
    assert more_values_than(count, body) is None
    told = more_values_than(count - 1, body)
    assert f"has {count} values; the limit is {count - 1}" in told or f"more than {count - 1} values" in told


def test_what_is_in_a_text_counts_for_nothing():
    assert more_values_than(10, json.dumps({"prompt": '[{,"' * 10_000}).encode()) is None
    told = "the body has more than 10 values and names; send fewer in a request."
    assert more_values_than(10, b"[" + b'"x",' * 100) == told


def test_objects_have_a_limit_of_their_own():
    body = json.dumps({"messages": [{}] * (MAX_OBJECTS - 1)}).encode()
    assert more_values_than(10**6, body) is None
    body = json.dumps({"messages": [{}] * MAX_OBJECTS}).encode()
    assert f"has {MAX_OBJECTS + 1} objects; the limit is {MAX_OBJECTS}" in more_values_than(10**6, body)


PIECES = ["\\", "\\\\", "\\ud83d", "\\uDE00", "\\uD800", "\\udfff", "\\u0041", "\\n", "ud83d", "u", "a"]


@given(st.lists(st.sampled_from(PIECES), max_size=6))
def test_half_a_character_is_found_in_json_as_python_reads_it(pieces):
    body = f'"{"".join(pieces)}"'
    try:
        text = json.loads(body)
    except ValueError:
        return
    has_half = any("\ud800" <= each <= "\udfff" for each in text)
    assert has_half_a_character(body.encode()) == has_half


@pytest.mark.parametrize("context, num_tokens", [(1024, 1024), (10**6, 2**17), (None, 2**17)])
def test_a_body_has_room_for_the_models_context(context, num_tokens):
    settings = ServerSettings("m").for_context(context)
    assert settings.max_body_bytes == BODY_BYTES + BYTES_PER_TOKEN * num_tokens
    assert settings.max_values == 2**15 + 2 * num_tokens
    small = ServerSettings("m", max_body_bytes=7).for_context(context)
    assert small.max_body_bytes == 7 and small.max_values == 2**15


def test_a_body_beyond_it_is_refused_with_the_limit_and_the_way_out(http):
    answer = http.post("/v1/completions", content=b" " * 2**20)
    assert answer.status_code == 413
    told = answer.json()["error"]["message"]
    assert f"up to {BODY_BYTES + 1024 * BYTES_PER_TOKEN} bytes" in told and "--max-body-bytes" in told
    assert "maximum context length is 1024" in told  # litellm looks for the first three words


def errors_of(kind, body):
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    return caught.value.errors()


WRONG = [
    (CompletionRequest, {"prompt": [-1] * MANY}),
    (CompletionRequest, {"prompt": [[1], *[["x"]] * MANY]}),
    (CompletionRequest, {"prompt": "x", "stop": [1] * MANY}),
    (CompletionRequest, {"prompt": "x", "logit_bias": {f"x{number}": {} for number in range(MANY)}}),
    (CompletionRequest, {"prompt": "x", "structured_outputs": {"choice": [1] * MANY}}),
    (CompletionRequest, {"prompt": "x"} | {f"x{number}": 1 for number in range(MANY)}),
    (ChatRequest, {"messages": [{}] * MANY}),
    (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
    (ChatRequest, {"messages": [MESSAGE | {f"x{number}": 1 for number in range(MANY)}]}),
]  # fmt: skip


@pytest.mark.parametrize("kind, body", WRONG, ids=lambda value: str(value)[:50])
def test_validation_stops_at_the_first_wrong_value(kind, body):
    assert len(errors_of(kind, body)) <= 5


def test_one_unknown_field_is_told_and_the_known_ones_are_checked():
    errors = errors_of(CompletionRequest, {"b" * 10**6: 1, "a": 2, "max_tokens": "x"})
    assert {error["loc"][0] for error in errors} == {"b" * 100, "max_tokens", "prompt"}


@pytest.mark.parametrize(
    "path, body, code",
    [
        ("/v1/chat/completions", {"messages": [{}] * MANY}, "too_many_values"),
        ("/v1/completions", {"prompt": [5] * (2**15 + 2 * 1024)}, "too_many_values"),
        ("/v1/completions", {"prompt": "x", "k" * 10**5: 1}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_server_refuses_it_with_the_limit(http, path, body, code):
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == code and len(error["message"]) < 500 and error["message"].endswith((".", "?"))
    assert "limit" in error["message"] or "isn't a field" in error["message"]


def test_so_many_values_are_read(http):
    error = http.post("/v1/completions", json={"prompt": [5] * (2**15 + 2 * 1024 - 3)}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_a_process_that_serves_has_short_pauses(live):
    """A live server is in this process."""
    assert gc.get_freeze_count() > 10_000 and sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.get_int_max_str_digits() == 640
