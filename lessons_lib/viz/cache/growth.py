"""One request, step by step: the input, the KV cache, and the output."""

from collections.abc import Sequence

from lessons_lib.recording.cache_growth import CacheStep
from lessons_lib.recording.words import check_index, count
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, chip_width, flow, show_token

_MARGIN = 16
_LINE = 28  # a line of chips
_INPUT_ROOM = 560  # width of the input text
_INPUT_LINES = 3  # a longer input is cut, with a count of the rest


def draw_cache_growth(steps: Sequence[CacheStep], i: int, name: str = "A") -> Picture:
    """Step index i of request `name`. All pictures have one size, so that nothing moves while you step through."""
    check_index("step", i, len(steps))
    step, keeps = steps[i], bool(_cached_texts(steps))
    colour = color_of(name)
    d = Drawing()
    x = _MARGIN + d.request_chip(_MARGIN, 12, name, 22) + 10
    d.text(x, 23, f"step {step.step} of {steps[-1].step}" + (f": {step.phase}" if keeps else ""), 15, bold=True)

    y = 64.0
    fed = len(step.input_tokens)
    d.text(_MARGIN, y - 14, f"input: {count(fed, 'token')} fed", 13, fill=SOFT_INK)
    model_x, model_width = _MARGIN + _INPUT_ROOM + 34, 96
    out_x = model_x + model_width + 40
    d.text(out_x, y - 14, "output: next token", 13, fill=SOFT_INK)
    input_height = max(_line_count(_cut(s.input_tokens)) for s in steps) * _LINE
    right = _draw_input(d, step, y, colour, _computed_before(steps, i))
    middle = y + input_height / 2 - 2
    first = y + 12  # arrows start where reading starts
    d.rect(model_x, y, model_width, max(input_height - 4, 24), PAPER, INK, 1.5, radius=4)
    d.text(model_x + model_width / 2, middle, "model", 13, "middle", bold=True)
    d.lines(f"M{right + 6} {first}H{model_x - 3}", INK, 1.5, arrow=True)
    d.lines(f"M{model_x + model_width + 1} {first}H{out_x - 4}", INK, 1.5, arrow=True)
    output = show_token(step.output_token)
    d.chip(out_x, y, output, PAPER, colour, 2.5, title=f"output: {output}")

    new = step.cached_after - step.cached_before
    y += input_height
    if step.cached_before:
        d.lines(f"M{model_x + 20} {y + 26}V{y}", INK, 1.5, arrow=True)
        d.text(model_x + 8, y + 12, f"reads {count(step.cached_before, 'position')}", 12, "end", fill=SOFT_INK)
    if new:
        d.lines(f"M{model_x + model_width - 20} {y - 3}V{y + 26}", INK, 1.5, arrow=True)
        d.text(model_x + model_width - 8, y + 12, f"writes {count(new, 'position')}", 12, fill=SOFT_INK)
    y = _draw_cache(d, steps, i, y + 30, colour)
    d.height = _draw_signs(d, y + 6, colour, keeps) if len(steps) > 1 or keeps else y + 6
    return d.picture(_describe(steps, i, name))


def _computed_before(steps: Sequence[CacheStep], i: int) -> int:
    """How many of step i's first input tokens the step before computed; with a cache, none."""
    if i == 0 or steps[i].cached_before:
        return 0
    now, before = steps[i].input_tokens, steps[i - 1].input_tokens
    return next((n for n, pair in enumerate(zip(now, before)) if pair[0] != pair[1]), min(len(now), len(before)))


def _draw_input(d: Drawing, step: CacheStep, y: float, colour: str, again: int) -> float:
    """The tokens fed, as text in boxes; the first `again` of them pale. Returns the right end of the first line."""
    texts = _cut(step.input_tokens)
    widths = [chip_width(text) for text in texts]
    right = float(_MARGIN)
    for n, (text, (line, x)) in enumerate(zip(texts, flow(widths, _INPUT_ROOM))):
        rest = n == len(texts) - 1 and len(texts) < len(step.input_tokens)
        where = step.cached_before + n
        title = None if rest else f"input at position {where}: {text}" + (", computed before" if n < again else "")
        fill = PAPER if rest else tint(colour) if n < again else colour
        d.chip(_MARGIN + x, y + line * _LINE, text, fill, EDGE if rest else None, title=title)
        if line == 0:
            right = max(right, _MARGIN + x + widths[n])
    return right


