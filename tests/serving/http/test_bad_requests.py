"""Every refusal has the right status, OpenAI's shape, and a message that names the value and the remedy."""

import json

import pytest
from live_server import MODEL

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
USER = [{"role": "user", "content": "Hello"}]

REFUSED = [
    # path, more fields, field at fault, part of the message
    (COMPLETIONS, {"prompt": None}, "prompt", "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "prompt is empty"),
    (COMPLETIONS, {"prompt": ["a"] * 9, "n": 128}, "n", "9 prompts, so 1152 completions; a request may have 1024"),
    (COMPLETIONS, {"stream": True, "max_tokens": 2, "output_token_ids": [5, 6]}, "output_token_ids", "has 2 tokens"),
    (COMPLETIONS, {"structured_outputs": {"json": {"$ref": "#"}}}, "structured_outputs", "matches no text"),
    (COMPLETIONS, {"structured_outputs": {"grammar": "start: start"}}, "structured_outputs", "no text"),
    (COMPLETIONS, {"prompt": []}, "prompt", "at least 1"),
    (COMPLETIONS, {"prompt": ["a", [1]]}, "prompt", "prompt"),
    (COMPLETIONS, {"prompt": 1}, "prompt", "it must be a valid string, token ids, or a list"),
    (COMPLETIONS, {"prompt": {}}, "prompt", "it must be a valid string, token ids, or a list"),
    (COMPLETIONS, {"prompt": ["a"] * 1025}, "prompt", "prompt has 1025 items; it must have at most 1024 items"),
    (COMPLETIONS, {"prompt": [[1]] * 1025}, "prompt", "prompt has 1025 items; it must have at most 1024 items"),
    (COMPLETIONS, {"prompt": ["a", 1]}, "prompt", "prompt.1 is 1; it must be a valid string"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt", "prompt.1 is 'a'; it must be a valid integer"),
    (COMPLETIONS, {"prompt": [[1], ["a"]]}, "prompt", "prompt.1.0 is 'a'; it must be a valid integer"),
    (COMPLETIONS, {"prompt": [5000]}, "prompt", "prompt contains token id 5000"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt", "greater than or equal to 0"),
    (COMPLETIONS, {"prompt": [[-1]]}, "prompt", "greater than or equal to 0"),
    (COMPLETIONS, {"prompt": [[1], []]}, "prompt", "prompt"),
    (COMPLETIONS, {"prompt": [5000], "echo": True}, "prompt", "5000"),
    (COMPLETIONS, {"prompt": "\ud800"}, "prompt", "lone surrogates"),
    (COMPLETIONS, {"prompt": [300] * 1024}, "prompt", "the context is 1024"),
    (COMPLETIONS, {"prompt": "a" * 200_000}, "prompt", "200000 characters"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens", "at least 1"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens", "max_tokens is -1"),
    (COMPLETIONS, {"max_tokens": 1.5}, "max_tokens", "valid integer"),
    (COMPLETIONS, {"max_tokens": "5"}, "max_tokens", "valid integer"),
    (COMPLETIONS, {"max_tokens": 10**400}, "max_tokens", "max_tokens"),
    (COMPLETIONS, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", "min_tokens is 6"),
    (COMPLETIONS, {"temperature": -0.1}, "temperature", "temperature is -0.1"),
    (COMPLETIONS, {"temperature": 1e-9}, "temperature", "1e-5"),
    (COMPLETIONS, {"temperature": "hot"}, "temperature", "valid number"),
    (COMPLETIONS, {"temperature": True}, "temperature", "valid number"),
    (COMPLETIONS, {"top_p": 0}, "top_p", "greater than 0"),
    (COMPLETIONS, {"top_p": 1.1}, "top_p", "less than or equal to 1"),
    (COMPLETIONS, {"top_k": -2}, "top_k", "-1"),
    (COMPLETIONS, {"min_p": 2}, "min_p", "min_p"),
    (COMPLETIONS, {"n": 0}, "n", "n is 0"),
    (COMPLETIONS, {"n": 1000}, "n", "128"),
    (COMPLETIONS, {"best_of": 2}, "best_of", "isn't offered"),
    (COMPLETIONS, {"suffix": "end"}, "suffix", "isn't offered"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs", "20"),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "valid integer"),
    (COMPLETIONS, {"logprobs": 1, "echo": True, "stream": True}, "echo", "one piece"),
    (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream is true"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
    (COMPLETIONS, {"stream_options": {}, "stream": False}, "stream_options", "stream is not true"),
    (COMPLETIONS, {"stream": True, "stream_options": {"x": 1}}, "stream_options", "isn't a field"),
    (COMPLETIONS, {"stop": ""}, "stop", "at least 1"),
    (COMPLETIONS, {"stop": ""}, "stop", "stop is ''; it must have at least 1 character."),
    (COMPLETIONS, {"stop": ["a", ""]}, "stop", "stop.1 is ''; it must have at least 1 character."),
    (COMPLETIONS, {"stop": 5}, "stop", "it must be a valid string, or a list of strings"),
    (COMPLETIONS, {"stop": ["a"] * 33}, "stop", "32"),
    (COMPLETIONS, {"stop": "a" * 200}, "stop", "128"),
    (COMPLETIONS, {"logit_bias": {"dog": 1}}, "logit_bias", "logit_bias"),
    (COMPLETIONS, {"logit_bias": {"5": 101}}, "logit_bias", "100"),
    (COMPLETIONS, {"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
    (COMPLETIONS, {"logit_bias": {"9999": 1}}, "logit_bias", "4095"),
    (COMPLETIONS, {"allowed_token_ids": []}, "allowed_token_ids", "at least 1"),
    (COMPLETIONS, {"allowed_token_ids": [9999]}, "allowed_token_ids", "9999"),
    (COMPLETIONS, {"presence_penalty": 2.1}, "presence_penalty", "2"),
    (COMPLETIONS, {"seed": 2**70}, "seed", "seed"),
    (COMPLETIONS, {"priority": -1}, "priority", "priority is -1"),
    (COMPLETIONS, {"cache_salt": ""}, "cache_salt", "at least 1"),
    (COMPLETIONS, {"guided_json": {}}, "guided_json", "structured_outputs"),
    (COMPLETIONS, {"use_beam_search": True}, "use_beam_search", "isn't offered"),
    (COMPLETIONS, {"max_token": 5}, "max_token", "Did you mean max_tokens?"),
    (COMPLETIONS, {"structured_outputs": {}}, "structured_outputs", "give one of"),
    (COMPLETIONS, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and choice"),
    (COMPLETIONS, {"structured_outputs": {"json": 5}}, "structured_outputs", "a JSON schema: an object, or its text"),
    (
        COMPLETIONS,
        {"structured_outputs": {"json": True}},
        "structured_outputs",
        "a JSON schema: an object, or its text",
    ),
    (COMPLETIONS, {"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs", "choice.1 is ''"),
    (COMPLETIONS, {"structured_outputs": {"regx": "a"}}, "structured_outputs", "structured_outputs.regx"),
    (COMPLETIONS, {"structured_outputs": {"regex": ""}}, "structured_outputs", "not empty"),
    (COMPLETIONS, {"structured_outputs": {"grammar": ""}}, "structured_outputs", "not empty"),
    (COMPLETIONS, {"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    (COMPLETIONS, {"response_format": {"type": "xml"}}, "response_format", "json_object"),
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"messages": "hello"}, "messages", "valid list"),
    (CHAT, {"messages": [123]}, "messages", "messages.0 is 123"),
    (CHAT, {"messages": [{}]}, "messages", "messages.0.role is missing"),
    (CHAT, {"messages": [{"role": "system", "content": 123}]}, "messages", "valid string"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [5]}]},
        "messages",
        "messages.0.content.0 is 5; it must be a JSON",
    ),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "content.0.text is missing"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "messages", "0.x"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "\ud800"}]}]}, "messages", "lone surrogates"),
    (CHAT, {"messages": [{"role": "\udfff", "content": "x"}]}, "messages", "lone surrogates"),
    (CHAT, {"messages": USER, "model": "\ud83d"}, "model", "lone surrogates"),
    (CHAT, {"messages": USER, "user": "\\\ud83d"}, "user", "lone surrogates"),
    (CHAT, {"messages": USER, "\ud83d": 1}, None, "lone surrogates"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "the server sets"),
    (CHAT, {"chat_template_kwargs": {"eos_token": "x"}}, "chat_template_kwargs", "the server sets"),
    (CHAT, {"chat_template_kwargs": []}, "chat_template_kwargs", "must be a JSON object"),
    (CHAT, {"n": 100_000_000}, "n", "128"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages.0.role is 'robot'"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages", "messages.0.content is missing"),
    (CHAT, {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages", "isn't offered"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages",
        "image_url",
    ),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages", "input_audio"),
    (CHAT, {"messages": [{"role": "user", "content": ""}]}, "messages", "messages is empty"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", "isn't offered"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions", "isn't offered"),
    (CHAT, {"tool_choice": "auto"}, "tool_choice", "isn't offered"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities", "text"),
    (CHAT, {"audio": {"voice": "alloy"}}, "audio", "isn't offered"),
    (CHAT, {"prediction": {}}, "prediction", "isn't offered"),
    (CHAT, {"reasoning_effort": "high"}, "reasoning_effort", "isn't offered"),
    (CHAT, {"web_search_options": {}}, "web_search_options", "isn't offered"),
    (CHAT, {"store": True}, "store", "False"),
    (CHAT, {"best_of": 2}, "best_of", "isn't offered"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs", "logprobs isn't true"),
    (CHAT, {"logprobs": 2}, "logprobs", "valid boolean"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "logprobs", "20"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "the same"),
    (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt", "both true"),
    (CHAT, {"chat_template": "x"}, "chat_template", "/v1/completions"),
    (TOKENIZE, {}, "prompt", "prompt is missing"),
    (TOKENIZE, {"prompt": "x", "prompts": "y"}, "prompts", "Did you mean prompt?"),
    (TOKENIZE, {"messages": [{"role": "user"}]}, "messages", "messages.0.content is missing"),
    ("/detokenize", {"tokens": [4096]}, "tokens", "4096"),
    ("/detokenize", {"tokens": [-1]}, "tokens", "tokens"),
]


def error_of(response, status):
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


@pytest.mark.parametrize("path, fields, param, part", REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_refused(http, path, fields, param, part):
    body = {COMPLETIONS: {"prompt": "Hello"}, CHAT: {"messages": USER}}.get(path, {}) | fields
    # httpx would refuse to send half of a character.
    content = json.dumps({name: value for name, value in body.items() if value is not None})
    error = error_of(http.post(path, content=content, headers={"content-type": "application/json"}), 400)
    assert part in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith((".", "?"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"[" * 100_000,
        b'{"prompt": "\xff"}',
        b"{" + b"9" * 5000 + b"}",
        b'{"n": NaN}',
    ],
    ids=lambda content: repr(content[:12]),
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
def test_bodies_that_are_no_json_object(http, path, content):
    error_of(http.post(path, content=content, headers={"content-type": "application/json"}), 400)


CONTRADICTIONS = [
    ({"structured_outputs": {"choice": ["yes", "no"]}, "min_tokens": 20}, "min_tokens", "structured_outputs.choice"),
    (
        {"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": [300]},
        "allowed_token_ids",
        "structured_outputs",
    ),
    ({"structured_outputs": {"choice": ["yes"]}, "bad_words": ["yes"]}, "bad_words", "structured_outputs.choice"),
    ({"response_format": {"type": "json_object"}, "allowed_token_ids": [300]}, "allowed_token_ids", "response_format"),
    ({"allowed_token_ids": [0], "min_tokens": 1}, "allowed_token_ids", "min_tokens"),
    ({"structured_outputs": {"regex": "yes\\"}}, "structured_outputs", "(character 4)"),
    ({"structured_outputs": {"regex": "\\"}}, "structured_outputs", "(character 1)"),
    (
        {"structured_outputs": {"regex": "ab[c"}},
        "structured_outputs",
        "invalid at character 3: unclosed character class",
    ),
    ({"structured_outputs": {"json": {"type": "string", "pattern": "a\\"}}}, "structured_outputs", "(character 2)"),
    ({"structured_outputs": {"json": '{"patternProperties": {"a\\\\": {}}}'}}, "structured_outputs", "(character 2)"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "not"),
    ({"structured_outputs": {"regex": "()"}}, "structured_outputs", "only the empty one"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("fields, param, part", CONTRADICTIONS, ids=str)
def test_rules_that_can_t_hold_are_refused_before_anything_is_sent(http, live, path, fields, param, part):
    pytest.importorskip("llguidance")
    body = {COMPLETIONS: {"prompt": "Hello"}, CHAT: {"messages": USER}}[path] | {"max_tokens": 20} | fields
    for more in ({}, {"stream": True}):
        error = error_of(http.post(path, json=body | more), 400)
        assert error["param"] == param and part in error["message"]
    assert live.is_idle()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "[a-z]{3}"}, "min_tokens": 20},
        {"structured_outputs": {"json": {"type": "boolean"}}, "min_tokens": 20},
        {"allowed_token_ids": [65], "bad_words": ["aa"]},
    ],
    ids=str,
)
def test_rules_that_the_run_finds_to_contradict_end_with_the_text_so_far(http, live, path, fields):
    pytest.importorskip("llguidance")
    body = {COMPLETIONS: {"prompt": "Hello"}, CHAT: {"messages": USER}}[path] | {"max_tokens": 30} | fields
    whole = http.post(path, json=body).json()["choices"][0]
    assert whole["finish_reason"] == "stop"
    lines = http.post(path, json=body | {"stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line[6:])["choices"][0] for line in lines[:-2]]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert live.is_idle()


@pytest.mark.parametrize(
    "path, way_out",
    [
        ("/v1/responses", "/v1/chat/completions"),
        ("/v1/responses/resp_1/cancel", "/v1/chat/completions"),
        ("/v1/embeddings", "embedding model"),
        ("/v1/audio/speech", "text only"),
        ("/v1/images/generations", "text only"),
        ("/v1/moderations", "another server"),
        ("/v1/files", "nothing is stored"),
        ("/chat/completions", "/v1/chat/completions"),
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
        content = json.dumps({"prompt": text}).encode()
        answer = http.post(TOKENIZE, content=content, headers={"content-type": "application/json"})
        assert answer.json()["tokens"] == live.tokenizer(text).input_ids


def test_a_body_of_another_type(http):
    error = error_of(http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers={"content-type": "text/plain"}), 400)
    assert "application/json" in error["message"]


def test_other_models_paths_and_methods(http):
    for path, body in [
        (COMPLETIONS, {"prompt": "x"}),
        (CHAT, {"messages": USER}),
        (TOKENIZE, {"prompt": "x"}),
        ("/detokenize", {"tokens": [5]}),
    ]:
        error = error_of(http.post(path, json=body | {"model": "gpt-4"}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert MODEL in error["message"]
        refused = http.get(path)
        error_of(refused, 405)
        assert refused.headers["allow"] == "POST"
    error_of(http.get("/v1/nothing"), 404)


def test_what_is_null_is_as_if_it_were_left_out(http, live):
    from lessons_lib.serving.http.protocol import ChatRequest, CompletionRequest

    for path, model, body in [
        (COMPLETIONS, CompletionRequest, {"prompt": "x"}),
        (CHAT, ChatRequest, {"messages": USER}),
    ]:
        nulls = dict.fromkeys([*model.model_fields, *model.not_offered])
        assert http.post(path, json=nulls | {"max_tokens": 1} | body).status_code == 200


def test_nothing_is_left_of_what_was_refused(live, http):
    http.post(COMPLETIONS, json={"prompt": ["a", "b", [4095, 9999]]})
    assert live.is_idle()


def test_an_error_of_the_model_has_a_status_before_the_first_token_and_an_event_after_it(live, http):
    """The engine fails the requests of one step, and goes on."""
    forward = live.engine.runner.forward
    steps = []

    def fails(*arguments):
        steps.append(1)
        if len(steps) == fails.at:
            raise FloatingPointError("infinite logits")
        return forward(*arguments)

    body = {"prompt": "Once upon", "max_tokens": 6, "ignore_eos": True}
    live.engine.runner.forward = fails
    try:
        for more in ({}, {"stream": True}):
            steps.clear()
            fails.at = 1
            error = error_of(http.post(COMPLETIONS, json=body | more), 500)
            assert "infinite logits" in error["message"]
        steps.clear()
        fails.at = 4
        lines = [line for line in http.post(COMPLETIONS, json=body | {"stream": True}).text.split("\n\n") if line]
        assert len(lines) == 3 + 2
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["error"]["code"] == "request_failed"
    finally:
        live.engine.runner.forward = forward
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
        assert "1024" in error["message"]


@pytest.mark.parametrize(
    "rules",
    [
        {"regex": "[.*"},
        {"regex": {"1": "Python"}},
        {"grammar": "root ::= select_statementinvalidsyntax"},
        {"json": {"type": 123}},
        {"json": {"type": "hiccup"}},
        {"choice": []},
    ],
    ids=str,
)
def test_structured_outputs_that_can_t_be_compiled(http, rules):
    pytest.importorskip("llguidance")
    error = error_of(http.post(COMPLETIONS, json={"prompt": "x", "structured_outputs": rules}), 400)
    assert error["param"] == "structured_outputs"
