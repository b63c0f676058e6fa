"""Marks where a wrong text or list of tokens differs from the right one, as in "The dog »ran away«."

`Table` and the panels of checks show a marked part in color in a notebook; elsewhere the signs themselves are seen.
"""

import re
from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from html import escape
from itertools import accumulate, pairwise

START, END = "»", "«"
CHANCE = 2  # so few equal words between two differences are equal by chance
NEAR = 3  # equal tokens that a long list shows next to a difference
SHOWN = 12  # tokens that a long list shows of a difference
# Black on a light orange: the contrast is 12 to 1 on a light page and on a dark one, since both colors are ours.
STYLE = "background:#FFC48C;color:#111;padding:0 0.15em;border-radius:0.2em"


def marked(right: str | Sequence[object], other: str | Sequence[object], limit: int | None = None) -> str:
    """Another text, with the words marked in which it differs from the right one; or another list of tokens.

    Args:
        right, other: two texts, or two lists of tokens. A long list is cut where it is equal, and has no marks where
            nothing is equal.
        limit: if `other` is a text with more characters, compare and show only so many, in whole words. A text that
            was cut doesn't end.

    Returns:
        `other`, with `»` and `«` around each difference. Where words of `right` are missing, it says so;
        but a list just ends.
    """
    if isinstance(right, str) and isinstance(other, str):
        right_words, words = right.split(), other.split()
        is_cut = limit is not None and len(" ".join(words)) > limit
        if limit is not None and is_cut:
            right_words, words = _beginning(right_words, limit), _beginning(words, limit)
        return " ".join(
            part if is_equal else f"{START}{part}{END}"
            for start, end, is_equal, missing in _parts(right_words, words)
            if start < len(words) or not is_cut
            for part in [" ".join(words[start:end]) or _told(missing, end == len(words))]
        )
    texts = list(map(repr, other))
    parts = list(_parts(list(map(repr, right)), texts))
    if not any(is_equal for *_, is_equal, _ in parts):
        return f"[{', '.join(texts)}]"
    shown = []
    for index, (start, end, is_equal, missing) in enumerate(parts):
        part = texts[start:end]
        if is_equal:
            shown.append(_cut_equal(part, index > 0, index < len(parts) - 1))
        elif part or end < len(texts):
            more = [f"… {len(part) - SHOWN} more"] if len(part) > SHOWN else []
            inside = ", ".join(part[:SHOWN] + more) or _told(missing, False)
            shown.append(f"{START}{inside}{END}")
    return f"[{', '.join(shown)}]"


def code_as_html(text: str) -> str:
    """A text as HTML, what stands in `backticks` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def marks_as_html(escaped: str) -> str:
    """A text without `<` and `&`, its marks as HTML."""
    return re.sub(f"{START}([^{END}]*){END}", f"<mark style='{STYLE}'>\\1</mark>", escaped)


def _parts(right: list[str], other: list[str]) -> list[tuple[int, int, bool, int]]:
    """The parts of `other`: (start, end, whether it is equal, how many words are missing there)."""
    # An equal beginning is no chance, however short; the matcher would prefer a longer match further on.
    differ = (index for index, pair in enumerate(zip(right, other)) if pair[0] != pair[1])
    begin = next(differ, min(len(right), len(other)))
    blocks = SequenceMatcher(None, right[begin:], other[begin:], autojunk=False).get_matching_blocks()
    equal = [Match(0, 0, begin)] * (begin > 0)
    equal += [Match(block.a + begin, block.b + begin, block.size) for block in blocks[:-1] if block.size > CHANCE]
    borders = [(0, 0), *((block.a, block.b) for block in equal for _ in (0, 1)), (len(right), len(other))]
    for index, block in enumerate(equal):
        borders[2 * index + 2] = block.a + block.size, block.b + block.size
    parts = []
    for index, ((a, b), (next_a, next_b)) in enumerate(pairwise(borders)):
        if (a, b) != (next_a, next_b):
            parts.append((b, next_b, index % 2 == 1, next_a - a if b == next_b else 0))
    return parts


def _beginning(words: list[str], limit: int) -> list[str]:
    """As many of the words as fit in so many characters, with the spaces between them."""
    ends = accumulate(len(word) + 1 for word in words)
    return words[: sum(end - 1 <= limit for end in ends)]


def _told(missing: int, is_end: bool) -> str:
    return "ends here" if is_end else f"{missing} missing"


def _cut_equal(part: list[str], has_before: bool, has_after: bool) -> str:
    first, last = NEAR * has_before, NEAR * has_after
    left_out = len(part) - first - last
    if left_out <= NEAR:
        return ", ".join(part)
    return ", ".join([*part[:first], f"… {left_out} equal …", *part[len(part) - last :]])
