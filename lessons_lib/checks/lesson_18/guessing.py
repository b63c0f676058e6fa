"""18.1, `ngram_guesser`: guess how a text goes on from what followed the same tokens in other texts."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons_lib.checks.diagnosis import Task, Watch, mistakes, without_one
from lessons_lib.engine.draft_lengths import Guess


class Case(NamedTuple):
    """Texts to count, and calls of the function that is made: (tokens, most)."""

    texts: list[list[int]]
    longest: int
    calls: list[tuple[list[int], int]]
    once: bool = False  # the texts are an iterator


# texts, with * read once | longest | tokens > most, in as many calls
CASES = """
1 2 | 1 | 1 > 1
1 2 | 1 | 2 > 1, 3 > 1
1 2, 1 2 | 1 | 1 > 1
1 2, 1 3, 1 3 | 1 | 1 > 1
1 2 1 3 1 3 | 1 | 1 > 1
1 5, 1 3 | 1 | 1 > 1
1 3, 1 5, 1 5, 1 3 | 1 | 1 > 1
1 2 | 4 | 1 > 1
1 2 3 | 1 | 1 > 2, 1 > 1, 1 > 0
1 2 3 | 2 | 1 > 3
1 2 3, 9 2 4, 9 2 4 | 2 | 1 2 > 1, 9 2 > 1, 2 > 1, 7 2 > 1
1 2 3, 9 2 4 | 1 | 9 2 > 1
1 2 3 4, 5 6 3 7, 5 6 3 7 | 3 | 1 2 3 > 1, 6 3 > 1, 8 3 > 1, 9 9 9 1 2 3 > 1
1 2 3 4, 8 3 5, 8 3 5 | 2 | 1 2 > 2, 1 2 3 > 1, 8 > 2
1 2 3 4 5, 0 3 4 6, 0 3 4 6, 0 3 4 6 | 3 | 1 2 > 3, 0 3 > 2, 1 > 4
1 2, 2 3, 3 1 | 2 | 1 > 5, 2 > 5
1 2 1 2 1 2 1 3 | 2 | 2 1 > 3, 1 > 4
1 1 1 1 | 4 | 1 > 3, 1 1 > 3, 1 1 1 1 1 > 2
4, 5, 4 5 | 2 | 4 > 1, 5 > 1
0 0 7, 0 0 7 | 2 | 0 > 2, 0 0 > 2
1 2 3 0, 4 5 0 | 3 | 3 0 > 2, 0 > 1, 2 3 > 4
2, 3 4 | 2 | 2 > 1, 3 > 1
9 1 2, 8 1 3, 8 1 3, 7 1 3 | 2 | 9 1 > 1, 8 1 > 1, 5 1 > 1, 7 1 > 1
1 2 3 4 5 6 | 4 | 2 3 4 5 > 1, 9 3 4 5 > 2, 1 2 > 9
 | 2 | 1 > 1
