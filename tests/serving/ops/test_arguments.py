"""The command line: what it means, and what it says when it makes no sense."""

import pickle

import pytest

from lessons_lib.engine.config import EngineConfig
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
    assert vars(found.recipe.config).keys() == vars(EngineConfig()).keys()
    changed = {"policy"}  # an object that equals no other
    assert {k: v for k, v in vars(found.recipe.config).items() if k not in changed} == {
        k: v for k, v in vars(EngineConfig()).items() if k not in changed
    }


def test_the_chat_model_is_served_once_it_is_there(tmp_path):
    folder = tmp_path / "SmolLM2-135M-Instruct"
    folder.mkdir()
    assert read().recipe.model == str(BUNDLED_MODEL)  # not complete
    (folder / "config.json").write_text("{}")
    assert read().recipe.model == str(folder) and read().settings.model_name == "SmolLM2-135M-Instruct"
    assert read("--model", BUNDLED_MODEL).settings.model_name == "lessons-bundled"


def test_every_option_arrives():
    found = read(
        *("--model", "org/name", "--served-model-name", "n", "--device", "cpu", "--engine", "thread"),
        *("--max-num-seqs", 3, "--max-num-batched-tokens", 99, "--max-model-len", 77, "--block-size", 8),
        *("--num-blocks", 50, "--cache-bytes", 1000, "--num-swap-blocks", 4, "--watermark", 0.5, "--max-logprobs", 2),
        *("--policy", "priority", "--no-prefix-caching", "--host", "::1", "--port", 0, "--allowed-host", "a"),
        *("--allowed-host", "b", "--root-path", "/llm", "--max-requests", 5, "--max-prompt-tokens", 6),
        *("--max-body-bytes", 7, "--max-header-bytes", 8, "--receive-timeout", 1.5, "--stall-timeout", 2.5),
        *("--step-timeout", 3.5, "--shutdown-timeout", 0, "--log-level", "error", "--no-access-log"),
    )
    config, settings = found.recipe.config, found.settings
    assert (found.recipe.model, found.recipe.device, found.engine) == ("org/name", "cpu", "thread")
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks", "cache_bytes")
    assert [getattr(config, name) for name in names] == [3, 99, 77, 8, 50, 1000]
    assert (config.num_swap_blocks, config.watermark, config.max_logprobs, config.share_prefixes) == (4, 0.5, 2, False)
    assert type(config.policy).__name__ == "StrictPriority"
    assert settings == ServerSettings(
        "n",
        host="::1",
        port=0,
        allowed_hosts=("a", "b"),
        root_path="/llm",
        max_requests=5,
        max_prompt_tokens=6,
        max_body_bytes=7,
        max_header_bytes=8,
        receive_timeout=1.5,
        stall_timeout=2.5,
        step_timeout=3.5,
        shutdown_timeout=0.0,
        log_level="error",
        access_log=False,
    )


def test_steps_may_take_any_time():
    assert read().settings.step_timeout == 300.0
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
        (["--port", "70000"], ["--port is 70000", "0 to 65535"]),
        (["--port", "-1"], ["--port is -1"]),
        (["--watermark", "2"], ["--watermark is 2.0", "0 to 1"]),
        (["--max-requests", "0"], ["--max-requests is 0", "at least 1"]),
        (["--max-body-bytes", "-5"], ["--max-body-bytes is -5"]),
        (["--shutdown-timeout", "-1"], ["--shutdown-timeout is -1"]),
        (["--shutdown-timeout", "nan"], ["--shutdown-timeout is nan"]),
        (["--step-timeout", "0"], ["--step-timeout is 0.0", "None for no limit"]),
        (["--step-timeout", "inf"], ["--step-timeout is inf"]),
        (["--stall-timeout", "0"], ["--stall-timeout is 0.0"]),
        (["--receive-timeout", "nan"], ["--receive-timeout is nan"]),
        (["--root-path", "llm/"], ["--root-path is 'llm/'", "'/llm'"]),
        (["--api-key", ""], ["API key is empty", "token_urlsafe"]),
        (["--api-key", "a b"], ["API key"]),
    ],
)
def test_a_wrong_value_says_what_to_do(arguments, words, capsys):
    with pytest.raises(WrongArgument) as caught:
        read(*arguments)
    for word in words:
        assert word in str(caught.value)
    assert main(arguments) == 2
    assert words[0] in capsys.readouterr().err


def test_a_gpu_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--device", "cuda"]) == 2
    assert "--device is 'cuda', and PyTorch finds no GPU here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--max-num-seqs", "many"], ["--max-num"], ["--nonsense"], ["--engine", "gpu"], ["x"]]
)
def test_what_is_no_option_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        read(*arguments)
    assert caught.value.code == 2 and "usage" in capsys.readouterr().err


def test_a_model_that_is_not_there(capsys):
    assert main(["--model", "/nonexistent/model", "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert "The server can't start: no model '/nonexistent/model'" in error and "Traceback" not in error


def test_a_port_that_is_taken(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    error = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1" in error and "--port 0" in error


@pytest.mark.parametrize("engine", ["process", "thread"])
@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--cache-bytes", "1"], "Raise cache_bytes or lower block_size"),
        (["--num-blocks", "1000000000000"], "Lower num_blocks"),
        (["--max-model-len", "999999"], "has positions for 1024 tokens"),
        (["--model", "damaged"], "Fetch the files again"),
    ],
    ids=str,
)
def test_a_bad_start_is_told_in_a_sentence(arguments, part, engine, tmp_path, capfd):
    """The engine's process writes to the same terminal."""
    if "damaged" in arguments:
        (tmp_path / "damaged").mkdir()
        for file in BUNDLED_MODEL.iterdir():
            (tmp_path / "damaged" / file.name).write_bytes(file.read_bytes()[:100_000])
        arguments = ["--model", str(tmp_path / "damaged")]
    assert main([*arguments, "--port", "0", "--engine", engine]) == 1
    error = capfd.readouterr().err
    assert "The server can't start: " in error and part in error and "Traceback" not in error


def test_an_address_of_another_machine(capsys):
    assert main(["--host", "192.0.2.1", "--port", "0", "--api-key", "k"]) == 1
    assert "192.0.2.1" in capsys.readouterr().err


def test_a_recipe_can_be_sent_to_another_process():
    recipe = EngineRecipe("m", config=EngineConfig(max_num_seqs=3, policy=StrictPriority()))
    sent = pickle.loads(pickle.dumps(recipe))
    assert sent.config.max_num_seqs == 3 and sent.model == "m"


@pytest.mark.parametrize(
    "host, is_local",
    [
        ("127.0.0.1", True),
        ("127.5.5.5", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_which_hosts_are_local(host, is_local):
    assert ServerSettings("m", host=host).is_local == is_local
    assert bool(ServerSettings("m", host=host).known_hosts) == is_local
