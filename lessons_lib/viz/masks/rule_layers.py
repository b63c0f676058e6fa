"""The rules of a mask one by one: what each alone forbids, and what a model says with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch

from lessons_lib.attention.masks import Rule, combine, not_in_the_future, same_sequence, tag_tokens
from lessons_lib.recording.mask_text import read_row
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, text_on
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, shortened, show_token
from lessons_lib.viz.stepper import Stepper

RULES = {"same sequence": same_sequence, "not in the future": not_in_the_future}
LAYERS = ((), ("not in the future",), ("same sequence",), ("same sequence", "not in the future"))
MOST = 24  # tokens in the row
_LEFT, _TOP, _ROW, _LABELS = 16, 64, 26, 92  # the grid begins to the right of its labels
_GRID, _PANEL = 380.0, 520  # width of the grid; x of the texts
_SIZE, _LINE = 12.0, 20


def watch_rules(
    names: Sequence[str], tokens: Sequence[Sequence[str]], answers_with: Callable[[Rule], Sequence[str]]
) -> Stepper:
    """Step through a row of 1 to 24 tokens (else ValueError) without rules, with one of them, and with both.

    names, tokens  of the sequences in the row; the tokens' texts
    answers_with   a mask, as a function of queries and keys -> how a model goes on after each sequence, under that mask
    """
    total = sum(map(len, tokens))
    if len(names) != len(tokens) or not 1 <= total <= MOST:
        raise ValueError(
            f"{len(names)} names and {len(tokens)} sequences with {total} tokens; give as many names as sequences, and "
            f"1 to {MOST} tokens in all."
        )
    answers = [list(answers_with(_mask_of(layer))) for layer in LAYERS]
    return Stepper(
        lambda i: draw_layer(names, tokens, LAYERS[i], answers[i], answers[-1]),
        count=len(LAYERS),
        label="mask",
        name=lambda i: " and ".join(LAYERS[i]) or "no rule",
    )


def _mask_of(layer: Sequence[str]) -> Rule:
    rules = [RULES[rule] for rule in layer]
    return lambda queries, keys: combine(rules, queries, keys)


def draw_layer(
    names: Sequence[str], tokens: Sequence[Sequence[str]], layer: Sequence[str], answers: Sequence[str],
    right: Sequence[str],
) -> Picture:  # fmt: skip
    """The row's mask with the rules of one layer. Crossed out: cells that the other rules would forbid."""
    tags = tag_tokens([len(own) for own in tokens])
    mask, wanted = _mask_of(layer)(tags, tags), _mask_of(LAYERS[-1])(tags, tags)
    d = Drawing()
    x = float(_LEFT)
    for rule in RULES:
        x = _box(d, rule, rule in layer, x)
    labels = [show_token(token) for own in tokens for token in own]
    owners = [names[index] for index in tags.seq_ids.tolist()]
    width = _GRID / len(labels)
    _labels(d, labels, owners, width)
    _cells(d, mask, wanted, owners, width)
    reading = read_row(mask, tags, tags, len(tags) - 1, names)
    bottom = _TOP + _ROW + len(labels) * _ROW
    d.rect(_LEFT + _LABELS, bottom - _ROW, _GRID, _ROW, "none", INK, 2)
    bottom = d.paragraph(_LEFT, bottom + 16, reading, 64, 12.5, 18, bold=True) - 16
    if bool((mask & ~wanted).any()):
        words = "Colored: attends. ✕: attends, and a rule that is off would forbid it."
        d.text(_LEFT, bottom + 16, words, 12, fill=SOFT_INK)
        bottom += 18
    low = _texts(d, names, tokens, answers, right)
    d.height = max(bottom, low) + 14
    wrong = int((mask & ~wanted).sum())
    cells = f"{int(mask.sum())} of {mask.numel()} cells may attend, {wrong} of them wrongly."
    told = [f"Rules: {' and '.join(layer) or 'none'}. {cells} {reading}"]
    told += [
        f"{name} goes on with {answer!r}" + ("." if answer == expected else f" instead of {expected!r}.")
        for name, answer, expected in zip(names, answers, right)
    ]
    return d.picture(" ".join(told))


