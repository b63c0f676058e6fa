"""Lesson 12: text as it grows token by token, and the strings that end it."""

from transformers import PreTrainedTokenizerBase

HALF_A_CHARACTER = "\ufffd"  # what a decoder writes for the first bytes of a character whose rest is missing


def releasable(text: str, stop: "tuple[str, ...] | list[str]") -> tuple[int, bool]:
    """How much of a growing text can be shown now, and whether a stop string has ended it.

    What may be the beginning of a stop string is held back until more text decides.

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
        text: what has been shown.
        stopped: whether a stop string has ended it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: tuple[str, ...] = ()):
        self.tokenizer = tokenizer
        self.stop = stop
        self.text = ""
        self.stopped = False
        self._token_ids: list[int] = []
        self._decoded = ""
        # Tokens before `_new` are in `_decoded`; those from `_context` on are decoded again with new ones.
        self._context, self._new = 0, 0

    def add(self, token: int) -> str:
        """Append one more token.

        Returns:
            the text that can be shown now and could not before: often a word, sometimes nothing.
        """
        self._token_ids.append(token)
        # A token's text depends on its neighbors, so new ones are decoded after the last few, and the text of those is
        # cut off.
        before, now = self._decode(self._context, self._new), self._decode(self._context, None)
        if len(now) > len(before) and not now.endswith(HALF_A_CHARACTER):
            self._decoded += now[len(before) :]
            self._context, self._new = self._new, len(self._token_ids)
        return self._show(*releasable(self._decoded[len(self.text) :], self.stop))

    def finish(self) -> str:
        """No token follows: show what was held back."""
        if self.stopped:
            return ""
        self._decoded += self._decode(self._context, None)[len(self._decode(self._context, self._new)) :]
        rest = self._decoded[len(self.text) :]
        length, stopped = releasable(rest, self.stop)
        return self._show(length if stopped else len(rest), stopped)

    def _decode(self, start: int, end: int | None) -> str:
        return str(self.tokenizer.decode(self._token_ids[start:end], skip_special_tokens=True))

    def _show(self, length: int, stopped: bool) -> str:
        if self.stopped:
            return ""
        shown = self._decoded[len(self.text) :][:length]
        self.text += shown
        self.stopped = stopped
        return shown