1 2 3 | 2 |  > 2
*1 2 3, 7 1 2 4 | 3 | 7 1 2 > 1, 9 2 > 1
"""


def cases() -> Iterator[Case]:
    """Smallest first."""

    def ids(text: str) -> list[int]:
        return list(map(int, text.split()))

    for line in CASES.strip("\n").split("\n"):
        texts, longest, calls = line.split("|")
        pairs = (call.split(">") for call in calls.split(","))
        yield Case([ids(text) for text in texts.strip("*").split(",") if text.strip()], int(longest),
                   [(ids(tokens), int(most)) for tokens, most in pairs], texts[0] == "*")  # fmt: skip
    draw = Random(18)
    for _ in range(12):
        texts = [draw.choices(range(4), k=draw.randint(1, 9)) for _ in range(draw.randint(1, 6))]
        calls = [(draw.choices(range(4), k=draw.randint(1, 6)), draw.randint(1, 5)) for _ in range(4)]
        yield Case(texts, draw.randint(1, 4), calls)


def run(attempt: Any, case: Case, watch: Watch) -> None:
    given = iter(case.texts) if case.once else case.texts
    guess = watch(f"`ngram_guesser(texts, {case.longest})`", attempt, given, case.longest, returns=kind_of)
    for tokens, most in case.calls:
        watch(f"`guess({tokens}, {most})`", guess, list(tokens), most, returns=plain, subject="the result")


def kind_of(made: Any) -> str:
    return "a function" if callable(made) else f"not a function but {type(made).__name__}"


def plain(found: Any) -> Any:
    if not isinstance(found, list):
        return found
    return [Guess(one.token, float(one.chance)) if hasattr(one, "chance") else one for one in found]


def tell(case: Case) -> str:
    return f"the texts {'iter(' * case.once}{case.texts}{')' * case.once}, `longest` = {case.longest}."


def smaller(case: Case) -> Iterator[Case]:
    for place in range(len(case.texts)):
        yield case._replace(texts=case.texts[:place] + case.texts[place + 1 :])
    yield from (case._replace(calls=calls) for calls in without_one(case.calls))


MISTAKES = """
`texts` may be an iterator, which is read once. Go through it in the outer loop, and through the lengths inside.
- for text in texts ... counts[tuple
+ for size in range(1, longest + 1):
+     for text in texts:
+         for end in range(size, len(text)):
+             counts[tuple(text[end - size : end])][text[end]] += 1
or < for text in texts => list(texts)
A text's first tokens count, too, in contexts that are shorter than `longest`. You begin after them.
~ range(1, len(text)) => range(longest, len(text))
A context has at least one token. After none at all, anything is guessed.
~ range(1, min(longest, end) + 1) => range(min(longest, end) + 1)
~ range(len(tokens)) => range(len(tokens) + 1)
or ~ range(1, len(text)) => range(len(text))
~ range(1, min(longest, end) + 1) => range(min(longest, end) + 1)
~ range(len(tokens)) => range(len(tokens) + 1)
`len(tokens) - n` is below 0 where `tokens` has fewer than n, and then counts from the end. Begin with n =
`len(tokens)`.
= contexts = (tuple(tokens[len(tokens) - n :]) for n in range(longest, 0, -1))
Each guess begins with the longest context again. Yours never gets longer once a shorter one was needed.
- tokens = tokens[-longest:] => tokens, size = tokens[-longest:], longest
= contexts = (tuple(tokens[start:]) for start in range(max(0, len(tokens) - size), len(tokens)))
- draft.append
+ draft.append(best)
+ size = next(n for n in range(min(size, len(tokens)), 0, -1) if tuple(tokens[-n:]) in following)
The counts are those of `texts`: `guess` reads them, and adds nothing.
- draft: list
+ draft, tokens = [], tokens[:]
+ for end in range(1, len(tokens)):
+     for size in range(1, min(longest, end) + 1):
+         counts[tuple(tokens[end - size : end])][tokens[end]] += 1
+ following = {c: Guess(t, n / (f.total() + 1)) for c, f in counts.items() for t, n in f.most_common(1)}
or - draft: list
+ draft = []
+ following = {c: Guess(t, n / (f.total() + 1)) for c, f in counts.items() for t, n in f.most_common(1)}
- draft.append
+ draft.append(best)
+ for size in range(1, len(tokens) + 1): counts[tuple(tokens[-size:])][best.token] += 1
+ following = {c: Guess(t, n / (f.total() + 1)) for c, f in counts.items() for t, n in f.most_common(1)}
At its end, a text doesn't go on: there a context was followed by nothing, and total doesn't count it.
- following =
+ texts, ends = list(texts), Counter()
+ for text in texts: ends.update(tuple(text[-size:]) for size in range(1, min(longest, len(text)) + 1))
+ ...
~ (found.total() + 1) => (found.total() + ends[context] + 1)
The 1 is added below the line alone: count / (total + 1).
~ count / (found.total() + 1) => (count + 1) / (found.total() + 1)
`//` leaves out the fraction, and a chance is one: divide with `/`.
~ count / (found.total() + 1) => count // (found.total() + 1)
The longest context counts: it says most about what comes next. You take a shorter one.
~ for start in range(len(tokens)) => for start in reversed(range(len(tokens)))
If no text has the longest context, try a shorter one, down to one token.
= contexts = [tuple(tokens)]
or ~ for start in range(len(tokens)) => for start in range(len(tokens) - 1)
A text may have fewer tokens than `longest`, and contexts are counted in all lengths from 1 on. You count one length.
~ range(1, min(longest, end) + 1) => range(min(longest, end), min(longest, end) + 1)
or ~ range(1, min(longest, end) + 1) => range(longest, longest + 1) if longest <= end else ()
A context of `longest` tokens counts, too. `range` leaves out its end.
~ min(longest, end) + 1 => min(longest, end)
or ~ min(longest, end) + 1 => min(longest - 1, end) + 1
A context has at most `longest` tokens.
~ range(1, min(longest, end) + 1) => range(1, end + 1)
~ tokens = tokens[-longest:] => tokens = list(tokens)
~ best.token][-longest:] => best.token]
or ~ range(1, min(longest, end) + 1) => range(1, min(longest + 1, end) + 1)
~ tokens[-longest:] => tokens[-longest - 1 :]
~ best.token][-longest:] => best.token][-longest - 1 :]
The context is what stands right before the token, in this order.
~ tuple(text[end - size : end])] => tuple(reversed(text[end - size : end]))]
or ~ text[end - size : end])] => text[end - size : end] if end - size else text[:1])]
Near its beginning, a text has fewer tokens than `longest`. There the same short context is counted several times.
~ range(1, min(longest, end) + 1) => range(1, longest + 1)
or ~ range(1, min(longest, end) + 1) => range(1, longest + 1)
~ tuple(text[end - size : end])] => tuple(text[max(0, end - size) : end])]
The last token of a text is one that follows, too.
~ range(1, len(text)) => range(1, len(text) - 1)
The second token of a text follows the first: a context may begin with the first.
~ range(1, len(text)) => range(2, len(text))
or ~ min(longest, end) + 1 => min(longest, end - 1) + 1
An n-gram doesn't reach from one text into the next: what follows an end is another story.
- for text in texts => for text in [[token for text in texts for token in text]]:
Only what followed most often is guessed.
~ found.most_common(1) => [list(found.items())[0]]
or ~ found.most_common(1) => [list(found.items())[-1]]
On a tie, the token that followed first is guessed.
~ found.most_common(1) => [max(reversed(found.items()), key=lambda pair: pair[1])]
or ~ found.most_common(1) => [min(found.items(), key=lambda pair: (-pair[1], pair[0]))]
or ~ found.most_common(1) => [max(found.items(), key=lambda pair: (pair[1], pair[0]))]
The chance is the count divided by one *more* than all: what followed once in one case isn't certain.
~ (found.total() + 1) => found.total()
The chance is a share of what followed this context: divide by how often any token did, plus one.
~ count / (found.total() + 1) => count / (len(found) + 1)
or ~ count / (found.total() + 1) => count
or ~ count / (found.total() + 1) => 1 / (found.total() + 1)
or ~ count / (found.total() + 1) => count / (len(counts) + 1)
or ~ count / (found.total() + 1) => count / (count + 1)
A guess counts as a token for the next one: guess again from the text with the guess after it.
- tokens = [*tokens, best.token] => pass
or - tokens = [*tokens, best.token] => tokens = [best.token]
The chance of a guess assumes that those before it are right. You multiply them.
~ draft.append(best) => draft.append(Guess(best.token, best.chance * (draft[-1].chance if draft else 1)))
Up to `most` guesses are asked for, and 0 means none.
~ while len(draft) < most => while len(draft) <= most
or ~ while len(draft) < most => while len(draft) < most - 1
or ~ while len(draft) < most => while not draft or len(draft) < most
or ~ while len(draft) < most => while len(draft) < min(1, most)
Where no context is known, the guesses end. Return those that you have.
- if best is None
- break
+ if best is None:
+     return []
or - if best is None
- break
+ if best is None: best = Guess(0, 0.0)
or - if best is None
- break
+ if best is None: best = following[max(following, key=len)] if following else Guess(0, 0.0)
or - if best is None
- break
+ if best is None: best = Guess(tokens[-1] if tokens else 0, 0.0)
or - if best is None
- break
+ if best is None: return None
A list is asked for.
~ return draft => return iter(draft)
The guesses alone are asked for, without the text before them.
~ return draft => return [*[(each, 1.0) for each in tokens[: len(tokens) - len(draft)]], *draft]
A guess is a `Guess(token, chance)`, in this order: the cells below read `.token`.
~ return draft => return [(*each,) for each in draft]
or ~ return draft => return [each.token for each in draft]
or ~ return draft => return [(each.chance, each.token) for each in draft]
A function is asked for, which guesses: define it inside `ngram_guesser`, and return it without calling it.
~ return guess => return following
or ~ return guess => return None
or ~ return guess => return guess([], 0)
The caller still uses its list of tokens. Work on a copy: `tokens = list(tokens)`, or `[*tokens, token]`.
- tokens = tokens[-longest:]
~ range(len(tokens)) => range(max(0, len(tokens) - longest), len(tokens))
- tokens = [*tokens, best.token] => tokens.append(best.token)
Whether a text occurred before makes no difference: each is counted.
~ for text in texts => for text in map(list, dict.fromkeys(map(tuple, texts)))
A context counts as often as it occurs in a text.
- for text in texts
+ for text in texts:
+     seen = set()
- counts[tuple
+ if tuple(text[end - size : end + 1]) not in seen:
+     seen.add(tuple(text[end - size : end + 1]))
+     counts[tuple(text[end - size : end])][text[end]] += 1
or - for text in texts
+ for text in texts:
+     seen = set()
- counts[tuple
+ if tuple(text[end - size : end]) not in seen:
+     seen.add(tuple(text[end - size : end]))
+     counts[tuple(text[end - size : end])][text[end]] += 1
`most` is how many tokens to guess. How many to look at is `longest`.
~ range(len(tokens)) => range(max(0, len(tokens) - most), len(tokens))
"""


def refuse_slow(attempt: Any) -> None:
    """The table is counted once, and a guess looks up a few contexts: it must not read the texts again."""
    from lessons_lib.checks.diagnosis.probes import grows, work
    from lessons_lib.checks.exercise import Mistake

    made = [attempt([list(range(size))] * 2, 2) for size in (20, 400)]
    few, many = (work(*[lambda guess=guess: guess([3, 4], 2)] * 2) for guess in made)
    if grows(few, many, by=380):
        raise Mistake(
            "right, but a guess takes longer the more texts there are.",
            case="guesses from 20 tokens and from 400.",
            idea="Count all texts in `ngram_guesser`, before you define `guess`; `guess` then only looks up contexts.",
        )
    tokens = [list(range(9)) * size for size in (1, 200)]
    few, many = (work(*[lambda text=text: made[0](text, 1)] * 2) for text in tokens)
    if "instructions" in grows(few, many, by=1700):
        raise Mistake(
            "right, but a guess takes longer the longer the text is.",
            case="a text of 9 tokens and one of 1,800.",
            idea="Only the last `longest` tokens matter: `tokens[-longest:]`.",
        )


TASK = Task(
    reference="lessons_lib.engine.proposers:ngram_guesser",
    cases=cases,
    run=run,
    tell=tell,
    smaller=smaller,
    known=mistakes(MISTAKES),
    probes=(refuse_slow,),
    about={
        "returned": "Take the longest context, of `longest` last tokens or fewer, that a text goes on from; guess what "
        "followed it most often, the first of several; the chance is its count divided by one more than all.",
    },
)

EXERCISE = TASK.exercise(
    id="18.1",
    title="guess by n-grams",
    hints=(
        "Two steps. Count once: for each context of 1 to `longest` tokens in the texts, how often each token followed "
        "it. Then guess: look for the last tokens of the text among the contexts, the longest first.",
        "`counts = defaultdict(Counter)`, with tuples of tokens as keys; for each `end` in a text and each `size` "
        "up to `longest` and `end`, the context is `tuple(text[end - size : end])`. Inside, `def guess(tokens, most):` "
        "loops until there are `most` guesses or no context is known; each guess is appended to the tokens.",
        "Counting: `counts[tuple(text[end - size : end])][text[end]] += 1`. Guessing: `[(token, count)] = "
        "found.most_common(1)`, which takes the first of equal ones; `Guess(token, count / (found.total() + 1))`; "
        "`tokens = [*tokens, token]`.",
    ),
)
