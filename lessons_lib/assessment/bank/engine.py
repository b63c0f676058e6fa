"""Questions on lesson 12: the engine."""

import random

import torch

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.engine.detokenizer import releasable
from lessons_lib.engine.sampling import token_probabilities
from lessons_lib.viz.charts import draw_token_bars


def _probabilities(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    rows, _ = token_probabilities(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p])
    )
    return rows[0].tolist()


@item("12", "picture", "Build 1: what to draw from")
def setting_in_picture(draw: random.Random) -> Asked:
    torch.manual_seed(draw.randrange(10_000))
    logits = (1.5 * torch.randn(8)).tolist()
    settings = {
        "temperature 0.5": (0.5, 8, 1.0),
        "temperature 2": (2.0, 8, 1.0),
        "top-k 3": (1.0, 3, 1.0),
        "top-p 0.5": (1.0, 8, 0.5),
    }
    of = {name: _probabilities(logits, *values) for name, values in settings.items()}
    if sum(p > 0 for p in of["top-p 0.5"]) in (1, 3) or of["temperature 0.5"][0] > 0.9:
        raise Redraw
    right = draw.choice(list(settings))
    whys = {
        "temperature 0.5": "Large probabilities grow and small ones shrink, but all tokens keep one.",
        "temperature 2": "The probabilities are closer together than at temperature 1, and all tokens keep one.",
        "top-k 3": "Exactly three tokens are left, in the same ratios as before.",
        "top-p 0.5": "The likeliest tokens are left, up to the one with which they reach half.",
    }
    bars = {"temperature 1": _probabilities(logits, 1.0, 8, 1.0), "another setting": of[right]}
    return asked(
        "The same logits with two settings. Which is the other one?",
        (right, whys[right]),
        [(name, f"It would look otherwise: {why[0].lower()}{why[1:]}") for name, why in whys.items() if name != right],
        lambda: draw_token_bars([f"token {index}" for index in range(8)], bars),
    )


@item("12", "compute", "Build 1: what to draw from")
def probability_after_cuts(draw: random.Random) -> Asked:
    parts = sorted(draw.sample(range(5, 60), 5), reverse=True)
    total = sum(parts)
    of = [part / total for part in parts]
    top_k, top_p = draw.choice((3, 4)), draw.choice((0.6, 0.7, 0.8))
    logits = torch.tensor(of).log().tolist()
    result = _probabilities(logits, 1.0, top_k, top_p)
    kept = sum(p > 0 for p in result)
    bare = next(n for n in range(1, 6) if sum(of[:n]) >= top_p or n == top_k)  # top_p of all five
    if kept in (1, top_k, bare) or min(abs(sum(of[:n]) / sum(of[:top_k]) - top_p) for n in range(1, top_k)) < 0.01:
        raise Redraw
    return asked(
        f"Five tokens have the probabilities {', '.join(f'{p:.3f}' for p in of)}. With top_k = {top_k} and top_p = "
        f"{top_p}, with which probability does lesson 12's sampler draw the likeliest one?",
        (f"{result[0]:.3f}", f"{kept} tokens are left, up to the one with which the sum reaches {top_p} of what top_k "
         "leaves; they add up to 1 again."),
        [
            (f"{of[0]:.3f}", "What is left has to add up to 1 again."),
            (f"{of[0] / sum(of[:bare]):.3f}", "top_p is a share of what top_k leaves, not of all five tokens. So it is "
             "reached earlier."),
            (f"{of[0] / sum(of[: kept - 1]):.3f}", "The token that reaches top_p stays."),
            (f"{of[0] / sum(of[:top_k]):.3f}", "That is after top_k alone."),
        ],
    )  # fmt: skip


@item("12", "compute", "Optional: what can be shown")
def held_back_characters(draw: random.Random) -> Asked:
    stop = draw.choice(("###", "\n\nUser:", "</end>", "STOP!"))
    count = draw.randint(1, len(stop) - 1)
    words = draw.choice(("The answer is 42", "It rained all day", "Two dogs ran home", "She closed the door"))
    text = words + stop[:count]
    right, _ = releasable(text, [stop])
    return asked(
        f"The stop string is {stop!r}. So far the text is {text!r}, {len(text)} characters. How many of them can be "
        "shown now?",
        (right, f"The last {count} may be the beginning of the stop string, so they are held back."),
        [
            (len(text), "If the stop string follows, a part of it would have been shown already."),
            (len(text) - len(stop), "Only an end that is the beginning of a stop string has to wait."),
            (0, "A text that can't be part of the stop string any more is shown at once."),
            (right - 1, "One more than needed is held back."),
        ],
    )


