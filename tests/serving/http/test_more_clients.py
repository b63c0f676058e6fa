"""Unmodified clients that people use, tried where they are installed: litellm, instructor and llm. Each one chats,
streams, gets structured answers, sends back what it got, and is told what isn't offered.

    pip install litellm instructor llm
"""

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


class TestLitellm:
    @pytest.fixture
    def litellm(self, monkeypatch):
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
        return pytest.importorskip("litellm")

    @pytest.fixture
    def options(self, live):
        return {"model": f"openai/{MODEL}", "api_base": f"{live.url}/v1", "api_key": "any", "num_retries": 0}

    def test_chats(self, litellm, options):
        first = litellm.completion(**options, messages=[USER], max_tokens=8, temperature=0)
        message = first.choices[0].message
        for back in (message, message.model_dump()):
            again = litellm.completion(**options, messages=[USER, back, USER], max_tokens=2)
            assert again.usage.completion_tokens == 2
        stream = litellm.completion(**options, messages=[USER], max_tokens=8, temperature=0, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == message.content
        cached = {"type": "text", "text": USER["content"], "cache_control": {"type": "ephemeral"}}
        again = litellm.completion(
            **options, messages=[{"role": "user", "content": [cached]}], max_tokens=8, temperature=0
        )
        assert again.choices[0].message.content == message.content
        awaited = asyncio.run(litellm.acompletion(**options, messages=[USER], max_tokens=8, temperature=0))
        assert awaited.choices[0].message.content == message.content
        written = litellm.text_completion(
            **options | {"model": f"text-completion-openai/{MODEL}"}, prompt="A dog", max_tokens=4
        )
        assert written.choices[0].text

    def test_structured_answers(self, litellm, options):
        found = litellm.completion(**options, messages=[USER], response_format=Dog, max_tokens=60)
        assert Dog.model_validate_json(found.choices[0].message.content)

    @pytest.mark.parametrize("count", [600, 200_000])
    def test_a_prompt_that_is_too_long(self, litellm, options, count):
        """Its users switch to a model with more context on this very error."""
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**options, messages=[{"role": "user", "content": "A dog. " * count}])

    def test_what_is_not_offered(self, litellm, options):
        with pytest.raises(litellm.BadRequestError, match="tools isn't offered"):
            litellm.completion(**options, messages=[USER], tools=[TOOL])
        with pytest.raises(litellm.NotFoundError, match="embedding model"):
            litellm.embedding(**options, input=["x"])


class TestInstructor:
    @pytest.fixture
    def make(self, live):
        instructor = pytest.importorskip("instructor")

        def make(mode, client=openai.OpenAI):
            plain = client(base_url=f"{live.url}/v1", api_key="any", max_retries=0)
            return instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))

        return make

    def test_structured_answers(self, make):
        asked = {"model": MODEL, "messages": [USER], "response_model": Dog, "max_tokens": 60, "max_retries": 0}
        assert isinstance(make("JSON_SCHEMA").chat.completions.create(**asked), Dog)
        dogs = make("JSON_SCHEMA").chat.completions.create_partial(**asked)
        assert [*dogs][-1].size in ("small", "large")
        awaited = make("JSON_SCHEMA", openai.AsyncOpenAI).chat.completions.create(**asked)
        assert isinstance(asyncio.run(awaited), Dog)

    def test_tools_name_the_way_out(self, make):
        with pytest.raises(Exception, match="ask for JSON with response_format"):
            make("TOOLS").chat.completions.create(model=MODEL, messages=[USER], response_model=Dog, max_retries=0)


class TestLlm:
    @pytest.fixture
    def model(self, live, tmp_path, monkeypatch):
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
        llm = pytest.importorskip("llm")
        text = "".join(
            f"- model_id: {name}\n  model_name: {MODEL}\n  api_base: {live.url}/v1\n  completion: {completion}\n"
            "  supports_schema: true\n"
            for name, completion in (("chat", "false"), ("text", "true"))
        )
        (tmp_path / "extra-openai-models.yaml").write_text(text)
        return lambda name: llm.get_model(name)

    @pytest.mark.parametrize("name", ["chat", "text"])
    @pytest.mark.parametrize("stream", [True, False])
    def test_chats(self, model, name, stream):
        talk = model(name).conversation()
        for _ in range(2):
            assert talk.prompt("Is a dog an animal?", key="any", max_tokens=6, stream=stream).text()

    def test_structured_answers(self, model):
        found = model("chat").prompt("A dog", key="any", schema=Dog, max_tokens=60, stream=False).text()
        assert Dog.model_validate_json(found)
