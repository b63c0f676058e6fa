"""Lesson 14: the options of `python -m lessons_lib.serving`. Where `vllm serve` has one, its name is the same."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from lessons_lib.engine.config import EngineConfig
from lessons_lib.scheduling.policies import StrictPriority
from lessons_lib.scheduling.sequence import FirstComeFirstServed
from lessons_lib.serving.http.engine_recipe import EngineRecipe, default_model, model_name
from lessons_lib.serving.http.settings import LOG_LEVELS, ServerSettings

KEY_VARIABLE = "LESSONS_API_KEY"
ENGINES = ("process", "thread")
POLICIES = {"fcfs": FirstComeFirstServed, "priority": StrictPriority}


class WrongArgument(ValueError):
    """An option makes no sense; the message says what to do."""


@dataclass(frozen=True)
class ServerArguments:
    recipe: EngineRecipe
    settings: ServerSettings
    engine: str
    until_stdin_closes: bool


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> ServerArguments:
    """Read a command line.

    Raises:
        WrongArgument: a value makes no sense.
        SystemExit: argparse has printed what is wrong, or the help.
    """
    options = parser().parse_args(arguments)
    try:
        config = EngineConfig(**_of_fields(EngineConfig, options) | {"policy": POLICIES[options.policy]()})
        model = options.model or default_model()
        # From the command line, where others on the machine can see them, and from the environment.
        keys = [*(options.api_key or ()), *environment.get(KEY_VARIABLE, "").replace(",", " ").split()]
        own = _of_fields(ServerSettings, options)
        own["model_name"] = options.served_model_name or model_name(model)
        recipe = EngineRecipe(model, options.device, config, options.num_speculative_tokens)
        own["allowed_hosts"] = tuple(options.allowed_host) if options.allowed_host else None
        settings = ServerSettings(api_keys=tuple(dict.fromkeys(keys)), **own)
    except ValueError as error:
        raise WrongArgument(_with_options(str(error), options)) from error
    if options.device == "cuda" and not torch.cuda.is_available():
        raise WrongArgument("--device is 'cuda', and PyTorch finds no GPU here. Leave it away for the CPU.")
    return ServerArguments(recipe, settings, options.engine, options.until_stdin_closes)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lessons_lib.serving",
        description="Serve a language model with the engine of this course, in the way of OpenAI's API.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    model = parser.add_argument_group("model")
    model.add_argument("--model", help="a folder or a name on the Hugging Face hub; the chat model if it is there")
    model.add_argument("--served-model-name", metavar="NAME", help="what clients call it")
    model.add_argument("--device", choices=["cpu", "cuda"], help="where it runs; a GPU if there is one")

    engine = parser.add_argument_group("engine")
    engine.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="the engine's own process, or a thread")
    add = _adder(engine, EngineConfig)
    add("--max-num-seqs", int, "sequences that run at a time")
    add("--max-num-batched-tokens", int, "tokens of a step")
    add("--max-model-len", int, "tokens of a prompt and its completion; as many as the model allows if not given")
    add("--block-size", int, "tokens of a block")
    add("--num-blocks", int, "blocks of the KV cache; as many as fit in --cache-bytes if not given")
    add("--cache-bytes", int, "memory of the KV cache")
    add("--num-swap-blocks", int, "blocks of the swap space; without one, preempted sequences are recomputed")
    add("--host-cache-bytes", int, "CPU memory for cached blocks that leave the cache; not with --num-swap-blocks")
    add("--disk-cache-bytes", int, "a file for those that leave this memory; the next server finds them there")
    engine.add_argument("--cache-dir", metavar="FOLDER", help="where this file is; only you can read it")
    add("--watermark", float, "share of the blocks that stay free for running sequences")
    _adder(engine, EngineRecipe)("--num-speculative-tokens", int, "guesses for a step, found in the text itself")
    add("--max-logprobs", int, "the most log-probabilities that a request may ask for")
    engine.add_argument("--policy", choices=sorted(POLICIES), default="fcfs", help="which request is served next")
    engine.add_argument("--no-prefix-caching", dest="share_prefixes", action="store_false", help="share no blocks")

    server = parser.add_argument_group("server")
    add = _adder(server, ServerSettings)
    add("--host", str, "where it listens; 0.0.0.0 for other machines too")
    add("--port", int, "0 is any free one")
    server.add_argument("--allowed-host", action="append", metavar="NAME", help="a name in Host headers; repeat it")
    server.add_argument(
        "--api-key", action="append", metavar="KEY", help=f"requests need one; repeat it, or set {KEY_VARIABLE}"
    )
    add("--root-path", str, "the path under which a proxy publishes it")
    add("--max-requests", int, "requests that wait or run; one more gets status 429")
    add("--max-prompt-tokens", int, "tokens of all their prompts")
    add("--max-body-bytes", int, "the largest body of a request; what the model's context needs if not given")
    add("--max-header-bytes", int, "the largest head of a request")
    add("--receive-timeout", float, "seconds in which a request must arrive")
    add("--stall-timeout", float, "seconds for which an answer may stay unread")
    add("--step-timeout", seconds, "seconds after which a step counts as hung, and the engine is ended; or none")
    add("--keep-alive-interval", float, "seconds of silence in a stream after which it gets a comment")
    add("--max-responses", int, "responses that are kept for `previous_response_id`")
    add("--response-ttl", float, "seconds for which they are kept")
    add("--shutdown-timeout", float, "seconds that running requests get on SIGTERM")
    server.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="what is logged")
    server.add_argument("--no-access-log", dest="access_log", action="store_false", help="no line for each request")
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    return parser


def seconds(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


def _adder(group: Any, owner: type[Any]) -> Any:
    """Adds options with the defaults of a dataclass's fields."""

    def add(flag: str, kind: Callable[[str], Any], text: str) -> None:
        default = getattr(owner, flag.removeprefix("--").replace("-", "_"))
        group.add_argument(flag, type=kind, default=default, help=text, metavar=kind.__name__.upper())

    return add


def _of_fields(owner: type[Any], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are fields of a dataclass."""
    names = {field.name for field in fields(owner)} & vars(options).keys()
    return {name: getattr(options, name) for name in names}


def _with_options(message: str, options: argparse.Namespace) -> str:
    """A message about fields, reworded for options: `max_num_seqs` is `--max-num-seqs` here."""
    for name in sorted(vars(options), key=len, reverse=True):
        if "_" in name or message.startswith(f"{name} is "):
            message = message.replace(name, "--" + name.replace("_", "-"))
    return message
