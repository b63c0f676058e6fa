"""The command line: what it means, and what it says when it makes no sense."""

import pickle
import socket

import pytest

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import Parts
from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.serving.__main__ import main
from lessons_lib.serving.http.arguments import WrongArgument, parse
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.settings import ServerSettings


@pytest.fixture(autouse=True)
def _no_chat_model(monkeypatch, tmp_path):
    monkeypatch.setenv("LESSONS_CACHE", str(tmp_path))


def read(*arguments, **environment):
    return parse([str(each) for each in arguments], environment)


def test_without_arguments_the_defaults_are_those_of_the_dataclasses():
    found = read()
    assert found.settings == ServerSettings("lessons-bundled")
    assert found.recipe.model == str(BUNDLED_MODEL) and found.engine == "process"
    policy = found.recipe.config.policy  # an object that equals no other
    assert vars(found.recipe.config) == vars(EngineConfig()) | {"policy": policy}


def test_the_chat_model_is_served_once_it_is_there(tmp_path):
    folder = tmp_path / "SmolLM2-135M-Instruct"
    folder.mkdir()
    assert read().recipe.model == str(BUNDLED_MODEL)  # not complete
    (folder / "config.json").write_text("{}")
    assert read().recipe.model == str(folder) and read().settings.model_name == "SmolLM2-135M-Instruct"
    assert read("--model", BUNDLED_MODEL).settings.model_name == "lessons-bundled"


def test_every_option_arrives():
    engine = {"max_num_seqs": 3, "max_num_batched_tokens": 99, "max_model_len": 77, "block_size": 8, "num_blocks": 50}
    engine |= {"cache_bytes": 1000, "num_swap_blocks": 4, "watermark": 0.5, "max_logprobs": 2}
    server = {"host": "::1", "port": 0, "root_path": "/llm", "max_requests": 5, "max_prompt_tokens": 6}
    server |= {"max_body_bytes": 7, "max_header_bytes": 8, "receive_timeout": 1.5, "stall_timeout": 2.5}
    server |= {"step_timeout": 3.5, "shutdown_timeout": 0.0, "log_level": "error"}
    options = (part for name, value in (engine | server).items() for part in (f"--{name.replace('_', '-')}", value))
    found = read(
        *("--model", "org/name", "--served-model-name", "n", "--device", "cpu", "--engine", "thread", *options),
        *("--policy", "priority", "--no-prefix-caching", "--allowed-host", "a", "--allowed-host", "b"),
        *("--no-access-log", "--num-speculative-tokens", 3),
    )
    assert (found.recipe.model, found.recipe.device, found.engine) == ("org/name", "cpu", "thread")
    assert found.recipe.num_speculative_tokens == 3 and found.recipe.parts() != Parts() == read().recipe.parts()
    assert {name: getattr(found.recipe.config, name) for name in engine} == engine
    assert not found.recipe.config.share_prefixes and type(found.recipe.config.policy).__name__ == "StrictPriority"
    assert found.settings == ServerSettings("n", allowed_hosts=("a", "b"), access_log=False, **server)
    assert read("--step-timeout", "none").settings.step_timeout is None


def test_keys_come_from_two_places():
    found = read("--api-key", "one", "--api-key", "two", LESSONS_API_KEY="three, four two")
    assert found.settings.api_keys == ("one", "two", "three", "four")
    assert "three" not in repr(found.settings)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--max-num-seqs", "0"], ["--max-num-seqs is 0", "from 1 on"]),
        (["--max-num-seqs", "900"], ["--max-num-batched-tokens is 512", "900"]),
        (["--num-speculative-tokens", "-1"], ["--num-speculative-tokens is -1", "0 or more"]),
        (["--port", "70000"], ["--port is 70000", "0 to 65535"]),
        (["--watermark", "2"], ["--watermark is 2.0", "0 to 1"]),
        (["--max-requests", "0"], ["--max-requests is 0", "at least 1"]),
        (["--max-body-bytes", "-5"], ["--max-body-bytes is -5"]),
        (["--shutdown-timeout", "-1"], ["--shutdown-timeout is -1"]),
        (["--step-timeout", "0"], ["--step-timeout is 0.0", "None for no limit"]),
        (["--step-timeout", "inf"], ["--step-timeout is inf"]),
        (["--stall-timeout", "0"], ["--stall-timeout is 0.0"]),
        (["--receive-timeout", "nan"], ["--receive-timeout is nan"]),
        (["--root-path", "llm/"], ["--root-path is 'llm/'", "'/llm'"]),
        (["--api-key", ""], ["API key is empty", "token_urlsafe"]),
        (["--api-key", "a b"], ["API key"]),
        (["--device", "cuda"], ["--device is 'cuda', and PyTorch finds no GPU here"]),
    ],
)
def test_a_wrong_value_says_what_to_do(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(WrongArgument) as caught:
        read(*arguments)
    for word in words:
        assert word in str(caught.value)
    assert main(arguments) == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--model", "/nonexistent/model", "--port", "0"], ["The server can't start: no model '/nonexistent/model'"]),
        (["--port", "taken"], ["of 127.0.0.1", "--port 0"]),
        (["--host", "192.0.2.1", "--port", "0", "--api-key", "k"], ["192.0.2.1"]),
    ],
    ids=str,
)
def test_a_start_that_fails_at_once(arguments, words, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main([port if each == "taken" else each for each in arguments]) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in words) and "Traceback" not in error


@pytest.mark.parametrize(
    "arguments, part, engine",
    [
        (["--cache-bytes", "1"], "Raise cache_bytes or lower block_size", "thread"),
        (["--num-blocks", "1000000000000"], "Lower num_blocks", "thread"),
        (["--max-model-len", "999999"], "has positions for 1024 tokens", "thread"),
        (["--model", "damaged"], "Fetch the files again", "process"),
    ],
    ids=str,
)
def test_a_bad_start_is_told_in_a_sentence(arguments, part, engine, tmp_path, capfd):
    """What the process of an engine says of its end is tested in test_engine_process."""
    if "damaged" in arguments:
        (tmp_path / "damaged").mkdir()
        for file in BUNDLED_MODEL.iterdir():
            (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes()[:100_000])
        arguments = ["--model", str(tmp_path / "damaged")]
    assert main([*arguments, "--port", "0", "--engine", engine]) == 1
    error = capfd.readouterr().err
    assert "The server can't start: " in error and part in error and "Traceback" not in error


def test_a_recipe_can_be_sent_to_another_process():
    recipe = EngineRecipe("m", config=EngineConfig(max_num_seqs=3, policy=StrictPriority()))
    sent = pickle.loads(pickle.dumps(recipe))
    assert sent.config.max_num_seqs == 3 and sent.model == "m"


def test_which_hosts_are_local():
    for host in ("127.0.0.1", "127.5.5.5", "::1", "localhost", "0.0.0.0", "::", "example.org"):
        settings = ServerSettings("m", host=host)
        assert settings.is_local == bool(settings.known_hosts) == (host not in ("0.0.0.0", "::", "example.org"))
