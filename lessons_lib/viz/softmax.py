"""One step of a softmax computed block by block: all scores, the running maximum, and the sums before and after."""

import math
from collections.abc import Sequence

from lessons_lib.recording.softmax_steps import (
    SoftmaxStep,
    bracketed,
    difference_text,
    number_text,
    numbers,
    score_text,
    step_text,
)
from lessons_lib.recording.words import check_index, span
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, mono_width, number, shortened, show_token

_LEFT, _RIGHT = 170, 16
_ROOM = WIDTH - _LEFT - _RIGHT
_SEEN, _NOW, _COMING = SERIES[3], SERIES[0], NEUTRAL
_BARS = 84  # height of the scores' bars
_MOST_VALUES = 6  # of the output; the rest isn't drawn


def draw_softmax_step(steps: Sequence[SoftmaxStep], i: int, names: Sequence[str]) -> Picture:
    """Step i of `record_blocks`, 0 before the first block: all keys, the block's weights, the sums before and after it.

    names: the text of each key's token; about twenty, in small blocks.
    """
    check_index("step", i, len(steps))
    shown = [show_token(name) for name in names]
    step, last = steps[i], i == len(steps) - 1
    where = span("key", step.positions[0], len(step.positions)) if i else ""
    title = f"Block {step.block} of {len(steps) - 1}, {where}" if i else "Before the first block"
    sentence = step_text(step)
    if last and any(map(math.isnan, step.attention)):
        sentence += " Output / total, the attention, is not a number."
    d = Drawing()
    d.text(16, 20, title, 15, bold=True)
    y = d.paragraph(16, 42, sentence, 116, 14, 19)
    y = _strip(d, steps, i, shown, y + 4)
    if step.block:
        y = _weights(d, step, shown, y)
    d.height = _sums(d, step, last, y) + 6
    told = [f"{title}. {sentence}"]
    if step.block:
        told.append(f"Scores {numbers(step.scores)}; weights {numbers(step.weights)}.")
    told.append(f"Total {number_text(step.total)}, output {numbers(step.output)}.")
    if last:
        told.append(f"Output / total = attention: {numbers(step.attention)}.")
    return d.picture(" ".join(told))


def _strip(d: Drawing, steps: Sequence[SoftmaxStep], i: int, names: list[str], y: float) -> float:
    """All keys in their blocks: a bar for each score, and the running maximum as a line. Returns the y below it."""
    x = 16.0
    for colour, word in ((_SEEN, "seen"), (_NOW, "this block"), (_COMING, "to come")):
        d.rect(x, y, 14, 14, colour)
        d.text(x + 20, y + 7, word, 12, fill=SOFT_INK)
        x += 44 + 6.2 * len(word)
    d.lines(f"M{number(x)} {number(y + 7)}h22", INK, 2.5)
    d.text(x + 28, y + 7, _maximum_words(steps, i), 12, fill=SOFT_INK)
    y += 28
    blocks = steps[1:]
    scores = [score for step in blocks for score in step.scores]
    finite = [score for score in scores if math.isfinite(score)]
    high, low = max([0.0, *finite]), min([0.0, *finite])
    span = (high - low) or 1.0
    width = _ROOM / len(scores)

    def height_of(score: float) -> float:
        return y + (high - score) / span * _BARS

    for value in sorted({high, 0.0, low}, reverse=True):
        if value == 0 or abs(height_of(value) - height_of(0)) >= 12:
            d.text(_LEFT - 8, height_of(value), number_text(value), 11, "end", fill=SOFT_INK)
    d.text(16, y + _BARS / 2, "scores", 13, bold=True)
    # Scores and tokens are below the bars: the line of the maximum runs close to the ends of most bars.
    scores_at, names_at = y + _BARS + 12, y + _BARS + 28
    under = y + _BARS + 40
    line = ""
    for step in blocks:
        colour = _NOW if step.block == i else _SEEN if step.block < i else _COMING
        start, size = _LEFT + step.positions[0] * width, len(step.positions) * width
        path, zero = "", number(height_of(0))
        for position, score in zip(step.positions, step.scores):
            left, right = number(_LEFT + (position + 0.12) * width), number(_LEFT + (position + 0.88) * width)
            if math.isfinite(score):
                path += f"M{left} {zero}V{number(height_of(score))}H{right}V{zero}Z"
        if path:
            d.lines(path, "none", fill=colour)
        _block_bracket(d, step, start, size, under, now=step.block == i)
        if step.block <= i and math.isfinite(step.reference):
            line += f"{'L' if line else 'M'}{number(start)} {number(height_of(step.reference))}H{number(start + size)}"
    d.lines(f"M{_LEFT} {number(height_of(0))}h{_ROOM}", EDGE)
    if line:
        d.lines(line, INK, 2.5)
    for position, score in enumerate(scores):
        x = _LEFT + (position + 0.5) * width
        _fitted(d, x, scores_at, score_text(score), width - 3, 11)
        _fitted(d, x, names_at, names[position], width - 3, 11, SOFT_INK, cut=True)
    hovers = [
        f"key {position} '{names[position]}', block {step.block}: score {score_text(score)}"
        for step in blocks
        for position, score in zip(step.positions, step.scores)
    ]
    d.hover_grid(_LEFT, y, width, _BARS, [hovers])
    return under + 30


