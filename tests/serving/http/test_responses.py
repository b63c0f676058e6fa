"""`/v1/responses` as the unmodified `openai` client asks for it: text, streams, tools, turns, and whose they are."""

import json
import threading

import httpx
import pytest
from live_server import MODEL, LiveServer, failing_at
from scripted import call, scripted

from lessons_lib.serving.http.responses import ResponseStore

openai = pytest.importorskip("openai")

ASK = {"model": MODEL, "input": "Once upon a time", "temperature": 0, "max_output_tokens": 8}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ADD = {"type": "function", "name": "add", "description": "Adds 1.", "parameters": SCHEMA, "strict": True}
LIFE = ["created", "in_progress"]
OF_TEXT = ["output_item.added", "content_part.added", "output_text.delta"]
TEXT_ENDS = ["output_text.done", "content_part.done", "output_item.done"]
OF_CALL = ["output_item.added", "function_call_arguments.delta"]
CALL_ENDS = ["function_call_arguments.done", "output_item.done"]


def client_of(live, api_key="any"):
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key=api_key, max_retries=0)


@pytest.fixture(scope="module")
def client(live):
    with client_of(live) as client:
        yield client


def told(client, **fields):
    """(kinds of a stream's events, each once in a row; its last response)."""
    events = list(client.responses.create(stream=True, **ASK | fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = {}
    for event in events:
        if event.type.endswith(".delta"):
            deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
        elif event.type == "response.output_item.added":
            assert event.item.status == "in_progress"
    response = events[-1].response
    for index, item in enumerate(response.output):
        assert deltas.get(index, "") == (item.arguments if item.type == "function_call" else item.content[0].text)
    return [kind for before, kind in zip([None, *kinds], kinds) if kind != before], response


def test_a_text_and_its_stream(client, http):
    whole = client.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"})
    assert whole.output_text and whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert (whole.instructions, whole.metadata, whole.usage.output_tokens) == ("Be brief.", {"a": "b"}, 8)
    kinds, streamed = told(client, instructions="Be brief.")
    assert kinds == [*LIFE, *OF_TEXT, *TEXT_ENDS, "incomplete"]
    assert streamed.output_text == whole.output_text
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": ASK["input"]}]
    assert client.responses.create(**ASK | {"input": items}).output_text == whole.output_text
    lines = http.post("/v1/responses", json=ASK | {"stream": True}).text.split("\n")
    assert lines[0] == "event: response.created" and "[DONE]" not in "".join(lines)


def test_turns_find_their_beginning_in_the_cache(live, client):
    """A later turn, a fork from an earlier response, and a conversation that is sent whole."""
    first = client.responses.create(**ASK | {"input": "A dog and a cat went to the park to play. " * 6})
    with scripted(live, lambda prompt: "Well."):
        second = client.responses.create(**ASK | {"input": "And then?"}, previous_response_id=first.id)
        fork = client.responses.create(**ASK | {"input": "Why?"}, previous_response_id=first.id)
        third = client.responses.create(**ASK | {"input": "So?"}, previous_response_id=second.id)
    assert (second.status, second.previous_response_id) == ("completed", first.id)
    for turn, before in ((second, first), (fork, first), (third, second)):
        assert turn.usage.input_tokens > before.usage.input_tokens
        assert turn.usage.input_tokens_details.cached_tokens > before.usage.input_tokens - 16
    items = [{"role": "user", "content": "A dog and a cat went to the park to play. " * 6}, *first.output]
    sent = client.responses.create(**ASK | {"input": [*items, {"role": "user", "content": "And then?"}]})
    assert sent.usage.input_tokens == second.usage.input_tokens


def test_kept_responses(client):
    kept = client.responses.create(**ASK)
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    assert client.responses.delete(kept.id) is None
    others = client.responses.create(**ASK, store=False)
    for gone in (kept.id, others.id, "resp_none"):
        for ask in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="isn't here"):
                ask(gone)
        with pytest.raises(openai.BadRequestError, match="isn't here") as caught:
            client.responses.create(**ASK, previous_response_id=gone)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.BadRequestError, match="stream isn't offered"):
        client.responses.retrieve("resp_none", stream=True)


def test_a_response_is_its_clients_own():
    with (
        LiveServer(api_keys=["mine", "yours"]) as live,
        client_of(live, "mine") as mine,
        client_of(live, "yours") as yours,
    ):
        salt = {"cache_salt": "a"}
        plain, salted = mine.responses.create(**ASK), mine.responses.create(**ASK, extra_body=salt)
        assert mine.responses.retrieve(plain.id).id == plain.id
        assert mine.responses.retrieve(salted.id, extra_query=salt).id == salted.id
        assert mine.responses.create(**ASK, previous_response_id=salted.id, extra_body=salt).output_text
        for other, name, more in (
            (yours, plain.id, {}),
            (mine, salted.id, {}),
            (mine, plain.id, salt),
            (yours, salted.id, salt),
        ):
            for ask in (other.responses.retrieve, other.responses.delete):
                with pytest.raises(openai.NotFoundError):
                    ask(name, extra_query=more)
            with pytest.raises(openai.BadRequestError, match="isn't here"):
                other.responses.create(**ASK, previous_response_id=name, extra_body=more)
        again = ASK | {"input": "A dog and a cat went to the park to play. " * 6}
        cached = [mine.responses.create(**again, extra_body=each).usage for each in ({}, salt, salt)]
        assert [usage.input_tokens_details.cached_tokens > 0 for usage in cached] == [False, False, True]


