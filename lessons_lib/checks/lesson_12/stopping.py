"""Judges 12.2, `releasable`: no part of a stop string is ever shown, and nothing else is held back."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_12.guessing import likeliest_idea
from lessons_lib.engine.detokenizer import releasable
from lessons_lib.viz.words import START, marked

CASES = (
    ("The old dog", ()),
    ("The old dog", ("END",)),
    ("The dog. END Then", ("END",)),
    ("The dog. END", ("END",)),
    ("The dog. EN", ("END",)),
    ("The dog. E", ("END",)),
    ("E", ("END",)),
    ("END", ("END",)),
    ("", ("END",)),
    ("The EN dog", ("END",)),
    ("The DNE", ("END",)),
    ("The N", ("END",)),
    ("The ND", ("END",)),
    ("The end", ("END",)),
    ("one END two END", ("END",)),
    ("one\n\ntwo END", ("END", "\n\n")),
    ("one END two\n\n", ("END", "\n\n")),
    ("one\n\ntwo END", ("\n\n", "END")),
    ("one END two", ("\n\n", "END")),
    ("The dog. E", ("\n\n", "END")),
    ("The dog. EN", ("N!", "END")),
    ("The dog. EN", ("END", "N!")),
    ("aaa", ("aab",)),
    ("aaab", ("aab",)),
    ("ab", ("abc", "b")),
)


def check_releasable(attempt) -> None:
    found = []
    for text, stop in CASES:
        try:
            found.append(_asked(attempt, text, stop))
        except Exception:
            if found == [releasable(*case) for case in CASES[: len(found)]]:
                raise
            break  # an earlier case was wrong: report that one
    for index, got in enumerate(found):
        if got != releasable(*CASES[index]):
            _refuse(got, list(zip(CASES, found)), index)
    rng = Random(11)
    for _ in range(300):
        stop = tuple("".join(rng.choices("ab.", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3)))
        case = "".join(rng.choices("ab.", k=rng.randint(0, 9))), stop
        got = _asked(attempt, *case)
        if got != releasable(*case):
            _refuse(got, [(case, got)], 0)


def _refuse(got, cases, index: int) -> None:
    (text, stop), _ = cases[index]
    want = releasable(text, stop)
    what = f"expected ({want[0]}, {want[1]}), so {text[: want[0]]!r} can be shown; yours returned ({got[0]}, {got[1]})."
    if got[0] > 0 and START in (shown := marked(text[: want[0]], text[: got[0]])):
        what += f" The reader would see {shown}."
    raise Mistake(what, case=_told(text, stop), idea=_why(cases, index))


def _told(text: str, stop) -> str:
    return f"releasable({text!r}, {stop!r})"


def _asked(attempt, text: str, stop: tuple[str, ...]) -> tuple[int, bool]:
    case = _told(text, stop)
    got = call(attempt, text, stop, case=case)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        idea = "Return both: `return length, stopped`."
        raise Mistake(f"expected a pair, (length, stopped); yours returned {short(got)}.", case=case, idea=idea)
    length, stopped = got
    if isinstance(length, str):
        raise Mistake(
            f"the length should be an int, not a string; yours is {short(length)}.",
            case=case,
            idea="Return how many characters can be shown. The caller takes `text[:length]` itself.",
        )
    if isinstance(length, bool) or not hasattr(length, "__index__"):
        raise Mistake(
            f"the length should be an int; yours is {short(length)}.",
            case=case,
            idea="The length comes first, then whether a stop string was found.",
        )
    if not isinstance(stopped, bool) and stopped not in (0, 1):
        raise Mistake(
            f"`stopped` should be True or False; yours is {short(stopped)}.",
            case=case,
            idea="The length comes first, then whether a stop string was found.",
        )
    return int(length), bool(stopped)


def _beginnings(text: str, stop, whole: int = 0) -> list[int]:
    return [size for string in stop for size in range(1, len(string) + whole) if text.endswith(string[:size])]


def _first_held(text: str, stop) -> int:
    """What is held back if the first stop string with a matching beginning decides."""
    return next((max(sizes) for string in stop if (sizes := _beginnings(text, (string,)))), 0)


def _one_character(text: str, stop) -> int:
    return min(1, max(_beginnings(text[-1:], [string[:2] for string in stop]), default=0))


def _matching(text: str, stop, found) -> list:
    """Pairs (what a wrong rule returns, its message)."""
    length = len(text)
    held = max(_beginnings(text, stop), default=0)
    in_small = releasable(text.lower(), tuple(string.lower() for string in stop))
    other_case = (
        [(in_small, "Matching is case-sensitive: this is neither a stop string nor the beginning of one.")]
        if in_small != releasable(text, stop)
        else []
    )
    if found:
        longer_first = [
            (
                (length - held, False),
                "A complete stop string is in the text, so the answer ends now. Don't wait for a longer one that may have begun before it.",  # noqa: E501
            )
        ]
        held_first = [
            (
                (length - held, False),
                "A complete stop string is in the text, so the answer ends where it begins, whatever the end of the text may become. Look for complete ones first, and hold back only if there is none.",  # noqa: E501
            )
        ]
        ends = [text.index(string) + len(string) for string in stop if string in text]
        return [
            *other_case,
            *(longer_first if length - held < min(found) else []),
            ((length, False), "You missed a stop string in the text. It can be anywhere, not only at the end."),
            *(held_first if held and length - held >= min(found) else []),
            ((min(found), False), "The length is right. But the text contains a complete stop string, so the answer has ended: `stopped` is True."),  # noqa: E501
            ((min(ends), True), "That shows the stop string too. It isn't part of the answer: the text ends where it begins."),  # noqa: E501
            ((max(text.rindex(string) for string in stop if string in text), True), "You cut at the last stop string. The first one in the text ends the answer."),  # noqa: E501
            ((max(found), True), "The text contains several stop strings. The one that comes first in the text ends the answer."),  # noqa: E501
            ((next(text.index(string) for string in stop if string in text), True), "You took the first string of `stop` that occurs. The one that comes first *in the text* ends the answer."),  # noqa: E501
            ((text.index(max((string for string in stop if string in text), key=len)), True), "You took the longest stop string. The one that comes first *in the text* ends the answer."),  # noqa: E501
            ((length, True), "The stop string is still in the text. The text ends where the first stop string begins."),
            ((min(found) - 1, True), "That is one character too few. Everything before the stop string can be shown."),
            ((min(found) + 1, True), "That is one character too many: the first character of the stop string."),
        ]  # fmt: skip
    longest = max(map(len, stop), default=0)
    return [
        *other_case,
        ((length, False), "The text ends with the beginning of a stop string. Hold it back: the next token may complete it."),  # noqa: E501
        ((length - held, True), "The beginning of a stop string isn't a stop string yet. The answer goes on."),
        ((length, True), "The text contains no complete stop string, so the answer goes on: `stopped` is False."),
        ((length - _first_held(text, stop), False), "You took the first stop string that matches. Hold back the longest beginning of *any* of them."),  # noqa: E501
        ((length - min(_beginnings(text, stop), default=0), False), "Several beginnings match at the end. Hold back the longest of them: less would show part of a stop string."),  # noqa: E501
        ((length - max(_beginnings(text, stop[:1]), default=0), False), "You hold back only beginnings of the first string of `stop`. Look at those of all of them."),  # noqa: E501
        ((length - max((size for size in _beginnings(text, stop) if size < length), default=0), False), "The whole text may be the beginning of a stop string, too. Then nothing can be shown yet."),  # noqa: E501
        ((length - max((size for string in stop for size in range(1, len(string)) if text.endswith(string[-size:])), default=0), False), "You compared the end of the text with the *ends* of the stop strings. Compare it with their beginnings: `string[:n]`."),  # noqa: E501
        ((length - _one_character(text, stop), False), "You hold back one character at most. Compare the end of the text with all beginnings of a stop string, and hold back the longest that matches."),  # noqa: E501
        ((length - max(_beginnings(text, [string[:-1] for string in stop]), default=0), False), "You miss the longest beginning of a stop string: all of it but its last character. `range(1, len(string))` includes it."),  # noqa: E501
        ((held, False), "You returned how many characters are held back. Return how many can be shown: the length of the rest."),  # noqa: E501
        ((max(0, length - longest + 1), False), "You hold back as much as the longest stop string could need, whatever the text is. Hold back only what *is* the beginning of one."),  # noqa: E501
        ((0, False), "You hold back everything. Only what may still become a stop string has to wait."),
        ((length - next((size for size in range(length, 0, -1) if any(char in string for string in stop for char in text[-size:])), 0), False), "Hold back only what is at the very end of the text and is the beginning of a stop string."),  # noqa: E501
    ]  # fmt: skip


def _why(cases, first: int) -> str:
    (text, stop), got = cases[first]
    found = [text.index(string) for string in stop if string in text]
    if got[0] < 0 or got[0] > len(text):
        return f"The text has {len(text)} characters, so the length is between 0 and {len(text)}. (`text.find` returns −1 if it finds nothing.)"  # noqa: E501
    guesses = [
        {idea: guess for guess, idea in _matching(*case, [case[0].index(s) for s in case[1] if s in case[0]])}
        for case, _ in cases
    ]

    def rule(idea: str):
        return lambda case: guesses[case][idea] == cases[case][1] if idea in guesses[case] else None

    idea = likeliest_idea([(rule(idea), idea) for idea in guesses[first]], first, len(cases))
    if idea:
        return idea
    if found:
        return "The first stop string in the text ends it: the `min` of their indices."
    held = max(_beginnings(text, stop), default=0)
    if not held:
        return "Nothing at the end of this text is the beginning of a stop string, so all of it can be shown. A beginning starts with the string's first character, and counts only at the end of the text."  # noqa: E501
    return (
        f"The longest beginning of a stop string that the text ends with is {text[-held:]!r}. Hold back exactly that."
    )