def _block_bracket(d: Drawing, step: SoftmaxStep, x: float, width: float, y: float, now: bool) -> None:
    """A line below the keys of a block, and the block's index where it fits."""
    line = f"M{number(x + min(2, width / 8))} {number(y)}h{number(max(width - 4, width * 0.75))}"
    d.lines(line, INK if now else EDGE, 3 if now else 2)
    text = f"block {step.block}" if width >= 52 else str(step.block)
    d.text(x + width / 2, y + 12, text, 12, "middle", bold=now, fill=INK if now else SOFT_INK)


def _weights(d: Drawing, step: SoftmaxStep, names: list[str], y: float) -> float:
    """The block's keys: score, score minus the maximum, and weight. Returns the y below it."""
    d.rule(y)
    y += 16
    width = min(_ROOM / len(step.scores), 96)
    finite = [weight for weight in step.weights if math.isfinite(weight)]
    largest = max([1.0, *finite])  # no weight is above 1 where the maximum is subtracted
    d.text(16, y, "key", 12, fill=SOFT_INK)
    d.text(16, y + 19, "score", 13)
    d.text(16, y + 38, f"exp(score − {bracketed(step.reference)})", 13, bold=True)
    d.text(16, y + 54, "its weight", 11, fill=SOFT_INK)
    for column, (position, score, weight) in enumerate(zip(step.positions, step.scores, step.weights)):
        x = _LEFT + (column + 0.5) * width
        _fitted(d, x, y, f"{position} {names[position]}", width - 4, 11, SOFT_INK, cut=True)
        _fitted(d, x, y + 19, score_text(score), width - 4, 12)
        _fitted(d, x, y + 38, number_text(weight), width - 4, 12, bold=True)
        if math.isfinite(weight):
            d.rect(x - (width - 12) / 2, y + 49, width - 12, 6, PAPER, EDGE)
            d.rect(x - (width - 12) / 2, y + 49, (width - 12) * weight / largest, 6, _NOW)
        else:
            d.hatch(x - (width - 12) / 2, y + 49, width - 12, 6)
    return y + 74


def _sums(d: Drawing, step: SoftmaxStep, last: bool, y: float) -> float:
    """Old sum and output x factor + the block's part = new sum and output, as a table. Returns the y below it."""
    dims = min(len(step.output), _MOST_VALUES)
    d.rule(y)
    width = _ROOM / (_MOST_VALUES + 1)
    y += 16
    d.text(_LEFT + width / 2, y, "total", 12, "middle", bold=True)
    head = "output" if dims == len(step.output) else f"output, the first {dims} of {len(step.output)} elements"
    d.text(_LEFT + width * (1 + dims / 2), y, head, 12, "middle", bold=True)
    rows: list[tuple[str, str, float, tuple[float, ...]]] = []
    if step.block:
        scaled = tuple(step.factor * value for value in step.output_before)
        rows = [
            ("before", "", step.total_before, step.output_before),
            (f"× {number_text(step.factor)}", _factor_words(step), step.factor * step.total_before, scaled),
            ("+ this block", "weights; weight × value", step.added_total, step.added_output),
        ]
    rows.append(("= now" if step.block else "now", "", step.total, step.output))
    attention = step.attention
    # Values of very different size don't share a scale: overflowed outputs are left out, and the attention has its own.
    scale = _largest(value for _, _, _, output in rows for value in output[:dims])
    sum_scale = _largest(total for _, _, total, _ in rows)
    y += 24
    for index, (label, note, total, output) in enumerate(rows):
        if label == "= now":
            d.lines(f"M16 {number(y - 15)}H{number(_LEFT + width * (1 + dims))}", INK)
        now = index == len(rows) - 1
        d.text(16, y, label, 13, bold=now)
        if note:
            d.text(16, y + 14, note, 10.5, fill=SOFT_INK)
        colour = _NOW if index == 2 and step.block else _SEEN
        for column, (value, most) in enumerate([(total, sum_scale), *((value, scale) for value in output[:dims])]):
            _signed(d, value, most, _LEFT + (column + 0.5) * width, y, width, INK if now else colour, bold=now)
        y += 38
    if last:
        d.lines(f"M16 {number(y - 15)}H{number(_LEFT + width * (1 + dims))}", INK, 2)
        d.text(16, y, "attention", 13, bold=True)
        d.text(16, y + 14, "output / total", 10.5, fill=SOFT_INK)
        _fitted(d, _LEFT + width / 2, y, f"/ {number_text(step.total)}", width - 8, 12)
        most = _largest(attention[:dims])
        for column, value in enumerate(attention[:dims], start=1):
            _signed(d, value, most, _LEFT + (column + 0.5) * width, y, width, SERIES[4], bold=True)
        y += 38
    return y - 10