def test_a_store_is_bounded_in_number_and_time():
    now = [0.0]
    store = ResponseStore(max_count=2, seconds=10.0, clock=lambda: now[0])
    for name in "abc":
        store.add("me", {"id": name}, [])
        now[0] += 1.0
    assert [store.find(name, "me") is not None for name in "abc"] == [False, True, True]
    assert store.find("c", "you") is None
    now[0] = 11.5
    assert [store.find(name, "me") is not None for name in "bc"] == [False, True]
    now[0] = 13.0
    store.add("me", {"id": "d"}, [])
    assert [*store.responses] == ["d"]


def test_calls_and_their_stream(live, client):
    pytest.importorskip("llguidance")
    with scripted(live, lambda prompt: f"Well.\n{call('add', n=1)}\n{call('add', n=2)}"):
        options = dict(tools=[ADD], max_output_tokens=100)
        kinds, response = told(client, **options)
        assert kinds == [*LIFE, *OF_TEXT, *TEXT_ENDS, *(OF_CALL + CALL_ENDS) * 2, "completed"]
        assert [each.type for each in response.output] == ["message", "function_call", "function_call"]
        with client.responses.stream(**ASK | options) as stream:
            final = stream.get_final_response().output
        assert [each.parsed_arguments for each in final[1:]] == [{"n": 1}, {"n": 2}]
        forced = ASK | {"tools": [ADD], "parallel_tool_calls": False, "max_output_tokens": 60}
    for choice in ("required", {"type": "function", "name": "add"}):  # of the bundled model
        kinds, response = told(client, **forced, tool_choice=choice)
        assert kinds == [*LIFE, *OF_CALL, *CALL_ENDS, response.status]
        assert response.tool_choice == choice or response.tool_choice.name == "add"
    assert told(client, **ASK, tools=[ADD], tool_choice="none")[1].output[0].type == "message"


def test_an_answer_in_json(client):
    pytest.importorskip("llguidance")
    form = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA | {"properties": {"n": {"enum": [1, 2]}}}}}
    answer = client.responses.create(**ASK | {"max_output_tokens": 60}, text=form)
    assert json.loads(answer.output_text)["n"] in (1, 2) and answer.text.format.schema_["required"] == ["n"]


RESULT = {"type": "function_call_output", "call_id": "1", "output": "2"}
CALLS = {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"}


@pytest.mark.parametrize(
    "fields, param, part",
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"type": "reasoning"}]}, "input", "'reasoning'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "'input_image'"),
        ({"input": [{"role": "user"}]}, "input", "a message whose content is missing"),
        ({"input": [RESULT | {"name": "add"}]}, "input", "whose name isn't a field of it"),
        ({"input": [RESULT]}, "input", "input.0.tool_call_id is '1'; no call"),
        ({"input": [CALLS]}, "input", "no result of the call '1'"),
        ({"input": [CALLS | {"arguments": "x"}, RESULT]}, "input", "must be a JSON object"),
        ({"tools": [{"type": "web_search"}]}, "tools", "it must be 'function'"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice", "isn't one of the tools"),
        ({"tools": [ADD | {"parameters": {"type": "array"}}]}, "tools", "isn't 'object'"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "must have a schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text", "text can't be used"),
        ({"background": True}, "background", "isn't offered"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "and max_output_tokens is 5000"),
        ({"input": "A dog. " * 600}, "input", "maximum context length is 1024"),
        ({"n": 2}, "n", "isn't a field"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_refused(live, http, fields, param, part):
    for more in ({}, {"stream": True}):
        answer = http.post("/v1/responses", json=ASK | fields | more)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param) and part in error["message"]
    assert live.is_idle()


def test_a_failure_has_a_status_before_the_first_event_and_is_an_event_behind_it(live, client):
    with failing_at(live, 1), pytest.raises(openai.InternalServerError, match="infinite logits"):
        told(client)
    with failing_at(live, 3):
        *_, last = client.responses.create(stream=True, **ASK)
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert "infinite logits" in last.response.error.message and live.is_idle()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_silence_is_broken_by_comments_also_before_the_first_event(path):
    go_on = threading.Event()
    with LiveServer(keep_alive_interval=0.01) as live:
        forward = live.engine.runner.forward
        live.engine.runner.forward = lambda *arguments: go_on.wait(60) and forward(*arguments)
        body = ASK if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        with httpx.stream("POST", live.url + path, json=body | {"stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            assert [next(lines) for _ in range(4)] == [": keep-alive", ""] * 2
            go_on.set()
            assert [line for line in lines if line and line != ": keep-alive"][-1].startswith("data: ")
        go_on.clear()
        with httpx.stream("POST", live.url + path, json=body | {"stream": True}, timeout=60) as answer:
            next(answer.iter_lines())  # and then the client leaves
        go_on.set()
        live.end()
        live.wait_until_ended()