def _draw_cache(d: Drawing, steps: Sequence[CacheStep], i: int, y: float, colour: str) -> float:
    """One box per position: old ones pale, new ones framed, later ones empty. Returns the y below it."""
    step = steps[i]
    texts = _cached_texts(steps)
    new = step.cached_after - step.cached_before
    if not texts:
        d.text(_MARGIN, y + 12, "nothing is kept: every step feeds the whole text again", 13)
        return y + _LINE
    d.text(_MARGIN, y, f"KV cache: {count(step.cached_after, 'position')}, {new} new", 13, fill=SOFT_INK)
    y += 14
    room = WIDTH - 2 * _MARGIN
    widths = [chip_width(text) for text in texts]
    places = flow(widths, room)
    for position, (text, width, (line, x)) in enumerate(zip(texts, widths, places)):
        left, top = _MARGIN + x, y + line * _LINE
        if position >= step.cached_after:
            title = f"position {position}: empty"
            d.rect(left + 0.5, top + 0.5, width - 1, 23, "none", EDGE, dashed=True, radius=3, title=title)
        elif position >= step.cached_before:
            title = f"position {position}: key and value of {text}, written in this step"
            d.chip(left + 1, top, text, colour, INK, 2, title=title)
        else:
            d.chip(left, top, text, tint(colour), title=f"position {position}: key and value of {text}")
    return y + (places[-1][0] + 1) * _LINE


def _draw_signs(d: Drawing, y: float, colour: str, cached: bool) -> float:
    d.rule(y)
    known, new = dict(fill=tint(colour)), dict(fill=colour)
    looks = {"computed before, and now again": known, "computed for the first time": new}
    if cached:
        empty = dict(fill="none", stroke=EDGE, dashed=True)
        framed = new | dict(stroke=INK, stroke_width=2)
        looks = {"in the cache before": known, "written in this step": framed, "still empty": empty}
    signs = [(words, lambda x, y, look=look: d.rect(x, y, 18, 16, radius=3, **look)) for words, look in looks.items()]
    d.legend(_MARGIN, y + 22, signs)
    d.text(WIDTH - _MARGIN, y + 22, "· is a space, \\n a line break", 12, "end", fill=SOFT_INK)
    return y + 44


def _cached_texts(steps: Sequence[CacheStep]) -> list[str]:
    """Text of the token at each cache position, over all steps."""
    texts: list[str] = []
    for step in steps:
        new = step.cached_after - max(step.cached_before, len(texts))
        texts += [show_token(text) for text in step.input_tokens[len(step.input_tokens) - max(new, 0) :]]
    return texts


def _cut(tokens: Sequence[str]) -> list[str]:
    """The input as shown: all of it, or what fits and "+12 more"."""
    texts = [show_token(text) for text in tokens]
    if _line_count(texts) <= _INPUT_LINES:
        return texts
    places = flow([chip_width(text) for text in texts], _INPUT_ROOM)
    keep = sum(line < _INPUT_LINES for line, _ in places)
    while _line_count([*texts[:keep], f"+{len(texts) - keep} more"]) > _INPUT_LINES:
        keep -= 1
    return [*texts[:keep], f"+{len(texts) - keep} more"]


def _line_count(texts: Sequence[str]) -> int:
    places = flow([chip_width(text) for text in texts], _INPUT_ROOM)
    return places[-1][0] + 1 if places else 1


def _describe(steps: Sequence[CacheStep], i: int, name: str) -> str:
    step, again = steps[i], _computed_before(steps, i)
    fed = "".join(step.input_tokens)
    told = f'Request {name}, step {step.step} of {steps[-1].step}. Input: {count(len(step.input_tokens), "token")}, "'
    told += (fed if len(fed) <= 200 else fed[:200] + "...") + '"' + (f", {again} computed before" if again else "")
    if _cached_texts(steps):
        told += f". KV cache: {count(step.cached_before, 'position')} before, {step.cached_after} after"
    return f'{told}. Output: the next token, "{step.output_token}".'
