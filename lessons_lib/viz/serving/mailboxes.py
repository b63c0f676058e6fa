"""Requests on their way through a server: clients, mailboxes, and the engine with its one owner."""

from collections.abc import Sequence

from lessons_lib.recording.server_turns import ServerMoment
from lessons_lib.recording.words import listed
from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing, mono_width, number
from lessons_lib.viz.stepper import Stepper

_TOP, _ROW = 84, 64
_CLIENTS, _BOXES, _ENGINE = 16, 372, 640  # where the three columns begin
_CLIENT, _BOX, _OWNER = 320, 224, 244  # and how wide they are
_SIZE = 12  # of a client's text


def watch_server(moments: Sequence[ServerMoment]) -> Stepper:
    """Play what `record_server` has recorded. Still, it shows a step behind which an abort waits, if any does."""
    late = (i for i, each in enumerate(moments) if each.is_computing and "abort" in "".join(each.commands))
    still = next(late, len(moments) // 2)
    return Stepper(lambda i: draw_server(moments, i), len(moments), label="moment", still=still)


def draw_server(moments: Sequence[ServerMoment], index: int) -> Picture:
    """A server at one moment. Tokens glide from the engine to a mailbox, and from there to its client."""
    moment = moments[index]
    names = list(moment.boxes)
    d = Drawing(height=_TOP + _ROW * len(names) + 24)
    d.text(16, 20, moment.event, 15, bold=True)
    for x, words in ((_CLIENTS, "clients"), (_BOXES, "a mailbox for each"), (_ENGINE, "the owner's mailbox: commands")):
        d.text(x, 52, words, 12, fill=SOFT_INK)
    came = moments[index - 1] if index else moment
    for row, name in enumerate(names):
        with d.marked([(name,)]):
            _draw_reader(d, moment, came, name, _TOP + row * _ROW)
    _draw_engine(d, moment, _TOP + _ROW * len(names))
    read = "; ".join(f"{name} {''.join(texts)!r}" for name, texts in moment.read.items())
    boxes = ", ".join(f"{name} {len(texts)}" for name, texts in moment.boxes.items())
    return d.picture(
        f"{moment.event}. Commands that wait: {listed(moment.commands)}. In the engine: {listed(moment.in_engine)}. "
        f"Tokens in mailboxes: {boxes}. Read: {read}."
    )


def _draw_reader(d: Drawing, moment: ServerMoment, came: ServerMoment, name: str, y: float) -> None:
    """A client with what it has read, and its mailbox."""
    texts, waiting = moment.read[name], moment.boxes[name]
    d.rect(_CLIENTS, y, _CLIENT, _ROW - 12, PAPER, EDGE, dashed=name in moment.ended, radius=4)
    x = _CLIENTS + 16 + d.request_chip(_CLIENTS + 8, y + 6, name)
    d.text(x, y + 16, moment.ended.get(name, "reads"), 11, fill=SOFT_INK)
    new = len(texts) - len(came.read[name])
    line = " ".join("".join(texts).split())
    room = int((_CLIENT - 16) / mono_width("m", _SIZE))
    d.text(_CLIENTS + 8, y + 38, f"…{line[1 - room :]}" if len(line) > room else line, _SIZE, mono=True)
    for n in range(new):  # what has just been taken arrives at the end of the text
        with d.marked(moves=f"{name} {len(texts) - new + n}"):
            x = _CLIENTS + 8 + mono_width("m", _SIZE) * min(len(line), room) + 4 + 8 * n
            d.rect(min(x, _CLIENTS + _CLIENT - 12), y + 30, 6, 16, color_of(name))
    d.rect(_BOXES, y, _BOX, _ROW - 12, PAPER, INK, radius=4)
    side = min(24.0, (_BOX - 12) / max(len(waiting), 1))
    for n in range(len(waiting)):
        with d.marked(moves=f"{name} {len(texts) + n}"):
            d.rect(_BOXES + 8 + n * side, y + 12, side - 3, 28, color_of(name), radius=3, title=waiting[n])
    d.lines(f"M{_BOXES - 4} {number(y + 26)}H{_CLIENTS + _CLIENT + 6}", EDGE, 1.5, arrow=True)
    d.lines(f"M{_ENGINE - 4} {number(y + 26)}H{_BOXES + _BOX + 6}", EDGE, 1.5, arrow=True)


def _draw_engine(d: Drawing, moment: ServerMoment, bottom: float) -> None:
    """Commands that wait for the next turn, and below them the engine with its requests."""
    d.rect(_ENGINE, 62, _OWNER, 36, PAPER, INK, radius=4)
    x = _ENGINE + 8.0
    for words in moment.commands:
        verb, name = words.split(" ", 1)
        with d.marked([(name,)], moves=f"command {words}"):
            d.rect(x, 69, 58, 22, color_of(name) if verb == "add" else NEUTRAL, radius=3)
            d.text(x + 29, 80, words, 11, "middle", bold=True, on=color_of(name) if verb == "add" else NEUTRAL)
        x += 62
    d.lines(f"M{_ENGINE + _OWNER / 2} 100v14", EDGE, 1.5, arrow=True)
    top = 118
    d.rect(_ENGINE, top, _OWNER, bottom - 12 - top, PAPER, INK, 3 if moment.is_computing else 1, radius=4)
    d.text(_ENGINE + 10, top + 16, "engine, in a thread of its own:", 12, fill=SOFT_INK)
    d.text(_ENGINE + 10, top + 34, "a step" if moment.is_computing else "waits for its owner", 12, bold=True)
    for n, name in enumerate(moment.in_engine):
        with d.marked([(name,)], moves=f"command add {name}"):
            d.request_chip(_ENGINE + 10 + 54 * n, top + 48, name)
        if moment.is_computing:  # the token on which the step works
            with d.marked([(name,)], moves=f"{name} {len(moment.read[name]) + len(moment.boxes[name])}"):
                d.rect(_ENGINE + 34 + 54 * n, top + 46, 20, 24, color_of(name), INK, 2, radius=3)
