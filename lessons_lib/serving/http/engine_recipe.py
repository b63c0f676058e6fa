"""Lesson 14: the recipe of a server's engine, which is made in this process or in one of its own."""

import contextlib
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.guided import Vocabulary
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.proposers import NgramLookup
from lessons_lib.engine.speculation import speculating
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.models.chat_model import CHAT_MODEL, chat_model_path
from lessons_lib.models.configuration import text_config
from lessons_lib.models.loading import BUNDLED_MODEL, load_error, load_model
from lessons_lib.models.validate import must

BUNDLED_NAME = "lessons-bundled"


@dataclass(frozen=True)
class EngineRecipe:
    """Everything that is needed to make an engine. It can be sent to another process; an engine can't.

    Attributes:
        model: a folder, or a name on the Hugging Face hub.
        device: "cpu" or "cuda"; a GPU if there is one, if None.
        config: the engine's sizes.
        num_speculative_tokens: the most guesses for a sequence and step, found in its own text (lesson 18); 0 for none.
    """

    model: str
    device: str | None = None
    config: EngineConfig = field(default_factory=EngineConfig)
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        must(self.num_speculative_tokens >= 0, "num_speculative_tokens", self.num_speculative_tokens, "0 or more")

    def __call__(self) -> LLMEngine:
        """Load the model, and make its engine. On a GPU, its steps overlap (lesson 13)."""
        model, tokenizer = load_model(self.model, self.device)
        if find_spec("llguidance"):  # now, since nothing else runs for the 0.1 to 1 s that it takes
            with contextlib.suppress(Exception):  # a tokenizer that it can't use: requests are told
                Vocabulary.of(tokenizer, text_config(model.config).vocab_size)
        if model.device.type != "cuda":
            return LLMEngine(model, tokenizer, self.config, parts=self.parts())
        engine = LLMEngine(model, tokenizer, replace(self.config, overlap=True), parts=self.parts())
        # No request waits for the compiler. In a terminal, a bar shows how far it is.
        bar = partial(tqdm, desc="compiling and capturing", unit="step", disable=None)
        assert isinstance(engine.runner, GPUModelRunner)
        warm_up(engine.runner, bar)
        return engine

    def parts(self) -> Parts:
        return speculating(NgramLookup(), self.num_speculative_tokens) if self.num_speculative_tokens else Parts()

    def text_side(self) -> tuple[Any, Any]:
        """(config, tokenizer) of the model, without its weights. Raises what `load_model` raises."""
        is_folder = Path(self.model).is_dir()
        where = {"local_files_only": True} if is_folder else {}  # the bundled model never asks the network
        try:
            config: Any = AutoConfig.from_pretrained(self.model, **where)
            return config, AutoTokenizer.from_pretrained(self.model, **where)
        except Exception as error:
            raise load_error(self.model, is_folder, error) from error


def default_model() -> str:
    """The folder of the chat model if `make chat-model` has downloaded it, otherwise that of the bundled model."""
    return str(chat_model_path() or BUNDLED_MODEL)


def model_name(model: str) -> str:
    """The name of a model for clients, unless the user gives another one."""
    if Path(model).resolve() == BUNDLED_MODEL.resolve():
        return BUNDLED_NAME
    folder = Path(model).resolve().name if Path(model).is_dir() else model
    return folder or CHAT_MODEL