ITEMS = [
    setting_in_picture,
    probability_after_cuts,
    held_back_characters,
    bug(
        "12", "Build 1: what to draw from", "top_p_cut",
        task="`cut` applies top_p to the logits of one token, and makes the rest add up to 1.",
        code="""
def cut(logits, temperature, top_p):
    scaled = logits / temperature
    ordered, tokens = scaled.sort(descending=True)
    probabilities = ordered.softmax(dim=-1)
    so_far = probabilities.cumsum(dim=-1)
    is_cut = so_far - probabilities >= top_p
    kept = probabilities.masked_fill(is_cut, 0.0)
    return kept / kept.sum(), tokens
""",
        line=6, wrong="is_cut = so_far >= top_p",
        why="The token that reaches top_p would be cut, too; the likeliest alone may reach it, and nothing is left. "
        "What counts is the sum before a token.",
        innocent={
            2: "Logits are divided by the temperature before anything is cut.",
            5: "Running sums over the tokens, the likeliest first.",
            8: "What is left adds up to 1 again.",
        },
        setup="import torch",
        trial="""
kept, _ = cut(torch.tensor([0.5, 0.3, 0.2]).log(), 1.0, 0.6)
assert torch.allclose(kept, torch.tensor([0.625, 0.375, 0.0]), atol=1e-5)
""",
    ),
    bug(
        "12", "Stop strings", "end_of_an_answer",
        task="`add` appends the text of one token to an answer, and returns the reason why the answer ends, or None. A "
        "stop string isn't part of the answer.",
        code="""
def add(answer, piece, stops, max_tokens):
    answer["num_tokens"] += 1
    answer["text"] += piece
    text = answer["text"]
    found = [stop for stop in stops if stop in text]
    if found:
        end = min(text.index(stop) for stop in found)
        answer["text"] = text[:end]
        return "stop"
    return "length" if answer["num_tokens"] == max_tokens else None
""",
        line=5, wrong="found = [stop for stop in stops if stop in piece]",
        why="A stop string may be spread over several tokens, and then no single piece contains it.",
        innocent={
            2: "A token counts, even if it brings no text or ends in the stop string.",
            7: "If two stop strings are found, the answer ends before the first of them.",
            10: "A stop string in the last token that is allowed counts as a stop.",
        },
        trial="""
answer = {"num_tokens": 0, "text": ""}
assert add(answer, "It rained.<", ["</end>", "ned"], 9) == "stop" and answer["text"] == "It rai"
answer = {"num_tokens": 0, "text": ""}
assert [add(answer, piece, ["</end>"], 9) for piece in ("It rained.<", "/en", "d>x")] == [None, None, "stop"]
assert answer["text"] == "It rained." and add(answer, "a", ["b"], 4) == "length"
""",
    ),
    design(
        "12", "Draw a token", "same_seed_other_company",
        "A user sends the same prompt with temperature 1 and the same seed twice: at night, alone, and at noon, in a "
        "batch of 60. The answers must be equal. What does the draw have to depend on?",
        ("On the seed and on the token's position in this answer alone", "Nothing of the batch or of earlier "
         "draws of others may go in."),
        ("On one generator that the whole batch shares", "Each other request takes numbers from it, so those of this "
         "one change."),
        ("On the row of the batch and on the step's id", "Both depend on which requests happen to run."),
        ("On the seed and on this request's id in the engine", "The second request has another id, so the same seed "
         "would give other answers."),
    ),
    design(
        "12", "When something breaks", "one_bad_callback",
        "The step's forward pass is done for 30 requests. Before their tokens are passed on, the code that one user "
        "attached to its stream raises. What should hold after this step?",
        ("29 requests have their token, and only one ends with an error", "The fault belongs to one request. The "
         "others' "
         "tokens were computed, so they keep them."),
        ("30 requests have their token, and the engine logs the error", "One stream lacks a token that its sequence "
         "counts as passed on. It would go on with a gap, so it has to end."),
        ("All 30 requests end with an error, as the step has failed", "29 users would lose their answers to a fault "
         "of another one."),
        ("29 requests have their token, and one repeats the whole step", "Nothing was wrong with its token. The same "
         "token would meet the same callback again."),
    ),
]  # fmt: skip
