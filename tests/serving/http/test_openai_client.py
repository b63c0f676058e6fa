"""The unmodified `openai` client: sync, async, streams, typed errors, timeouts."""

import asyncio
from typing import Literal

import pytest
from live_server import MODEL, LiveServer, wait_until
from pydantic import BaseModel

import lessons_lib
from lessons_lib.engine.draft_lengths import DraftLengths
from lessons_lib.engine.proposers import NgramTable, own_stories
from lessons_lib.engine.speculation import speculating

openai = pytest.importorskip("openai")

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": PROMPT}]
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 8}
LONG = {"model": MODEL, "max_tokens": 1000, "extra_body": {"ignore_eos": True}}


class Dog(BaseModel, extra="forbid"):  # otherwise the model may invent fields until it has no tokens left
    is_animal: bool
    size: Literal["small", "large"]


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "lessons_lib"
    with pytest.raises(openai.NotFoundError, match="isn't served here"):
        client.models.retrieve("gpt/4")


def test_version(http):
    assert http.get("/version").json() == {"version": lessons_lib.__version__}


def test_a_chat_streams_its_role_first_its_reason_last_and_then_its_usage(client):
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    chunks = list(
        client.chat.completions.create(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    *rest, last, usage = chunks
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and whole.object == "chat.completion"
    assert whole.id.startswith("chatcmpl-") and whole.system_fingerprint.startswith("lessons_lib-")
    assert rest[0].choices[0].delta.role == "assistant"
    assert rest[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None for chunk in [*rest[1:], last])
    assert [chunk.choices[0].finish_reason for chunk in rest] == [None] * len(rest)
    assert last.choices[0].finish_reason == "length"
    assert [chunk.usage for chunk in [*rest, last]] == [None] * (len(rest) + 1)
    assert usage.choices == []
    assert usage.usage.completion_tokens == 8
    assert usage.usage.prompt_tokens_details.cached_tokens >= 0
    text = "".join(chunk.choices[0].delta.content for chunk in [*rest, last])
    assert text == whole.choices[0].message.content


def test_usage_in_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.completions.create(prompt=PROMPT, stream=True, stream_options=options, **GREEDY))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-2:] == [8, 8]
    assert counts[0] < 8
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {chunks[-1].usage.prompt_tokens}


def test_several_choices_with_logprobs(client):
    arguments = dict(model=MODEL, messages=MESSAGES, n=3, seed=1, max_tokens=6, logprobs=True, top_logprobs=3)
    answer = client.chat.completions.create(**arguments)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    for choice in answer.choices:
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert {len(entry.top_logprobs) for entry in choice.logprobs.content} == {3}
    with client.chat.completions.stream(**arguments) as stream:  # the client puts the chunks together
        for _ in stream:
            final = stream.current_completion_snapshot
    assert [each.message.content for each in final.choices] == [each.message.content for each in answer.choices]
    assert [each.finish_reason for each in final.choices] == ["length"] * 3
    for own, other in zip(final.choices, answer.choices):
        assert [each.logprob for each in own.logprobs.content] == [each.logprob for each in other.logprobs.content]


def test_prefix_cache_is_in_the_usage(client):
    prompt = "A dog and a cat went to the park to play with a ball. " * 6
    first = client.completions.create(prompt=prompt, **GREEDY).usage
    second = client.completions.create(prompt=prompt, **GREEDY).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    assert 0 < second.prompt_tokens_details.cached_tokens < second.prompt_tokens
    salted = client.completions.create(prompt=prompt, extra_body={"cache_salt": "mine"}, **GREEDY).usage
    assert salted.prompt_tokens_details.cached_tokens == 0


def test_guesses_are_in_the_usage(client, monkeypatch):
    monkeypatch.setattr(DraftLengths, "is_trying", lambda lengths: True)  # whatever guesses cost
    options = GREEDY | dict(max_tokens=40, prompt=PROMPT)
    plain = client.completions.create(**options)
    with LiveServer(parts=speculating(NgramTable.of(own_stories()[:200]))) as guessing:
        other = openai.OpenAI(base_url=f"{guessing.url}/v1", api_key="any", max_retries=0)
        answer = other.completions.create(**options)
        *_, last = other.completions.create(stream=True, stream_options={"include_usage": True}, **options)
        other.close()
    assert answer.choices[0].text == plain.choices[0].text
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
    for details in (answer.usage.completion_tokens_details, last.usage.completion_tokens_details):
        assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0
        assert details.accepted_prediction_tokens < 40


def test_many_async_streams_at_once(live, client):
    wanted = [client.completions.create(prompt=f"{PROMPT} {index}", **GREEDY).choices[0].text for index in range(6)]

    async def one(async_client, index):
        stream = await async_client.completions.create(prompt=f"{PROMPT} {index}", stream=True, **GREEDY)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="any") as async_client:
            return await asyncio.gather(*(one(async_client, index) for index in range(6)))

    assert asyncio.run(all_of_them()) == wanted


def test_keys_and_a_full_server():
    with LiveServer(max_requests=1, api_keys=["right"]) as server:
        stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="right", max_retries=0) as client:
            with client.completions.create(prompt=PROMPT, stream=True, **LONG) as stream:
                next(iter(stream))  # it runs
                with pytest.raises(openai.RateLimitError, match="the server is full") as caught:
                    client.completions.create(prompt=PROMPT, **GREEDY)
                assert int(caught.value.response.headers["retry-after"]) >= 1
                # Of several prompts, the first is admitted and the second is not: none is left.
                wait_until(lambda: server.front.admission.num_requests == 1)
            wait_until(server.is_idle)
            with pytest.raises(openai.RateLimitError):
                client.completions.create(prompt=[PROMPT, PROMPT], **GREEDY)
            wait_until(server.is_idle)
            # What was refused can be sent again, which the client does by itself.
            assert client.with_options(max_retries=2).completions.create(prompt=PROMPT, **GREEDY).choices[0].text


def test_a_dead_engine_ends_its_streams_and_is_503():
    with LiveServer() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:

        def die():
            raise RuntimeError("the device is lost")

        stream = client.completions.create(prompt=PROMPT, stream=True, **LONG)
        next(stream)
        server.engine.step = die
        # Its head has been sent: the client finds the error in the stream, and raises it.
        with pytest.raises(openai.APIError, match="the device is lost") as caught:
            list(stream)
        assert caught.value.code == "engine_dead"
        with pytest.raises(openai.InternalServerError, match="the device is lost") as caught:
            client.completions.create(prompt=PROMPT, **GREEDY)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_dead")


def test_structured_answers_and_what_was_returned(client):
    pytest.importorskip("llguidance")
    messages = [*MESSAGES]
    for _ in range(2):
        answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Dog, max_tokens=60)
        message = answer.choices[0].message
        assert isinstance(message.parsed, Dog) and answer.choices[0].finish_reason == "stop"
        messages += [message, *MESSAGES, message.model_dump(warnings=False), *MESSAGES]
    with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Dog, max_tokens=60) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Dog)
