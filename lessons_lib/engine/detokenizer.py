"""Lesson 12: text as it grows token by token, and the strings that end it."""

from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SKIP_SPECIAL_TOKENS = {"skip_special_tokens": True}
HALF_A_CHARACTER = "\ufffd"  # what a decoder writes for the first bytes of a character whose rest is missing


def releasable(text: str, stop: "tuple[str, ...] | list[str]") -> tuple[int, bool]:
    """Find the part of a growing text that can be shown now, and whether a stop string has ended it.

    A possible beginning of a stop string is held back until more text decides.

    Args:
        text: all text so far.
        stop: strings that end it.

    Returns:
        (length, stopped): `text[:length]` may be shown. If stopped, nothing follows.
    """
    found = [text.index(string) for string in stop if string in text]
    if found:
        return min(found), True
    beginnings = (string[:size] for string in stop for size in range(1, min(len(string), len(text) + 1)))
    held = max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)
    return len(text) - held, False


class IncrementalDetokenizer:
    """The text of one completion while it grows.

    Attributes:
        text: the text that has been shown.
        stop_string: the stop string that has ended it, or None.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...] = (), *, min_tokens: int = 0,
        include_stop: bool = False, options: dict[str, bool] = SKIP_SPECIAL_TOKENS,
    ):  # fmt: skip
        """
        Args:
            min_tokens: stop strings are looked for behind this many tokens.
            include_stop: the stop string is part of the text.
            options: for `tokenizer.decode`, see `decode_options`.
        """
        self.tokenizer, self.stop, self.options = tokenizer, stop, options
        self.min_tokens, self.include_stop = min_tokens, include_stop
        self.text = ""
        self.stop_string: str | None = None
        self._token_ids: list[int] = []
        self._backend = backend_of(tokenizer, options)
        self._needs_context = type(getattr(self._backend, "decoder", None)).__name__ != "ByteLevel"
        self._decoded = ""
        self._cleared = 0  # no stop string begins before this place of `_decoded`
        # Tokens before `_new` are in `_decoded`; those from `_context` on are decoded again with new ones. `_before` is
        # the text of those between.
        self._context, self._new, self._before = 0, 0, ""

    @property
    def stopped(self) -> bool:
        """True if a stop string has ended the text."""
        return self.stop_string is not None

    def add(self, token: int) -> str:
        """Append one more token.

        Returns:
            the text that can be shown now and could not before: often a word, sometimes nothing.
        """
        self._token_ids.append(token)
        # A token's text depends on its neighbors, so new ones are decoded after the last few, and the text of those is
        # cut off.
        now = self._decode(self._context)
        if len(now) > len(self._before) and not now.endswith(HALF_A_CHARACTER):
            self._decoded += now[len(self._before) :]
            end = len(self._token_ids)
            # A token of bytes is the same bytes after any others, so nothing before complete characters matters.
            self._context, self._new = self._new if self._needs_context else end, end
            self._before = self._decode(self._context) if self._needs_context else ""
        return self._show()

    def finish(self) -> str:
        """Show the text that was held back: no token follows."""
        if self.stopped:
            return ""
        self._decoded += self._decode(self._context)[len(self._before) :]
        return self._show(is_last=True)

    def _decode(self, start: int) -> str:
        token_ids = self._token_ids[start:]
        if self._backend is None:
            return str(self.tokenizer.decode(token_ids, **self.options))
        return str(self._backend.decode(token_ids, skip_special_tokens=self.options["skip_special_tokens"]))

    def _show(self, is_last: bool = False) -> str:
        if self.stopped:
            return ""
        if not self.stop or len(self._token_ids) <= self.min_tokens:
            self._cleared = len(self._decoded)
        length, stopped = releasable(self._decoded[self._cleared :], self.stop) if self.stop else (0, False)
        self._cleared = end = self._cleared + length
        if stopped:
            self.stop_string = next(string for string in self.stop if self._decoded.startswith(string, end))
            end += len(self.stop_string) if self.include_stop else 0
        elif self.include_stop or is_last:
            end = len(self._decoded)
        shown = self._decoded[len(self.text) : end]
        self.text += shown
        return shown


def backend_of(tokenizer: PreTrainedTokenizerBase, options: dict[str, bool]) -> Any:
    """The `tokenizers.Tokenizer` whose `decode` returns what `tokenizer.decode` does, in a quarter of the time. None if
    `tokenizer.decode` does more than call it."""
    for name in ("decode", "_decode"):
        if getattr(getattr(tokenizer, name, None), "__func__", None) is not getattr(PreTrainedTokenizerFast, name):
            return None  # a class or a test has its own
    if options.get("clean_up_tokenization_spaces", tokenizer.clean_up_tokenization_spaces):
        return None
    return tokenizer.backend_tokenizer


def decode_options(tokenizer: PreTrainedTokenizerBase, skip_special: bool, spaces_between: bool) -> dict[str, bool]:
    """The keyword arguments of `tokenizer.decode`."""
    options = {"skip_special_tokens": skip_special}
    if not spaces_between:
        options["spaces_between_special_tokens"] = False
    if getattr(tokenizer, "clean_up_tokenization_spaces", False):
        # It would join "do n't" to "don't" when the end arrives, but what has been shown can't be taken back.
        options["clean_up_tokenization_spaces"] = False
    return options


def text_of(tokenizer: PreTrainedTokenizerBase, token_ids: list[int], options: dict[str, bool]) -> str:
    """The text of all tokens of a completion: the text that a stream of them would have shown."""
    text = str(tokenizer.decode(token_ids, **options))
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if HALF_A_CHARACTER not in text or type(decoder).__name__ == "ByteLevel":
        return text
    # Bytes that are no character: how much of the text around them is unreadable depends on where decoding begins.
    stream = IncrementalDetokenizer(tokenizer, options=options)
    for token in token_ids:
        stream.add(token)
    stream.finish()
    return stream.text
