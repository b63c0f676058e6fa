"""LangChain with its standard tests: chats, streams and structured answers."""

import asyncio

import pytest
from live_server import MODEL
from scripted import call, scripted
from test_openai_client import Dog

langchain_openai = pytest.importorskip("langchain_openai")
langchain_core = pytest.importorskip("langchain_core.messages")
langchain_tests = pytest.importorskip("langchain_tests.integration_tests")
QUESTION = "Is a dog an animal?"


@pytest.fixture
def benchmark():
    pytest.skip("nothing is timed here")


@pytest.fixture(scope="module")
def loop():
    """One for all coroutines: LangChain's clients keep connections open."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class TestChatOpenAI(langchain_tests.ChatModelIntegrationTests):
    """LangChain's standard tests of a chat model. They see what this one has, and skip the rest."""

    @pytest.fixture(autouse=True)
    def _server(self, live, loop):
        type(self).url = live.url

    @property
    def chat_model_class(self):
        return langchain_openai.ChatOpenAI

    @property
    def chat_model_params(self):
        return {"model": MODEL, "base_url": f"{self.url}/v1", "api_key": "any", "stream_usage": True, "max_tokens": 8}

    has_tool_calling = False
    has_tool_choice = False
    has_structured_output = False
    structured_output_kwargs = {}
    returns_usage_metadata = True
    supported_usage_metadata_details = {"invoke": [], "stream": []}


@pytest.fixture
def options(live):
    return {"model": MODEL, "base_url": f"{live.url}/v1", "api_key": "any", "max_retries": 0}


def test_chats(options, loop):
    chat = langchain_openai.ChatOpenAI(**options, max_tokens=8, temperature=0)
    first = chat.invoke([("user", QUESTION)])
    assert chat.invoke([("user", "Hi"), first, ("user", "So?")]).usage_metadata["output_tokens"] == 8
    cached = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}
    assert chat.invoke([{"role": "user", "content": [cached]}]).content == first.content
    assert "".join(chunk.content for chunk in chat.stream(QUESTION)) == first.content
    assert loop.run_until_complete(chat.ainvoke(QUESTION)).content == first.content
    assert langchain_openai.OpenAI(**options, max_tokens=4).invoke("A dog")


@pytest.mark.parametrize("how", [{}, {"method": "json_schema"}, {"method": "json_schema", "strict": True}])
def test_structured_answers(options, how):
    pytest.importorskip("llguidance")
    chat = langchain_openai.ChatOpenAI(**options, max_tokens=60).with_structured_output(Dog, **how)
    assert isinstance(chat.invoke("A dog"), Dog)


def add(n: int) -> int:
    """Add 1."""
    return n + 1


def wait() -> None:
    """Wait."""


@pytest.mark.parametrize(
    "how", [{}, {"use_responses_api": True}, {"use_responses_api": True, "use_previous_response_id": True}], ids=str
)
def test_tools(live, options, how):
    def answer(prompt):
        num_done = prompt.count("<tool_response>")
        return "All done." if num_done == 3 else call("add", n=num_done)

    chat = langchain_openai.ChatOpenAI(**options, **how, temperature=0)
    messages = [("user", "Count.")]
    with scripted(live, answer):
        agent = chat.bind_tools([add])
        for n in range(3):
            first, *others = agent.stream(messages)
            (asked,) = sum(others, first).tool_calls
            messages.append(agent.invoke(messages))
            (same,) = messages[-1].tool_calls
            assert (asked["name"], asked["args"]) == (same["name"], same["args"]) == ("add", {"n": n})
            messages.append(langchain_core.ToolMessage(str(add(n)), tool_call_id=same["id"]))
        assert agent.invoke(messages).text == "All done."
    pytest.importorskip("llguidance")
    for choice in ("any", "wait"):  # of the bundled model
        forced = chat.bind_tools([wait], tool_choice=choice, parallel_tool_calls=False, strict=True)
        assert forced.invoke("Count.", max_tokens=60).tool_calls[0]["name"] == "wait"
