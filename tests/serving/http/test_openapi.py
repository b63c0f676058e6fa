"""The OpenAPI document is true: schemathesis makes requests from it, valid and invalid ones, and finds no answer that
the document doesn't describe."""

import pytest
from live_server import MODEL, wait_until

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
GenerationMode = schemathesis.GenerationMode

OPERATIONS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
]


@pytest.fixture(scope="module")
def schema(live):
    return schemathesis.openapi.from_url(f"{live.url}/openapi.json")


def test_every_operation_is_tried(schema):
    assert sorted((result.ok().method.upper(), result.ok().path) for result in schema.get_all_operations()) == sorted(
        OPERATIONS
    )


CASES = [(*operation, GenerationMode.POSITIVE) for operation in OPERATIONS]
CASES += [(*operation, GenerationMode.NEGATIVE) for operation in OPERATIONS if operation[0] == "POST"]
SETTINGS = dict(
    deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate]
)


@pytest.mark.parametrize("method, path, mode", CASES, ids=str)
def test_answers_are_as_described(schema, live, method, path, mode):
    statuses = set()

    @hypothesis.seed(1)
    @hypothesis.settings(max_examples=8, **SETTINGS)
    @hypothesis.given(case=schema[path][method].as_strategy(generation_mode=mode))
    def run(case):
        if mode is GenerationMode.POSITIVE and method == "POST":
            served_here(case.body)
        # A body that fits the schema may still be refused: only the tokenizer knows how long a prompt is.
        statuses.add(case.call_and_validate(excluded_checks=[checks.positive_data_acceptance]).status_code)

    run()
    assert statuses & {200, 404} if mode is GenerationMode.POSITIVE else statuses == {400}
    wait_until(live.is_idle)  # a refused prompt aborts those before it with the next step


def served_here(body):
    """Name the model, and bound what may be large. To JSON, 7.0 is an integer; here it is refused, and nearly every
    list of token ids would have one."""
    body["model"] = MODEL
    for name in ("prompt", "allowed_token_ids", "stop_token_ids"):
        if name in body:
            body[name] = known_tokens(body[name])
    for name in ("max_completion_tokens", "output_token_ids", "tools", "tool_choice", "previous_response_id"):
        body.pop(name, None)
    if "input" in body:
        body["input"] = "A dog"
    for message in body.get("messages", ()):
        message |= {"role": "user", "content": message.get("content") or "A dog"}
        message.pop("tool_calls", None), message.pop("tool_call_id", None)
    for name, most in (("max_tokens", 4), ("min_tokens", 2), ("n", 2)):
        name = "max_output_tokens" if "input" in body and name == "max_tokens" else name
        if body.get(name) or name in ("max_tokens", "max_output_tokens"):
            body[name] = int(min(most, body.get(name) or most))


def known_tokens(value):
    if isinstance(value, list):
        return [known_tokens(each) for each in value]
    return int(value) % 100 if isinstance(value, (int, float)) else value
