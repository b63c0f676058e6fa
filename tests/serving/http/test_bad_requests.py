"""Every refusal has the right status, OpenAI's shape, and a message that names the value and the remedy."""

import json

import pytest
from live_server import MODEL, failing_at

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
BODIES = {COMPLETIONS: {"prompt": "Hello"}, CHAT: {"messages": USER}}

# Path -> (more fields, field at fault, part of the message).
REFUSED = {
    COMPLETIONS: [
        ({"prompt": None}, "prompt", "prompt"),
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": ["a"] * 9, "n": 128}, "n", "9 prompts, so 1152 completions; a request may have 1024"),
        ({"stream": True, "max_tokens": 2, "output_token_ids": [5, 6]}, "output_token_ids", "has 2 tokens"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": 1}, "prompt", "it must be a valid string, token ids, or a list"),
        ({"prompt": ["a"] * 1025}, "prompt", "prompt has 1025 items; it must have at most 1024 items"),
        ({"prompt": ["a", 1]}, "prompt", "prompt.1 is 1; it must be a valid string"),
        ({"prompt": [1, "a"]}, "prompt", "prompt.1 is 'a'; it must be a valid integer"),
        ({"prompt": [5000]}, "prompt", "prompt contains token id 5000"),
        ({"prompt": [5000], "echo": True}, "prompt", "5000"),
        ({"prompt": [300] * 1024}, "prompt", "the context is 1024"),
        ({"prompt": "a" * 200_000}, "prompt", "200000 characters"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": -1}, "max_tokens", "max_tokens is -1"),
        ({"max_tokens": 10**400}, "max_tokens", "max_tokens"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"best_of": 2}, "best_of", "isn't offered"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": 1, "echo": True, "stream": True}, "echo", "one piece"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream is true"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "isn't a field"),
        ({"stop": ["a", ""]}, "stop", "stop.1 is ''; it must have at least 1 character."),
        ({"stop": 5}, "stop", "it must be a valid string, or a list of strings"),
        ({"logit_bias": {"dog": 1}}, "logit_bias", "logit_bias"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
        ({"max_token": 5}, "max_token", "Did you mean max_tokens?"),
        ({"structured_outputs": {}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs", "a JSON schema: an object, or its text"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs", "choice.1 is ''"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs", "structured_outputs.regx"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ],
    CHAT: [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{}]}, "messages", "messages.0.role is missing"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages", "messages.0.content.0 is 5; it must be a JSON"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "messages", "0.x"),
        ({"messages": USER, "user": "\\\ud83d"}, None, "lone surrogates"),
        ({"messages": USER, "\ud83d": 1}, None, "lone surrogates"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "the server sets"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "must be a JSON object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            "'image_url'; it must be 'text'",
        ),
        ({"modalities": ["text", "audio"]}, "modalities", "text"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs isn't true"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "the same"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt", "both true"),
    ],
}


def error_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize(
    "path, fields, param, part",
    [(path, *row) for path, rows in REFUSED.items() for row in rows],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused(http, path, fields, param, part):
    body = BODIES[path] | fields
    # httpx would refuse to send half of a character.
    content = json.dumps({name: value for name, value in body.items() if value is not None})
    error = error_of(http.post(path, content=content, headers={"content-type": "application/json"}), 400)
    assert part in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith((".", "?"))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"n": "\xff"}', b"{" + b"9" * 5000 + b"}", b'{"n": NaN}'],
    ids=lambda content: repr(content[:12]),
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_bodies_that_are_no_json_object(http, path, content):
    error_of(http.post(path, content=content, headers={"content-type": "application/json"}), 400)


CONTRADICTIONS = [
    ({"structured_outputs": {"choice": ["yes", "no"]}, "min_tokens": 20}, "min_tokens", "structured_outputs.choice"),
    ({"response_format": {"type": "json_object"}, "allowed_token_ids": [300]}, "allowed_token_ids", "response_format"),
    ({"structured_outputs": {"regex": "yes\\"}}, "structured_outputs", "(character 4)"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "not"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("fields, param, part", CONTRADICTIONS, ids=str)
def test_rules_that_can_t_hold_are_refused_before_anything_is_sent(http, live, path, fields, param, part):
    pytest.importorskip("llguidance")
    body = BODIES[path] | {"max_tokens": 20} | fields
    for more in ({}, {"stream": True}):
        error = error_of(http.post(path, json=body | more), 400)
        assert error["param"] == param and part in error["message"]
    assert live.is_idle()


@pytest.mark.parametrize(
    "path, way_out",
    [
        ("/v1/responses/resp_1/cancel", "GET and DELETE of one"),
        ("/v1/embeddings", "embedding model"),
        ("/v1/files", "nothing is stored"),
        ("/api/chat", "/v1/chat/completions"),
    ],
)
def test_what_is_not_offered_names_the_way_out(http, path, way_out):
    for answer in (http.post(path, json={}), http.get(path)):
        error = error_of(answer, 404)
        assert way_out in error["message"] and error["code"] == "not_offered"
    assert error_of(http.get("/v1/responsesx"), 404)["code"] is None


@pytest.mark.parametrize("path", ["/", "/health", "/ping", "/v1/models", "/v1/models/lessons-bundled", "/version"])
def test_head_is_get_without_a_body(http, path):
    head, get = http.head(path), http.get(path)
    assert head.status_code == get.status_code == 200 and head.content == b""
    assert {**head.headers, "x-request-id": 0, "date": 0} == {**get.headers, "x-request-id": 0, "date": 0}


def test_head_of_what_has_no_get(http):
    assert http.head(COMPLETIONS).status_code == 405 and http.head("/v1/nothing").status_code == 404


@pytest.mark.parametrize(
    "name, depth, part",
    [
        ("tools", 30_000, "the body can't be read: maximum recursion depth exceeded while decoding"),
        ("metadata", 30_000, "the body can't be read: maximum recursion depth exceeded while decoding"),
        ("chat_template_kwargs", 900, "chat_template_kwargs is nested too deeply; make it flatter."),
    ],
)
def test_what_is_nested_too_deeply(http, name, depth, part):
    content = json.dumps({"messages": USER, name: {"a": "x"}}).replace('"x"', "[" * depth + "]" * depth)
    error = error_of(http.post(CHAT, content=content, headers={"content-type": "application/json"}), 400)
    assert error["message"].startswith(part)


def test_whole_characters_in_escapes_are_text(http, live):
    """Not every backslash begins an escape."""
    for text in ("\U0001f436", "\U0001f436\U0001f436", "\\ud83d", "\\\\ud83d", "\\\U0001f436"):
        content = json.dumps({"prompt": text, "max_tokens": 1, "return_token_ids": True}).encode()
        answer = http.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
        assert answer.json()["choices"][0]["prompt_token_ids"] == live.tokenizer(text).input_ids


def test_a_body_of_another_type(http):
    error = error_of(http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"}), 400)
    assert "application/json" in error["message"]


def test_other_models_paths_and_methods(http):
    for path, body in BODIES.items():
        error = error_of(http.post(path, json=body | {"model": "gpt-4"}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert MODEL in error["message"]
        refused = http.get(path)
        error_of(refused, 405)
        assert refused.headers["allow"] == "POST"
    error_of(http.get("/v1/nothing"), 404)


def test_nothing_is_left_of_what_was_refused(live, http):
    http.post(COMPLETIONS, json={"prompt": ["a", "b", [4095, 9999]]})
    assert live.is_idle()


def test_an_error_of_the_model_has_a_status_before_the_first_token_and_an_event_after_it(live, http):
    """The engine fails the requests of one step, and goes on."""
    body = {"prompt": "Once upon", "max_tokens": 6, "ignore_eos": True}
    for more in ({}, {"stream": True}):
        with failing_at(live, 1):
            error = error_of(http.post(COMPLETIONS, json=body | more), 500)
        assert "infinite logits" in error["message"]
    with failing_at(live, 4):
        lines = [line for line in http.post(COMPLETIONS, json=body | {"stream": True}).text.split("\n\n") if line]
    assert len(lines) == 3 + 2 and lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["error"]["code"] == "request_failed"
    assert http.post(COMPLETIONS, json=body).status_code == 200
    assert live.is_idle()


def test_ids_and_headers(http):
    body = {"prompt": "Hello", "max_tokens": 2}
    answer = http.post(COMPLETIONS, json=body, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.json()["id"] == "cmpl-mine-1"
    others = {http.post(COMPLETIONS, json=body, headers={"x-request-id": "a b"}).json()["id"] for _ in range(2)}
    assert len(others) == 2 and not any("a b" in other for other in others)
    streamed = http.post(COMPLETIONS, json=body | {"stream": True}, headers={"x-request-id": "mine-2"})
    assert streamed.headers["x-request-id"] == "mine-2"
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    assert '"id": "cmpl-mine-2"' in streamed.text
    assert http.post(COMPLETIONS, json={}, headers={"x-request-id": "mine-3"}).headers["x-request-id"] == "mine-3"


def test_a_chat_beyond_the_context(http):
    body = {"messages": [{"role": "user", "content": "A dog. " * 600}]}
    for more in ({}, {"stream": True}):
        error = error_of(http.post(CHAT, json=body | more), 400)
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 1024" in error["message"]  # litellm looks for the first three words
