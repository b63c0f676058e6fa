"""Tests that can't fail, whatever the engine does, and why."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

CATCHES_ALL = {"Exception", "BaseException", "AssertionError"}


def why_silent(test: Callable[..., Any], returned: Any) -> str:
    """What keeps a test from failing, as advice; "" if nothing is seen."""
    if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
        what = "contains `yield`" if inspect.isgenerator(returned) else "is a coroutine (`async`)"
        return f"Your test {what}, so a call of it runs none of its lines. Write a plain function."
    for node in ast.walk(_tree(test)):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            return (
                f"`{ast.unparse(node)}` never fails: what stands in parentheses is a tuple, which counts as true. "
                "Write `assert condition, message`, without parentheses around both."
            )
        if isinstance(node, ast.Try) and any(
            isinstance(each, ast.Assert) for part in node.body for each in ast.walk(part)
        ):
            for handler in node.handlers:
                if _catches(handler) and not any(isinstance(each, ast.Raise) for each in ast.walk(handler)):
                    caught = f"except {ast.unparse(handler.type)}" if handler.type else "except"
                    return (
                        f"Your `{caught}:` catches the AssertionError of the `assert` above it. Let it out of the test."
                    )
    return ""


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(each, ast.Name) and each.id in CATCHES_ALL for each in types)


def _tree(test: Callable[..., Any]) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(test)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