def _signed(d: Drawing, value: float, most: float, x: float, y: float, width: float, colour: str, bold: bool) -> None:
    """A value centered at x, and a bar below it: from the middle to the right, or to the left if negative."""
    _fitted(d, x, y, number_text(value), width - 8, 12, bold=bold)
    half = (width - 16) / 2
    if math.isfinite(value):
        size = half * min(abs(value) / most, 1.0)
        d.rect(x if value >= 0 else x - size, y + 10, size, 6, colour)
        d.lines(f"M{number(x)} {number(y + 8)}v10", EDGE)
    else:
        d.hatch(x - half, y + 10, 2 * half, 6)


def _largest(values) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0


def _fitted(
    d: Drawing, x: float, y: float, text: str, room: float, size: float,
    fill: str = INK, bold: bool = False, cut: bool = False,
) -> None:  # fmt: skip
    """Text centered at x, small enough to fit; words that may be cut are shortened instead."""
    text = shortened(text, room, size) if cut else text
    d.text(x, y, text, min(size, size * room / mono_width(text, size)), "middle", bold=bold, fill=fill, mono=True)


def _factor_words(step: SoftmaxStep) -> str:
    if step.maximum == step.maximum_before:
        return "nothing is rescaled"
    if step.maximum_before == -math.inf:
        return "nothing was there before"
    return f"exp({difference_text(step.maximum_before, step.maximum)})"


def _maximum_words(steps: Sequence[SoftmaxStep], i: int) -> str:
    step = steps[i]
    if step.maximum == -math.inf:
        kept = all(score == -math.inf for seen in steps[: i + 1] for score in seen.scores)
        return "largest score so far: none yet" if kept else "no maximum is kept: 0 is used instead"
    return f"largest score so far: {number_text(step.maximum)}"


def draw_rescaling(scores: Sequence[float], values: Sequence[float], new_score: float, new_value: float) -> Picture:
    """The sums of one query before and after a key with a larger score: each key a box, its weight as the height and
    its value as the width. The heights add up to the sum, the areas to the output.

    Args:
        scores, values: of the keys so far, a few positive numbers.
        new_score: larger than all of them.
    """
    old, new = max(scores), new_score
    factor = math.exp(old - new)
    d = Drawing()
    wide, high = 250 / (sum(values) + new_value), 110.0
    for x, title, reference, keys in (
        (16.0, f"before: relative to {old:g}", old, list(zip(scores, values))),
        (430.0, f"after: relative to {new:g}", new, [*zip(scores, values), (new, new_value)]),
    ):
        weights = [math.exp(score - reference) for score, _ in keys]
        d.text(x, 20, title, 14, bold=True)
        left, bottom = x, 50 + high
        for (score, value), weight in zip(keys, weights):
            d.rect(left, bottom - weight * high, value * wide, weight * high, _NOW if score == new else _SEEN)
            if reference != old and score != new:  # what it was
                before = math.exp(score - old) * high
                d.rect(left, bottom - before, value * wide, before, stroke=SOFT_INK, dashed=True)
            for line, text in enumerate((f"score {score:g}", f"value {value:g}")):
                d.text(left + value * wide / 2, bottom + 14 + 14 * line, text, 11, "middle", fill=SOFT_INK)
            d.text(left + value * wide / 2, bottom - weight * high - 9, f"{weight:.3f}", 12, "middle", mono=True)
            left += value * wide + 6
        d.lines(f"M{number(x)} {number(bottom)}H{number(left)}", EDGE)
        output = sum(weight * value for weight, (_, value) in zip(weights, keys))
        d.text(x, bottom + 54, f"sum of the heights: {sum(weights):.3f}", 13, bold=True)
        d.text(x, bottom + 74, f"sum of the areas: {output:.2f}", 13, bold=True)
    d.lines("M290 105H400", INK, 2, arrow=True)
    d.text(345, 84, "each old height", 13, "middle", bold=True)
    d.text(345, 124, f"× {factor:.3f}", 14, "middle", bold=True)
    d.height = 50 + high + 88
    return d.picture(
        f"Keys as boxes: height exp(score − maximum), width the value. Scores {numbers(list(scores))} relative to "
        f"{old:g}. Then a key with score {new:g} comes: all old heights, and so areas, are multiplied by {factor:.3f}, "
        "and a box of height 1 is added."
    )
