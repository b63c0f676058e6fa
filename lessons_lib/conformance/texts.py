"""A tokenizer for the tiny models, whose tokens are bytes: some of them are part of a character."""

from functools import cache

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lessons_lib.conformance.oracle import END

# Greedily, the tiny Qwen2 answers `levels.sampling.PROMPT` with 70 87 94 25 61 70 72 43 ...: half a character, é as two
# tokens, ":", "^" and € as three. The other tokens are the characters from "!" on.
PARTS = {87: 0xC3, 94: 0xA9, 70: 0xE2, 72: 0x82, 43: 0xAC, 95: 0xBC, 96: ord(" ")}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@cache
def byte_tokenizer() -> PreTrainedTokenizerBase:
    """Each token is a byte, so that the text of an answer and its tokens can be read off each other."""
    shown_as = _characters_of_bytes()
    vocabulary = {shown_as[PARTS.get(token, ord("!") + token)]: token for token in range(97)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=shown_as[ord("!") + END])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _characters_of_bytes() -> dict[int, str]:
    """How GPT-2's vocabulary writes each byte: those that can be printed as themselves, the others from 256 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + index) for index, byte in enumerate(others)}
