"""Questions on lesson 12: the engine."""

import random

import torch

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
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
    of = [round(part / total, 3) for part in parts]  # as shown
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


ITEMS = [
    setting_in_picture,
    probability_after_cuts,
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
    design(
        "12", "Build 2: the step, whole or failed", "requests_in_doubt",
        "Requests A and B are scheduled in a step. To make room for them, it preempts C, which is swapped out, and D, "
        "which will be computed again. E waits. The copying of blocks raises an error before the model runs. Which "
        "requests have to end with this error?",
        ("A, B and C, but neither D nor E", "Copies for A and B may be missing, and it isn't known whether all of C "
         "was copied out. D is computed anew from its tokens, and E has no cache yet."),
        ("A and B, but none of C, D and E", "C's only copy is the one outside, and it may be incomplete. That would "
         "be right if the copies had succeeded and the model had failed."),
        ("C, but none of A, B, D and E", "Copies may be for scheduled sequences as well, and it isn't known which were "
         "made."),
        ("A, B, C and D, but not E", "D has no cache any more that could be wrong: all of it will be computed again."),
    ),
]  # fmt: skip
