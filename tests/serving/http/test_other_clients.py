"""`curl`, LangChain's standard tests, and schemathesis, which reads the OpenAPI document and tries what it allows and
what it doesn't."""

import asyncio
import json
import shutil
import subprocess

import pytest
from live_server import MODEL

langchain_openai = pytest.importorskip("langchain_openai")
langchain_tests = pytest.importorskip("langchain_tests.integration_tests")


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_curl(live):
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0})
    command = ["curl", "-sS", "--no-buffer", f"{live.url}/v1/completions", "-H", "Content-Type: application/json"]
    whole = json.loads(subprocess.run([*command, "-d", body], capture_output=True, check=True).stdout)
    streamed = body[:-1] + ', "stream": true}'
    lines = subprocess.run([*command, "-d", streamed], capture_output=True, check=True).stdout.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-2])
    assert text == whole["choices"][0]["text"]
    failing = [*command, "--fail", "-d", '{"prompt": 1}']
    assert subprocess.run(failing, capture_output=True).returncode == 22  # an HTTP error


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
