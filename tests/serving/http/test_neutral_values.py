"""Every field that OpenAI's reference names is known here: its neutral values ask for nothing and are accepted, and others
are refused by name. The list of fields is the installed client's own."""

import json
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from live_server import MODEL

openai = pytest.importorskip("openai")
from openai.types import completion_create_params as of_completions  # noqa: E402
from openai.types.chat import ChatCompletionMessage  # noqa: E402
from openai.types.chat import completion_create_params as of_chat  # noqa: E402

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
BODIES = {COMPLETIONS: {"prompt": "Hello", "max_tokens": 2}, CHAT: {"messages": USER, "max_tokens": 2}}
FIELDS = {
    COMPLETIONS: of_completions.CompletionCreateParamsNonStreaming.__annotations__,
    CHAT: of_chat.CompletionCreateParamsNonStreaming.__annotations__,
}
NAMES = [(path, name) for path, fields in FIELDS.items() for name in sorted(fields)]
# What each field says when nothing is asked for, besides null.
NEUTRAL = {
    CHAT: {
        "frequency_penalty": [0, 0.0],
        "function_call": ["none"],
        "functions": [[]],
        "logit_bias": [{}],
        "logprobs": [False],
        "max_completion_tokens": [2],
        "metadata": [{}],
        "modalities": [["text"]],
        "n": [1],
        "parallel_tool_calls": [False, True],
        "presence_penalty": [0],
        "prompt_cache_key": ["a"],
        "prompt_cache_options": [{}],
        "prompt_cache_retention": ["in_memory"],
        "reasoning_effort": ["none"],
        "response_format": [{"type": "text"}],
        "safety_identifier": ["a"],
        "seed": [1],
        "service_tier": ["auto", "default"],
        "stop": [[]],
        "store": [False],
        "stream": [False],
        "temperature": [1],
        "tool_choice": ["none"],
        "tools": [[]],
        "top_logprobs": [0],
        "top_p": [1],
        "user": ["a"],
        "verbosity": ["medium"],
        # not OpenAI's, and sent by clients of several servers
        "best_of": [1],
        "chat_template_kwargs": [{}, {"enable_thinking": False}],
        "documents": [[]],
        "echo": [False],
        "use_beam_search": [False],
        "length_penalty": [1, 1.0],
    },
    COMPLETIONS: {
        "best_of": [1],
        "echo": [False],
        "frequency_penalty": [0],
        "logit_bias": [{}],
        "n": [1],
        "presence_penalty": [0],
        "stop": [[]],
        "suffix": [""],
        "temperature": [1],
        "top_p": [1],
        "user": ["a"],
        "typical_p": [1, 1.0],
    },
}
VALUES = [(path, name, value) for path, fields in NEUTRAL.items() for name, each in fields.items() for value in each]


@pytest.mark.parametrize("path, name", NAMES)
def test_every_field_may_be_null_and_is_known(http, path, name):
    if name not in BODIES[path]:
        assert http.post(path, json=BODIES[path] | {name: None}).status_code == 200
    answer = http.post(path, json=BODIES[path] | {name: {"an": ["odd", "value"]}})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert name in message and f"'{name}' isn't a field" not in message


@pytest.mark.parametrize("path, name, value", VALUES, ids=str)
def test_neutral_values_ask_for_nothing(http, path, name, value):
    body = BODIES[path] | {"temperature": 0, "seed": 1}
    plain = http.post(path, json=body).json()["choices"]
    answer = http.post(path, json=body | ({} if name == "temperature" else {name: value}))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == plain


@pytest.mark.parametrize("name", ["reasoning_effort", "verbosity", "service_tier", "prompt_cache_retention"])
def test_all_other_words_of_a_field_are_refused_by_name(http, name):
    hint = get_type_hints(of_chat.CompletionCreateParamsBase, include_extras=False)[name]
    words = {word for each in (hint, *get_args(hint)) if get_origin(each) is Literal for word in get_args(each)}
    assert len(words) > 1
    for word in words - set(NEUTRAL[CHAT][name]):
        error = http.post(CHAT, json=BODIES[CHAT] | {name: word}).json()["error"]
        assert error["param"] == name and name in error["message"]


@pytest.mark.parametrize("value", [1, True, 0, "", {}, [[]], "auto"], ids=repr)
@pytest.mark.parametrize("name", ["tools", "functions", "tool_choice", "audio"])
def test_what_looks_neutral_and_is_not(http, name, value):
    assert http.post(CHAT, json=BODIES[CHAT] | {name: value}).status_code == 400


@pytest.mark.parametrize("name, value", [("best_of", True), ("length_penalty", True), ("echo", 0)])
def test_true_is_not_1_and_0_is_not_false(http, name, value):
    error = http.post(CHAT, json=BODIES[CHAT] | {name: value}).json()["error"]
    assert error["param"] == name and "isn't offered" in error["message"]


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_returned_message_can_be_sent_back(client):
    """As the client has it, and with everything that the type may have, empty."""
    message = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=3).choices[0].message
    fields = dict.fromkeys(ChatCompletionMessage.model_fields)
    for back in (
        message,
        message.model_dump(),
        fields | message.model_dump(),
        message.model_dump() | {"annotations": [], "tool_calls": []},
        message.to_dict(),
        json.loads(message.model_dump_json()),
    ):
        again = client.chat.completions.create(model=MODEL, messages=[*USER, back, *USER], max_tokens=3, temperature=0)
        assert again.usage.prompt_tokens > 0


def test_a_parsed_message_can_be_sent_back(client):
    pytest.importorskip("llguidance")
    pydantic = pytest.importorskip("pydantic")

    class Answer(pydantic.BaseModel):
        is_dog: bool

    found = client.chat.completions.parse(model=MODEL, messages=USER, response_format=Answer, max_tokens=20)
    message = found.choices[0].message
    assert isinstance(message.parsed, Answer)
    client.chat.completions.create(model=MODEL, messages=[*USER, message.model_dump()], max_tokens=2)


def test_a_streamed_message_can_be_sent_back(client):
    pytest.importorskip("llguidance")
    own = {"structured_outputs": {"choice": ["yes", "no"]}}
    with client.chat.completions.stream(model=MODEL, messages=USER, max_tokens=9, extra_body=own) as stream:
        message = stream.get_final_completion().choices[0].message
    client.chat.completions.create(model=MODEL, messages=[*USER, message.model_dump()], max_tokens=2)


def test_hints_for_caches_change_nothing(http):
    part = {"type": "text", "text": "Hello"}
    plain = http.post("/tokenize", json={"messages": [{"role": "user", "content": [part]}]}).json()["tokens"]
    for hint in ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, None):
        for message in (
            {"role": "user", "content": [part | {"cache_control": hint}]},
            {"role": "user", "content": [part], "cache_control": hint},
            {"role": "user", "content": [part | {"prompt_cache_breakpoint": hint}]},
        ):
            assert http.post("/tokenize", json={"messages": [message]}).json()["tokens"] == plain
