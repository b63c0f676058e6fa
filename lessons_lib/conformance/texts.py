"""A tokenizer for the tiny models, whose tokens are bytes: some of them are part of a character."""

from functools import cache

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lessons_lib.conformance.oracle import END

# Greedily, the tiny Qwen2 answers `levels.sampling.PROMPT` with 70 87 94 25 61 70 72 43 ...: half a character, é as two
# tokens, ":", "^" and € as three. The other tokens are the characters from "!" on.
PARTS = {87: 0xC3, 94: 0xA9, 70: 0xE2, 72: 0x82, 43: 0xAC, 95: 0xBC, 96: ord(" ")}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@cache
def byte_tokenizer(end: int = END) -> PreTrainedTokenizerBase:
    """Each token is a byte, so that the text of an answer and its tokens can be read off each other."""
    shown_as = bytes_to_unicode()
    vocabulary = {shown_as[PARTS.get(token, ord("!") + token)]: token for token in range(97)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=shown_as[PARTS.get(end, ord("!") + end)])
    fast.chat_template = CHAT_TEMPLATE
    return fast
