"""The data of exercises and quizzes, and `Mistake`, which a test raises to reject an answer."""

import ast
import copy
import importlib
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class CurrentCase(threading.local):
    """The case that a check is at, in this thread, so that an exception or an endless loop can be reported with it.

    Attributes:
        text: what the learner is told about the case.
        begins: called whenever a case begins.
    """

    def __init__(self) -> None:
        self._text = ""
        self.begins: Callable[[], object] = lambda: None

    @property
    def text(self) -> str:
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._text = text
        self.begins()


current_case = CurrentCase()


class Mistake(Exception):
    """What is wrong with an answer.

    Args:
        what: what was expected and what came instead, in one or two sentences.
        case: the smallest case that fails.
        idea: the idea behind the mistake, and where to look.
        earned: the share of the points that the attempt is worth all the same, if the exercise gives points in parts.
    """

    def __init__(self, what: str, case: str = "", idea: str = "", earned: float = 0.0):
        super().__init__(what)
        self.what, self.case, self.idea, self.earned = what, case, idea, earned


@contextmanager
def reached(what: str) -> Iterator[None]:
    """For a task in two steps: what an attempt has reached when it gets here. Whatever goes wrong from here on, the
    learner reads that first."""
    try:
        yield
    except Exception as error:
        error.reached = what  # type: ignore[attr-defined]
        raise


@dataclass(frozen=True)
class Exercise:
    """One exercise: its reference solution, and the test that judges an attempt.

    Attributes:
        id: lesson and number, such as "03.2".
        title: a few words, shown in the progress table.
        reference: "module:name" of the reference code; the learner's stub is made from it.
        test: called with the attempt; raises `Mistake` on the smallest case that fails.
        hints: first the idea, then an outline, then nearly the code.
        points: points in a graded class.
        in_parts: whether a wrong attempt may earn some of them; see `Mistake.earned`.
        time_limit: seconds of computing after which an attempt is stopped, in one case; see `run_guarded`.
        solved_by: packages of the course that solve it as well; in a graded run they earn as little as the reference.
    """

    id: str
    title: str
    reference: str
    test: Callable[[object], None]
    hints: tuple[str, ...]
    points: int = 2
    time_limit: float = 5.0
    in_parts: bool = False
    solved_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function or class that the learner writes."""
        return self.reference.split(":")[1]

    @property
    def is_optional(self) -> bool:
        """Whether its lesson can be finished without it."""
        return self.title.endswith("(optional)")

    def load_reference(self) -> object:
        module, name = self.reference.split(":")
        return getattr(importlib.import_module(module), name)

    def reference_source(self) -> str:
        reference = self.load_reference()
        return inspect.getsource(getattr(reference, "fn", reference))  # a Triton kernel wraps its function

    def reference_body(self) -> str:
        """The reference code without its docstring, which the stub already shows."""
        tree = ast.parse(self.reference_source())
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
                del node.body[0]
                node.body = node.body or [ast.Pass()]
        return ast.unparse(tree)


@dataclass(frozen=True)
class Choice:
    """One answer to a question, and why it is right or wrong."""

    text: str
    explanation: str
    right: bool = False


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[Choice, ...]


def questions(text: str) -> Iterator[Question]:
    """Read a quiz: each question, its choices (the right one after `+`, the others after `-`), and why each is right or
    wrong: behind `=>`, or indented in the next line. An empty line separates two questions."""
    for block in text.strip().split("\n\n"):
        question, *rest = re.split(r"\n(?=[-+] )", block)
        choices = [(each[0], *re.split(r" => |\n  ", each[2:], maxsplit=1)) for each in rest]
        yield Question(
            question.replace("\n", " "),
            tuple(Choice(text.replace("\n", " "), " ".join(why.split()), mark == "+") for mark, text, why in choices),
        )


def call(attempt: Callable, *args, case: str, **kwargs):
    """Call the attempt and return its result, checking that it leaves its arguments unchanged.

    The case is stored, so that an exception or infinite loop inside the attempt can be reported with it.
    Lists, dicts, sets and tensors among the arguments must come back unchanged.

    Raises:
        Mistake: the attempt changed one of its arguments.
    """
    current_case.text = case
    named = _named_arguments(attempt, args, kwargs)
    before = {name: copy.deepcopy(value) for name, value in named.items() if _is_plain_data(value)}
    result = attempt(*args, **kwargs)
    for name, value in before.items():
        if not _same(value, named[name]):
            raise Mistake(
                f"your code changed its argument `{name}`. {how_it_changed(name, value, named[name])}",
                case=case,
                idea=f"The caller still uses what it passed in. Make a copy first: {how_to_copy(name, value)}.",
            )
    return result


def short(value: object, limit: int = 120) -> str:
    """`repr`, with the middle cut out if it is long; tensors as nested lists."""
    text = repr(value.tolist()) if hasattr(value, "tolist") else repr(value)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def _named_arguments(attempt: Callable, args: tuple, kwargs: dict) -> dict[str, object]:
    try:
        return dict(inspect.signature(attempt).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        # The call itself will raise a TypeError with a better message.
        return {}


def how_it_changed(name: str, before: object, after: object) -> str:
    """Both values; of a tensor with many elements, only the first that changed."""
    if type(before).__name__ == "Tensor" and before.shape == after.shape and before.numel() > 20:
        index = tuple((before != after).nonzero()[0].tolist())
        was, now = (
            f"{value:.4g}" if isinstance(value, float) else value
            for value in (before[index].item(), after[index].item())
        )
        return f"`{name}[{', '.join(map(str, index))}]` was {was} before the call and is {now} after it."
    return f"It was {short(before)} before the call and {short(after)} after it."


def how_to_copy(name: str, value: object) -> str:
    if type(value).__name__ == "Tensor":
        return f"`{name}.clone()`"
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return f"`[list(row) for row in {name}]`, since `list({name})` would share the rows"
    return f"`{type(value).__name__}({name})`"


def _is_plain_data(value: object) -> bool:
    return isinstance(value, (list, dict, set)) or type(value).__name__ == "Tensor"


def _same(before: object, after: object) -> bool:
    if type(before).__name__ == "Tensor":
        return before.shape == after.shape and bool((before == after).all())
    return before == after