def _box(d: Drawing, rule: str, is_on: bool, x: float) -> float:
    d.rect(x, 12, 18, 18, PAPER, INK, 1.5, radius=3)
    if is_on:
        d.lines(f"M{number(x + 4)} 21l4 5l7 -10", INK, 2.5)
    d.text(x + 26, 21, rule, 15, bold=is_on, fill=INK if is_on else SOFT_INK)
    return x + 50 + 8.2 * len(rule)


def _labels(d: Drawing, labels: list[str], owners: list[str], width: float) -> None:
    d.text(_LEFT + _LABELS - 8, _TOP + _ROW / 2, "query ↓  key →", 11, "end", fill=SOFT_INK)
    for place, (label, owner) in enumerate(zip(labels, owners)):
        for left, top, room in (
            (_LEFT + _LABELS + place * width, _TOP, width - 1),
            (_LEFT, _TOP + _ROW + place * _ROW, _LABELS - 6),
        ):
            d.rect(left, top, room, _ROW - 1, color_of(owner))
            text = shortened(label, room - 2, 11)
            d.text(left + room / 2, top + _ROW / 2, text, 11, "middle", on=color_of(owner), mono=True)


def _cells(d: Drawing, mask: torch.Tensor, wanted: torch.Tensor, owners: list[str], width: float) -> None:
    """A cell for each query and key, in the color of the query if it may attend."""
    left, top = _LEFT + _LABELS, _TOP + _ROW
    for query, owner in enumerate(owners):
        for key in range(len(owners)):
            x, y = left + key * width, top + query * _ROW
            if mask[query, key]:
                d.rect(x, y, width - 1, _ROW - 1, color_of(owner), title=f"{owner}'s token attends")
            if mask[query, key] and not wanted[query, key]:
                box = number(min(width, _ROW) * 0.56)
                corner = f"M{number(x + width / 2 - float(box) / 2)} {number(y + _ROW / 2 - float(box) / 2)}"
                d.lines(f"{corner}l{box} {box}m0 -{box}l-{box} {box}", text_on(color_of(owner)), 1.6)
    count = len(owners)
    grid = "".join(f"M{number(left + n * width - 0.5)} {top}v{count * _ROW}" for n in range(count + 1))
    grid += "".join(f"M{left} {number(top + n * _ROW - 0.5)}h{number(count * width)}" for n in range(count + 1))
    d.lines(grid, EDGE, 0.5)


def _texts(
    d: Drawing, names: Sequence[str], tokens: Sequence[Sequence[str]], answers: Sequence[str], right: Sequence[str]
) -> float:
    """What each sequence says. Returns the y below it."""
    d.text(_PANEL, 21, "and the model goes on with", 13, fill=SOFT_INK)
    y = float(_TOP)
    for name, own, answer, wanted in zip(names, tokens, answers, right):
        indent = _PANEL + d.request_chip(_PANEL, y, name) + 8
        x, prompt = indent, "".join(own).split()
        words = [(word, SOFT_INK, False) for word in prompt]
        for word, expected in zip_longest(answer.split(), wanted.split()):
            if word is not None:
                words.append((word, INK, word != expected))
        for word, fill, is_wrong in words:
            size = mono_width(word, _SIZE)
            if x + size > WIDTH - 16:
                x, y = indent, y + _LINE
            d.text(x, y + 10, word, _SIZE, bold=fill == INK, fill=fill, mono=True)
            if is_wrong:
                d.lines(f"M{number(x)} {number(y + 18)}h{number(size)}", INK, 1.5)
            x += size + mono_width(" ", _SIZE)
        verdict = "as it should be" if answer == wanted else "not what it says alone; other words are underlined"
        d.text(indent, y + _LINE + 12, verdict, 12, fill=SOFT_INK)
        y += 2 * _LINE + 30
    return y
