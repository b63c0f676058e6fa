"""Unmodified clients that people use. Each one chats, streams, gets structured answers, sends back what it got, and is told
what isn't offered."""

import asyncio
from typing import Literal

import pytest
from live_server import MODEL
from pydantic import BaseModel

openai = pytest.importorskip("openai")
pytest.importorskip("llguidance")
USER = {"role": "user", "content": "Is a dog an animal?"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


class Dog(BaseModel, extra="forbid"):  # otherwise the model may invent fields until it has no tokens left
    is_animal: bool
    size: Literal["small", "large"]


class TestOpenAI:
    @pytest.fixture
    def client(self, live):
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as client:
            yield client

    def test_structured_answers_and_what_was_returned(self, client):
        messages = [USER]
        for _ in range(2):
            answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Dog, max_tokens=60)
            message = answer.choices[0].message
            assert isinstance(message.parsed, Dog) and answer.choices[0].finish_reason == "stop"
            messages += [message, USER, message.model_dump(warnings=False), USER]
        with client.chat.completions.stream(
            model=MODEL, messages=messages, response_format=Dog, max_tokens=60
        ) as stream:
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Dog)

    @pytest.mark.parametrize(
        "ask",
        [
            lambda client: client.responses.create(model=MODEL, input="x"),
            lambda client: client.embeddings.create(model=MODEL, input="x"),
            lambda client: client.images.generate(prompt="x"),
            lambda client: client.moderations.create(input="x"),
            lambda client: client.audio.speech.create(model=MODEL, input="x", voice="alloy"),
            lambda client: client.files.list(),
        ],
    )
    def test_what_is_not_offered(self, client, ask):
        with pytest.raises(openai.NotFoundError, match="This server doesn't offer it: ") as caught:
            ask(client)
        assert caught.value.code == "not_offered"

    def test_tools(self, client):
        with pytest.raises(openai.BadRequestError, match="ask for JSON with response_format") as caught:
            client.chat.completions.create(model=MODEL, messages=[USER], tools=[TOOL])
        assert caught.value.param == "tools"


class TestLangChain:
    @pytest.fixture
    def options(self, live):
        pytest.importorskip("langchain_openai")
        return {"model": MODEL, "base_url": f"{live.url}/v1", "api_key": "any", "max_retries": 0}

    def test_chats(self, options):
        from langchain_openai import ChatOpenAI, OpenAI

        chat = ChatOpenAI(**options, max_tokens=8, temperature=0)
        first = chat.invoke([("user", USER["content"])])
        assert chat.invoke([("user", "Hi"), first, ("user", "So?")]).usage_metadata["output_tokens"] == 8
        cached = {"type": "text", "text": USER["content"], "cache_control": {"type": "ephemeral"}}
        assert chat.invoke([{"role": "user", "content": [cached]}]).content == first.content
        assert "".join(chunk.content for chunk in chat.stream(USER["content"])) == first.content
        assert asyncio.run(chat.ainvoke(USER["content"])).content == first.content
        assert OpenAI(**options, max_tokens=4).invoke("A dog")

    @pytest.mark.parametrize("how", [{}, {"method": "json_schema"}, {"method": "json_schema", "strict": True}])
    def test_structured_answers(self, options, how):
        from langchain_openai import ChatOpenAI

        assert isinstance(ChatOpenAI(**options, max_tokens=60).with_structured_output(Dog, **how).invoke("A dog"), Dog)

    def test_what_is_not_offered(self, options):
        from langchain_openai import ChatOpenAI, OpenAIEmbeddings

        with pytest.raises(openai.NotFoundError, match="use /v1/chat/completions"):
            ChatOpenAI(**options, use_responses_api=True).invoke("x")
        with pytest.raises(openai.NotFoundError, match="embedding model"):
            OpenAIEmbeddings(**options, check_embedding_ctx_length=False).embed_query("x")
        with pytest.raises(openai.BadRequestError, match="tools isn't offered"):
            ChatOpenAI(**options).bind_tools([Dog]).invoke("x")
