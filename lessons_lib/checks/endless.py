"""Finds the line at which code is stuck: the loop that doesn't end, in the learner's cell."""

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import unwrap
from types import FrameType, FunctionType

LOOPS = (
    (ast.While,),
    (ast.For, ast.AsyncFor),
    (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


@dataclass(frozen=True)
class StuckCall:
    """A call that didn't return between the first look at a thread and the last.

    Attributes:
        file, function, first_line: of its code.
        lines: where it was when we looked.
    """

    file: str
    function: str
    first_line: int
    lines: frozenset[int]


@dataclass
class Looks:
    """A few looks at a thread's stack. A call that is in all of them hasn't returned in between.

    Attributes:
        calls: the frame of each such call and the lines that it was seen at, the innermost last.
    """

    calls: list[tuple[FrameType, set[int]]] | None = None

    def look(self, thread_id: int) -> None:
        frames = list(_stack(sys._current_frames().get(thread_id)))[::-1]
        if self.calls is None:
            self.calls = [(frame, set()) for frame in frames]
        same = 0
        while same < min(len(frames), len(self.calls)) and frames[same] is self.calls[same][0]:
            same += 1
        del self.calls[same:]
        for frame, lines in self.calls:
            lines.add(frame.f_lineno or frame.f_code.co_firstlineno)

    def stuck_calls(self) -> list[StuckCall]:
        """The calls that are in all looks, without their frames, which would keep the learner's objects alive."""
        return [
            StuckCall(code.co_filename, code.co_name, code.co_firstlineno, frozenset(lines))
            for code, lines in ((frame.f_code, lines) for frame, lines in self.calls or [])
        ]


@dataclass(frozen=True)
class Place:
    """A line of the learner's.

    Attributes:
        function: that it is in.
        is_loop: whether a loop starts here; otherwise it is the line that didn't end.
    """

    line: int
    text: str
    function: str
    is_loop: bool = field(default=False)


def place_of(calls: list[StuckCall], is_own: Callable[[str], bool]) -> Place | None:
    """Where the learner's code is stuck: the loop in the innermost of their calls that doesn't return.

    Args:
        is_own: whether a file is the learner's.

    Returns:
        None if none of the calls is the learner's: each of theirs returned.
    """
    own = [call for call in calls if is_own(call.file)]
    if not own:
        return None
    call = own[-1]
    source = linecache.getlines(call.file)
    loop = _loop_around(call, "".join(source))
    line = loop or max(call.lines)
    text = source[line - 1].strip() if line <= len(source) else ""
    return Place(line, text, call.function, loop is not None)


def _loop_around(call: StuckCall, source: str) -> int | None:
    """The first line of the innermost loop that all looks saw, a `while` if there is one: a `for` mostly ends."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return None
    for kinds in LOOPS:
        around = [
            _first_line(node)
            for node in nodes
            if isinstance(node, kinds)
            and call.first_line <= node.lineno <= min(call.lines)
            and max(call.lines) <= (node.end_lineno or node.lineno)
        ]
        if around:
            return max(around)
    return None


def _first_line(loop: ast.AST) -> int:
    """Where it says what is looped over. A comprehension may begin on a line before."""
    return loop.generators[0].target.lineno if hasattr(loop, "generators") else loop.lineno


def files_of(answer: object) -> set[str]:
    """The files in which an answer's functions are written. A cell of a notebook counts as a file."""
    answer = getattr(answer, "fn", answer)  # a Triton kernel wraps its function
    found = [answer, *(vars(answer).values() if isinstance(answer, type) else ())]
    functions = [getattr(each, "fget", None) or getattr(each, "__func__", None) or each for each in found]
    # Below a decorator, such as `inference_mode`: the decorator's own file is not the learner's.
    own = [unwrap(each) for each in functions if isinstance(each, FunctionType)]
    return {each.__code__.co_filename for each in own if isinstance(each, FunctionType)}


def is_cell(file: str) -> bool:
    """Whether a file is a cell of a notebook, or an answer that was kept from one."""
    return "ipykernel" in file or file.startswith(("<ipython", "<your "))


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back
