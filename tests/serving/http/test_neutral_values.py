"""Every field that OpenAI's reference names is known here: its neutral values ask for nothing and are accepted, and others
are refused by name. The list of fields is the installed client's own."""

import pytest
from live_server import MODEL

openai = pytest.importorskip("openai")
from openai.types import completion_create_params as of_completions  # noqa: E402
from openai.types.chat import ChatCompletionMessage  # noqa: E402
from openai.types.chat import completion_create_params as of_chat  # noqa: E402
from openai.types.responses import response_create_params as of_responses  # noqa: E402

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
USER = [{"role": "user", "content": "Hello"}]
BODIES = {COMPLETIONS: {"prompt": "Hello", "max_tokens": 2}, CHAT: {"messages": USER, "max_tokens": 2}}
BODIES[RESPONSES] = {"input": USER, "max_output_tokens": 2}
FIELDS = {
    COMPLETIONS: of_completions.CompletionCreateParamsNonStreaming.__annotations__,
    CHAT: of_chat.CompletionCreateParamsNonStreaming.__annotations__,
    RESPONSES: of_responses.ResponseCreateParamsNonStreaming.__annotations__,
}
NAMES = [(path, name) for path, fields in FIELDS.items() for name in sorted(fields)]
# Values with which fields ask for nothing, besides null.
OF_BOTH = [
    (0, "frequency_penalty presence_penalty"),
    (1, "n best_of temperature top_p"),
    ({}, "logit_bias"),
    ([], "stop"),
    ("a", "user"),
    (False, "echo"),
]
NEUTRAL = {
    COMPLETIONS: [*OF_BOTH, ("", "suffix"), (1, "typical_p"), (1.0, "typical_p")],
    CHAT: [
        *OF_BOTH,
        (0, "top_logprobs"),
        (1, "seed"),
        (2, "max_completion_tokens"),
        ("none", "function_call reasoning_effort tool_choice"),
        ("a", "prompt_cache_key safety_identifier"),
        ("medium", "verbosity"),
        ("in_memory", "prompt_cache_retention"),
        ("auto", "service_tier"),
        ("default", "service_tier"),
        ([], "functions tools documents"),
        (["text"], "modalities"),
        ({}, "metadata prompt_cache_options chat_template_kwargs"),
        ({"type": "text"}, "response_format"),
        (False, "logprobs parallel_tool_calls store stream"),
        (True, "parallel_tool_calls"),
        # fields of other servers, whose clients send them
        (False, "use_beam_search"),
        (1.0, "length_penalty"),
        ({"enable_thinking": False}, "chat_template_kwargs"),
    ],
    RESPONSES: [
        (False, "background store"),
        ([], "context_management include tools"),
        (["reasoning.encrypted_content"], "include"),
        ({"effort": "none"}, "reasoning"),
        ({"include_obfuscation": False}, "stream_options"),
        (0, "top_logprobs frequency_penalty"),
        ({"verbosity": "medium", "format": {"type": "text"}}, "text"),
        ("disabled", "truncation"),
        ("none", "tool_choice"),
    ],
}
VALUES = [(path, name, value) for path, rows in NEUTRAL.items() for value, names in rows for name in names.split()]


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
    plain = http.post(path, json=body).json()
    answer = http.post(path, json=body | ({} if name == "temperature" else {name: value}))
    assert answer.status_code == 200, answer.text
    if path == RESPONSES:
        assert answer.json()["output"][0]["content"] == plain["output"][0]["content"]
    else:
        assert answer.json()["choices"] == plain["choices"]


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, value) for name in ("tools", "tool_choice") for value in (1, True, 0, "", {}, [[]], "auto")),
        *(("best_of", True), ("length_penalty", True), ("echo", 0)),  # True is not 1, and 0 is not False
    ],
)
def test_values_that_look_neutral_and_are_not(http, name, value):
    error = http.post(CHAT, json=BODIES[CHAT] | {name: value}).json()["error"]
    assert error["param"] == name and error["message"].startswith(name)


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
    ):
        again = client.chat.completions.create(model=MODEL, messages=[*USER, back, *USER], max_tokens=3, temperature=0)
        assert again.usage.prompt_tokens > 0


def test_hints_for_caches_change_nothing(http):
    def tokens(message):
        body = {"messages": [message], "max_tokens": 1, "return_token_ids": True}
        return http.post(CHAT, json=body).json()["prompt_token_ids"]

    part = {"type": "text", "text": "Hello"}
    plain = tokens({"role": "user", "content": [part]})
    for hint in ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, None):
        for message in (
            {"role": "user", "content": [part | {"cache_control": hint}]},
            {"role": "user", "content": [part], "cache_control": hint},
            {"role": "user", "content": [part | {"prompt_cache_breakpoint": hint}]},
        ):
            assert tokens(message) == plain
