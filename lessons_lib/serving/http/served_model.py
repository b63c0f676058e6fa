"""What the server needs of the model besides its engine: text to tokens, tokens to text, and the chat template."""

import asyncio
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from lessons_lib.models.loading import context_length
from lessons_lib.models.prompts import MAX_CHARACTERS_PER_TOKEN, BadRequest
from lessons_lib.models.support import text_config

# A model that was never trained on chats has never seen roles: it just continues the last message.
DEFAULT_CHAT_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}"
INLINE_CHARACTERS = 4096  # shorter texts are encoded faster than another thread is woken


@dataclass(frozen=True)
class ServedModel:
    """The one model of a server.

    Attributes:
        name: what clients call it.
        tokenizer: of the front; the engine may have its own, in another process.
        max_model_len: the longest sequence, prompt and completion together. None if nothing limits it.
        vocab_size: of the model.
        chat_template: Jinja; replaces the tokenizer's.
        created: when the server started, in seconds since 1970.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    max_model_len: int | None
    vocab_size: int
    chat_template: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(
        cls,
        name: str,
        config: PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        max_model_len: int | None = None,
        chat_template: str | None = None,
    ) -> "ServedModel":
        """Of a model's config: its weights may be in another process.

        Args:
            max_model_len: `EngineConfig.max_model_len`; the model's own context if not given.
        """
        longest = context_length(config) if max_model_len is None else max_model_len
        return cls(name, tokenizer, longest, text_config(config).vocab_size, chat_template)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Encoding a long one doesn't stop the event loop.

        Raises:
            BadRequest: it is longer than any text that fits in the context, or can't be encoded.
        """
        if len(text) <= INLINE_CHARACTERS:
            return self._encode(text, add_special_tokens)
        return await asyncio.to_thread(self._encode, text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.max_model_len is not None and len(text) > self.max_model_len * MAX_CHARACTERS_PER_TOKEN:
            raise BadRequest(
                f"prompt has {len(text)} characters; the context is {self.max_model_len} tokens, and "
                f"{MAX_CHARACTERS_PER_TOKEN} characters are the most that a token may have. Shorten the prompt."
            )
        try:
            return list(self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False).input_ids)
        except Exception as error:
            raise BadRequest(
                f"prompt can't be encoded by the tokenizer ({type(error).__name__}: {error}). Give a text without half "
                "characters (lone surrogates), or token ids."
            ) from error

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Token ids of a chat, by a chat template: the server's, or the tokenizer's, or one that joins the messages.

        Raises:
            BadRequest: the template can't write these messages.
        """
        template = self.chat_template or self.tokenizer.chat_template or DEFAULT_CHAT_TEMPLATE
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
        except Exception as error:  # templates raise what they like, such as "roles must alternate"
            raise BadRequest(f"messages can't be written by the chat template: {error}") from error
        # The template has written the special tokens.
        return await self.encode(str(text), add_special_tokens=False)

    def check_tokens(self, name: str, token_ids: list[int]) -> None:
        """
        Raises:
            BadRequest: a token is outside the vocabulary.
        """
        for token in token_ids:
            if not 0 <= token < self.vocab_size:
                raise BadRequest(
                    f"{name} contains token id {token}; the vocabulary has ids 0 to {self.vocab_size - 1}."
                )

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    @functools.cached_property
    def token_text(self) -> Mapping[int, str]:
        """Token -> its own text; found when it is first looked up."""
        return _Remembered(lambda token: self.decode([token]))

    @functools.cached_property
    def token_bytes(self) -> Mapping[int, list[int]]:
        """Token -> its own bytes; found when it is first looked up. Half a character has bytes, and no text."""
        return _Remembered(lambda token: list(bytes_of(self.tokenizer, token)))


class _Remembered(dict[int, Any]):
    def __init__(self, find: Any):
        super().__init__()
        self._find = find

    def __missing__(self, token: int) -> Any:
        found = self[token] = self._find(token)
        return found


def bytes_of(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """The bytes that a token stands for."""
    piece = tokenizer.convert_ids_to_tokens(token)
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    of_characters = _bytes_of_characters()
    # Added tokens are written as they are: "<|im_end|>" in either way, but a space only in theirs.
    if isinstance(piece, str) and type(decoder).__name__ == "ByteLevel" and set(piece) <= of_characters.keys():
        return bytes(of_characters[character] for character in piece)
    if isinstance(piece, str) and len(piece) == 6 and piece.startswith("<0x"):  # SentencePiece's tokens of one byte
        return bytes([int(piece[3:5], 16)])
    return str(tokenizer.decode([token])).encode("utf-8", "replace")


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies: printable ones for themselves, and those from
    U+0100 on for the others, in order (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
