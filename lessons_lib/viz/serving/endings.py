"""Three ways in which an engine's owner can end badly when it is cancelled while a turn runs in the thread."""

from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SOFT_INK, color_of
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing

_LEFT, _CANCEL, _AGAIN, _BACK, _RIGHT = 228, 420, 548, 650, 884
_TOP, _ROW, _BAR = 58, 98, 24


def draw_endings() -> Picture:
    """The owner's coroutine and the thread, side by side in time; it is a sketch, not a recording."""
    d = Drawing(height=_TOP + 3 * _ROW + 6)
    d.text(16, 18, "Cancelled in the middle of A's turn", 15, bold=True)
    for x, words in ((_CANCEL, "cancelled"), (_AGAIN, "cancelled again"), (_BACK, "the thread comes back")):
        last = _TOP + 3 * _ROW - 14
        first = _TOP + 2 * _ROW + 18 if x == _AGAIN else _TOP - 16
        d.lines(f"M{x} {first}V{last}", SOFT_INK, 1.5, dots=5)
        d.text(x, first - 9, words, 12, "middle", bold=True, halo=PAPER)
    _draw_way(d, 0, "Nothing is cleaned up", "A's blocks stay in use", [])
    _draw_way(d, 1, "engine.close() at once", "two threads in the engine", [(_CANCEL, 66, "close()", True)])
    awaits = [(_CANCEL, _AGAIN - _CANCEL, "await the thread", False)]
    _draw_way(d, 2, "Await the thread, then close", "close() is never reached", awaits)
    return d.picture(
        "Three ways to end, each with the owner's coroutine and the engine's thread over time. The coroutine is "
        "cancelled in the middle of a turn, and the thread comes back later. One: nothing is cleaned up; A's blocks "
        "stay in use. Two: engine.close() is called at once, while the thread is still in the engine. Three: the "
        "coroutine awaits the thread, is cancelled again there, and close() is never reached."
    )


def _draw_way(d: Drawing, row: int, name: str, end: str, cleanup: list[tuple[float, float, str, bool]]) -> None:
    """One way: its name, both lanes, and how it ends.

    cleanup  what the coroutine does after the cancellation: (x, width, words, whether it enters the engine)
    """
    y = _TOP + row * _ROW
    d.text(16, y + 12, name, 13, bold=True)
    d.text(_LEFT - 10, y + 12 + 26, "coroutine", 11, "end", fill=SOFT_INK)
    d.text(_LEFT - 10, y + 12 + 26 + _BAR + 4, "thread", 11, "end", fill=SOFT_INK)
    owner, thread = y + 26, y + 26 + _BAR + 4
    d.rect(_LEFT, owner, _CANCEL - _LEFT, _BAR, PAPER, EDGE, radius=3)
    d.text((_LEFT + _CANCEL) / 2, owner + _BAR / 2, "awaits the turn", 11, "middle")
    d.rect(_LEFT + 12, thread, _BACK - _LEFT - 12, _BAR, color_of("A"), radius=3)
    d.text((_LEFT + _BACK) / 2, thread + _BAR / 2, "A's turn, in the engine", 11, "middle", on=color_of("A"))
    stop = _CANCEL
    for x, width, words, is_inside in cleanup:
        d.rect(x, owner, width, _BAR, color_of("F") if is_inside else NEUTRAL, radius=3)
        d.text(x + width / 2, owner + _BAR / 2, words, 11, "middle", on=color_of("F") if is_inside else NEUTRAL)
        stop = x + width
    d.lines(f"M{stop + 6} {owner + 6}l12 12m0 -12l-12 12", INK, 2)
    d.text(_BACK + 12, thread + _BAR / 2, end, 12, bold=True)
