"""The server's side of the model: text to tokens, tokens to text, and the chat template."""

import asyncio
import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lessons_lib.models.configuration import context_length, text_config
from lessons_lib.models.prompts import MAX_CHARACTERS_PER_TOKEN
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http.tools import FORMATS, HERMES, CallFormat, Messages, taught

# A model that was never trained on chats has never seen roles: it just continues the last message.
DEFAULT_CHAT_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}"
# A client can't set these by chat_template_kwargs.
CHAT_ARGUMENTS = signature(PreTrainedTokenizerBase.apply_chat_template).parameters.keys() | {"messages", "tool_schemas"}
INLINE_CHARACTERS, INLINE_MESSAGES = 4096, 16  # encoding less is faster than waking another thread


class TooLong(BadRequest):
    """A prompt that the context has no room for."""

    code = "context_length_exceeded"


@dataclass(frozen=True)
class ServedModel:
    """The one model of a server.

    Attributes:
        name: what clients call it.
        tokenizer: of the front; the engine may have its own, in another process.
        max_model_len: the longest sequence, prompt and completion together. None if nothing limits it.
        vocab_size: of the model.
        created: when the server started, in seconds since 1970.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    max_model_len: int | None
    vocab_size: int
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls, name: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_model_len: int | None = None
    ) -> "ServedModel":
        """From a model's config: its weights may be in another process. `max_model_len` is that of EngineConfig."""
        longest = context_length(config) if max_model_len is None else max_model_len
        return cls(name, tokenizer, longest, text_config(config).vocab_size)

    @functools.cached_property
    def text_tokenizer(self) -> PreTrainedTokenizerBase:
        """A tokenizer to which special tokens in a text are text: a client that wants one sends its id. It is a copy,
        since a tokenizer can't encode in both ways in two threads."""
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.split_special_tokens = True
        return tokenizer

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Encoding a long one doesn't stop the event loop.

        Raises:
            BadRequest: it is longer than any text that fits in the context, or can't be encoded.
        """
        if len(text) <= INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self._check_length("prompt", len(text))
        try:
            token_ids = list(self.text_tokenizer(text, add_special_tokens=add_special_tokens, verbose=False).input_ids)
            written = [token for token in self._special_tokens if token in text]
            if written:  # some vocabularies have them as words
                plain = self.text_tokenizer(text, add_special_tokens=False, verbose=False).input_ids
                written = [token for token in written if self._special_tokens[token] in plain]
        except Exception as error:
            raise BadRequest(
                f"prompt can't be encoded by the tokenizer ({type(error).__name__}: {error}). Give a text without half "
                "characters (lone surrogates), or token ids."
            ) from error
        if written:
            raise BadRequest(f"prompt contains {written[0]!r}, which this tokenizer can't encode as text; omit it.")
        return token_ids

    async def encode_chat(
        self, messages: Messages, tools: Messages | None = None, *, add_generation_prompt: bool = True,
        continue_final_message: bool = False, chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:  # fmt: skip
        """Token ids of a chat, by the tokenizer's chat template, or by one that joins the messages. Only the template
        writes control tokens; in a message or a tool, they are text.

        Raises:
            BadRequest: the template can't write these messages.
        """
        length = sum(len(str(value)) for each in (*messages, *(tools or ())) for value in each.values())
        self._check_length("messages", length)
        template = DEFAULT_CHAT_TEMPLATE
        if self.tokenizer.chat_template:
            template = self.tokenizer.get_chat_template(tools=tools)
        if "tools" not in template and (tools or any(each["role"] == "tool" for each in messages)):
            messages, tools = taught(messages, tools or []), None
        write = functools.partial(
            self.tokenizer.apply_chat_template,
            messages,
            tools=tools,  # type: ignore[arg-type]  # a list of dicts
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            return_dict=False,
            sanitize_control_tokens=True,
            tokenizer_kwargs={"verbose": False},
        )
        more = chat_template_kwargs or {}
        taken = sorted(more.keys() & (CHAT_ARGUMENTS | self.tokenizer.special_tokens_map.keys()))
        if taken:
            raise BadRequest(f"chat_template_kwargs contains {taken[0]!r}, which the server sets; leave it out.")
        try:
            is_short = length <= INLINE_CHARACTERS and len(messages) <= INLINE_MESSAGES
            encoded = write(**more) if is_short else await asyncio.to_thread(write, **more)
        except RecursionError as error:
            raise BadRequest("chat_template_kwargs is nested too deeply; make it flatter.") from error
        except Exception as error:  # a template may raise anything, such as "roles must alternate"
            raise BadRequest(f"messages can't be written by the chat template: {error}") from error
        return list(encoded)

    @functools.cached_property
    def call_format(self) -> CallFormat:
        """The format of the model's tool calls."""
        template = str(self.tokenizer.chat_template)  # some have several, by name
        found = next((each for each in FORMATS if each.sign in template), HERMES)
        return replace(found, begin_token=self._special_tokens.get(found.begin))

    def _check_length(self, name: str, num_characters: int) -> None:
        """Refuse a text that can't fit before it is encoded: TooLong."""
        if self.max_model_len is not None and num_characters > self.max_model_len * MAX_CHARACTERS_PER_TOKEN:
            raise TooLong(
                f"{name} has {num_characters} characters. This model's maximum context length is {self.max_model_len} "
                f"tokens, and {MAX_CHARACTERS_PER_TOKEN} characters are the most that a token may have. Shorten it."
            )

    @functools.cached_property
    def _special_tokens(self) -> dict[str, int]:
        found = getattr(self.tokenizer, "added_tokens_decoder", {}).items()
        unknown = self.tokenizer.unk_token  # of a character that the vocabulary lacks
        return {token.content: index for index, token in found if token.special and token.content != unknown}

    def check_tokens(self, name: str, token_ids: list[int]) -> None:
        """Refuse tokens outside the vocabulary: BadRequest."""
        for token in token_ids:
            if not 0 <= token < self.vocab_size:
                raise BadRequest(
                    f"{name} contains token id {token}; the vocabulary has ids 0 to {self.vocab_size - 1}."
                )

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    @functools.cached_property
    def token_text(self) -> Callable[[int], str]:
        """Token -> its own text."""
        return functools.cache(lambda token: self.decode([token]))

    @functools.cached_property
    def token_bytes(self) -> Callable[[int], list[int]]:
        """Token -> its own bytes. Half a character has bytes, and no text."""
        return functools.cache(lambda token: list(bytes_of(self.tokenizer, token)))


def bytes_of(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """The bytes that a token stands for."""
    piece = tokenizer.convert_ids_to_tokens(token)
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    of_characters = bytes_of_characters()
    # Added tokens are written as they are: "<|im_end|>" in either way, but a space only in theirs.
    if isinstance(piece, str) and type(decoder).__name__ == "ByteLevel" and set(piece) <= of_characters.keys():
        return bytes(of_characters[character] for character in piece)
    if isinstance(piece, str) and len(piece) == 6 and piece.startswith("<0x"):  # SentencePiece's tokens of one byte
        return bytes([int(piece[3:5], 16)])
    return str(tokenizer.decode([token])).encode("utf-8", "replace")


@functools.cache
def bytes_of_characters() -> dict[str, int]:
    """Character -> the byte that it stands for in byte-level vocabularies."""
    return {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
