"""12.4, `releasable`: no part of a stop string is ever shown, and nothing else is held back."""

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons_lib.checks.diagnosis import Task, calls, mistakes

Case = tuple[str, tuple[str, ...]]


def cases() -> Iterator[Case]:
    yield "The old dog", ()
    for text in ("The old dog", "The dog. END Then", "The dog. END", "The dog. EN", "The dog. E", "E", "END", ""):
        yield text, ("END",)
    for text in ("The EN dog", "The DNE", "The N", "The ND", "The end", "The e", "one END two END", "END EN"):
        yield text, ("END",)
    for text in ("one\n\ntwo END", "one END two\n\n", "one END two", "The dog. E", "one\n"):
        yield text, ("END", "\n\n")
        yield text, ("\n\n", "END")
    for text, *stop in (
        ("The dog. EN", "N!", "END"), ("The dog. EN", "END", "N!"), ("aaa", "aab"), ("aaab", "aab"), ("aab aab", "aab"),
        ("ab", "abc", "b"), ("a. b", "."), ("What? No", "?"), ("a", "abc", "a"),
    ):  # fmt: skip
        yield text, tuple(stop)
    draw = Random(11)
    for _ in range(60):
        stop = ["".join(draw.choices("ab.", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 3))]
        yield "".join(draw.choices("ab.", k=draw.randint(0, 9))), tuple(stop)


def seen(got: Any) -> Any:
    """A pair, whatever kind of ints, bools and pairs it is."""
    if isinstance(got, tuple | list) and len(got) == 2 and hasattr(got[0], "__index__") and got[1] in (0, 1):
        return int(got[0]), bool(got[1])
    return got


MISTAKES = """
Nothing is held back. The end of this text may become a stop string: {held!r} is the beginning of one.
~ return len(text) - held, False => return len(text), False
Hold back only the longest end of the text that is the beginning of a stop string, not everything.
~ return len(text) - held, False => return 0 if stop else len(text), False
or ~ return len(text) - held, False => return len(text) - min(len(text), max(map(len, stop), default=1) - 1), False
or ~ return len(text) - held, False => return len(text) - min(len(text), max(map(len, stop), default=0)), False
Of several beginnings that match, hold back the longest: a shorter one would show a part of it.
~ held = max( => held = min(
Not only the first stop string whose beginning matches counts. Look at all, and take the longest.
- held = => held = next((max(n) for s in stop if (n := [k for k in range(1, len(s)) if text.endswith(s[:k])])), 0)
or ~ for string in stop for size => for string in stop[:1] for size
More than one character may have to be held back: {held!r} is the beginning of a stop string.
~ range(1, min(len(string), len(text) + 1)) => range(1, min(2, len(string)))
The longest beginning is all of the stop string but its last character: `range(1, len(string))`.
~ range(1, min(len(string), len(text) + 1)) => range(1, len(string) - 1)
The whole text may be the beginning of a stop string.
~ min(len(string), len(text) + 1) => min(len(string), len(text))
A beginning that matches is held back: `string[:n]`. You look for the *ends* of stop strings.
~ string[:size] => string[-size:]
Any letter of a stop string isn't a beginning of it. Only `string[:n]`, at the very end of the text, is held back.
- held = => held = len(text) - len(text.rstrip("".join(stop))) if "".join(stop) else 0
or ~ text.endswith(beginning) => beginning in text
or - held = => held = max((1 for string in stop for letter in string if text.endswith(letter)), default=0)
Return how many characters can be shown, not how many are held back.
~ return len(text) - held, False => return held, False
Look for complete stop strings first. If one is in the text, the answer has ended, even if a longer one may have begun.
< if found: => held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
- if found: => if found and not held:
or < if found: => held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
- if found: => if found and len(text) - held >= min(found):
A stop string may be anywhere in the text, not only at its end.
= found = [len(text) - len(string) for string in stop if text.endswith(string)]
A stop string isn't part of the answer: return where it begins.
~ text.index(string) for => text.index(string) + len(string) for
or = return len(text), True
The answer ends where the *first* stop string in the text begins, whatever its place in `stop`: the smallest index.
~ return min(found), True => return max(text.rindex(string) for string in stop if string in text), True
or ~ return min(found), True => return found[0], True
or ~ return min(found), True => return found[-1], True
or ~ return min(found), True => return text.index(max((s for s in stop if s in text), key=len)), True
or ~ return min(found), True => return text.index(min((s for s in stop if s in text), key=len)), True
Return the length. The caller takes `text[:length]` itself.
~ return min(found), True => return text[: min(found)], True
~ return len(text) - held, False => return text[: len(text) - held], False
Return both: `return length, stopped`.
~ return min(found), True => return min(found)
~ return len(text) - held, False => return len(text) - held
The length comes first, then whether the text is stopped.
~ return min(found), True => return True, min(found)
~ return len(text) - held, False => return False, len(text) - held
`find` returns −1 for a stop string that isn't in the text. That isn't an index.
= found = [text.find(string) for string in stop]
or < if found: => found = [text.find(string) for string in stop]
- if found: => if found and min(found) >= 0:
`index` raises an error for a stop string that isn't in the text. Ask first: `string in text`.
= found = [text.index(string) for string in stop]
Without stop strings, or if nothing matches, there is no maximum: `max(..., default=0)`, and all of the text is shown.
~ , default=0) => )
Matching is case-sensitive: this is neither a stop string nor the beginning of one.
< found = => text, stop = text.lower(), tuple(string.lower() for string in stop)
Stop strings are plain text, not regular expressions: "." stands for itself.
- found =
+ import re
+ found = [m.start() for string in stop if (m := re.search(string.replace("?", "[?]"), text))]
"""

TASK = Task(
    reference="lessons_lib.engine.detokenizer:releasable",
    cases=cases,
    **calls("releasable", returns=seen),
    known=mistakes(MISTAKES),
    facts=lambda case: {
        "held": max((s[:n] for s in case[1] for n in range(1, len(s)) if case[0].endswith(s[:n])), key=len, default="")
    },
    about={
        "returned": "If a stop string is in the text, return the smallest index of one, and True. Otherwise hold back "
        "the longest end of the text that is the beginning of a stop string, and return False."
    },
)

EXERCISE = TASK.exercise(
    id="12.4",
    title="what can be shown (optional)",
    hints=(
        "Two questions, one after the other. Is a complete stop string anywhere in the text? If not, does the text end "
        "with the beginning of one?",
        "For each stop string in the text, `text.index(string)` says where it begins; the smallest index ends the "
        "text. Otherwise try all proper beginnings of each stop string: does the text end with one? Hold back the "
        "longest that matches.",
        "`found = [text.index(string) for string in stop if string in text]`; if it isn't empty, `return min(found), "
        "True`. Otherwise hold back `max((size for string in stop for size in range(1, len(string)) if "
        "text.endswith(string[:size])), default=0)` characters.",
    ),
)
