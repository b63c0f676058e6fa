"""An answer is graded by the statements that it needs, in a process in which the reference earns nothing."""

import ast

import pytest

from lessons_lib.checks.graded import in_new_process
from lessons_lib.checks.needed import needed, statements_of
from lessons_lib.checks.registry import get_exercise

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("graded")]

BASICS = "import torch\nimport triton\nimport triton.language as tl"
CEIL = "def blocks_for(num_tokens, block_size):\n    return {}\n"


def grade(id, *cells, passed=(), folder="."):
    return in_new_process(id, [*cells], set(passed), str(folder))


def reference(id):
    """(module, name, source as a learner would retype it) of an exercise."""
    exercise = get_exercise(id)
    return *exercise.reference.split(":"), exercise.reference_source()


@pytest.mark.parametrize(
    "body", ["-(-num_tokens // block_size)", "math.ceil(num_tokens / block_size)", "up(num_tokens, block_size)"]
)
def test_a_right_answer_gets_all_points(body):
    cells = [
        "import math",
        CEIL.format(body),
        "def up(a, b):\n    return (a + b - 1) // b",
        'blocks_for = check("03.6", blocks_for)',
    ]
    assert grade("03.6", *cells)[1] is None


@pytest.mark.parametrize(
    "id, imports",
    [
        ("03.5", "from collections import deque\nfrom lessons_lib.kv_cache.block_pool import OutOfBlocks"),
        ("07.1", BASICS),
    ],
)
def test_the_reference_retyped_is_a_right_answer(id, imports):
    _, name, source = reference(id)
    assert grade(id, imports, source, f'{name} = check("{id}", {name})')[1] is None


@pytest.mark.parametrize("body", ["num_tokens // block_size", "None", "1 / 0", "undefined"])
def test_a_wrong_answer_gets_none_and_is_told_why(body):
    message, earned = grade("03.6", CEIL.format(body))
    assert earned == 0 and "03.6 `blocks_for`" in message


def test_without_an_answer_there_are_no_points():
    assert grade("03.6") == ("there is no `blocks_for`. no statement of a cell binds it.", 0.0)
    assert "NameError" in grade("03.6", "blocks_for = missing")[0]
    assert "not written yet" in grade("03.6", CEIL.format("1").replace("return 1", "raise NotImplementedError()"))[0]


def test_an_answer_that_ends_the_process_gets_none():
    assert grade("03.6", "import os", CEIL.format("os._exit(0)")) == ("the process ended before the check did.", 0.0)


BORROWED = {
    "imported": "from {module} import {name} as _theirs\n{name} = _theirs",
    "imported under its name": "from {module} import {name}",
    "from its module": "import {module} as theirs\n{name} = theirs.{name}",
    "by importlib": "import importlib\n{name} = getattr(importlib.import_module('{module}'), '{name}')",
    "from sys.modules": "import sys\n{name} = getattr(sys.modules['{module}'], '{name}')",
    "from the registry": "from lessons_lib.checks.registry import get_exercise\n{name} = get_exercise('{id}').load_reference()",
    "by executing its source": "import inspect, {module} as m\nexec(inspect.getsource(getattr(m.{name}, 'fn', m.{name})))",
    "by executing it elsewhere": "import inspect, {module} as m\ndef run(t):\n    d = dict(vars(m))\n    exec(t, d)\n    return d['{name}']\n{name} = run(inspect.getsource(getattr(m.{name}, 'fn', m.{name})))",
    "in a partial": "import functools, {module} as m\n{name} = functools.partial(m.{name})",
}
OF_CLASSES = {
    "subclass": "from {module} import {name} as _theirs\nclass {name}(_theirs):\n    pass",
    "subclass of its module's": "import {module} as m\nclass {name}(m.{name}):\n    more = 1",
    "copied": "import {module} as m\n{name} = type('{name}', (), dict(vars(m.{name})))",
    "made by __new__": "import {module} as m\nclass {name}:\n    def __new__(cls, *args, **named):\n        return m.{name}(*args, **named)",
    "asked": (
        "import importlib\nclass {name}:\n    def __init__(self, *args, **named):\n"
        "        self.inner = importlib.import_module('{module}').{name}(*args, **named)\n"
        "    def __getattr__(self, name):\n        return getattr(self.inner, name)"
    ),
}
OF_FUNCTIONS = {
    "called": "import {module} as m\ndef {name}(*args, **named):\n    return m.{name}(*args, **named)",
    "called by lambda": "import {module} as m\n{name} = lambda *args, **named: m.{name}(*args, **named)",
    "cached": "import functools, {module} as m\n{name} = functools.cache(m.{name})",
    "copied": "import types, {module} as m\n{name} = types.FunctionType(m.{name}.__code__, vars(m))",
    "from sys.modules when called": (
        "import sys\ndef {name}(*args, **named):\n    return getattr(sys.modules['{module}'], '{name}')(*args, **named)"
    ),
}
OF_KERNELS = {
    "as a function": BASICS
    + "\nfrom {module} import {name} as _theirs\n@triton.jit\ndef {name}({parameters}):\n    _theirs({parameters})"
}
BORROWERS = [
    pytest.param(id, text, id=f"{id} {how}")
    for id, ways in (("03.5", OF_CLASSES), ("03.6", BORROWED | OF_FUNCTIONS), ("07.1", BORROWED | OF_KERNELS))
    for how, text in ways.items()
]


@pytest.mark.parametrize("id, text", BORROWERS)
def test_the_reference_earns_nothing(id, text):
    module, name, source = reference(id)
    head = next(node for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    parameters = ", ".join(each.arg for each in head.args.args) if isinstance(head, ast.FunctionDef) else ""
    cell = text.format(id=id, module=module, name=name, parameters=parameters)
    message, earned = grade(id, cell, f'{name} = check("{id}", {name})')
    assert earned == 0, cell
    assert "reference" in message or ("exec" in cell and f"no `{name}`" in message), message


EXAMPLES = "lessons_lib.conformance.examples"
ENGINES = {
    "of another exercise": f"from {EXAMPLES}.small_engine import make_engine",
    "of the course": "from lessons_lib.conformance.adapters.course import make_engine",
    "its class": f"from {EXAMPLES}.slow_engine import SlowEngine\ndef make_engine(m, l, t):\n    return SlowEngine(m, l)",
    "its subclass": f"from {EXAMPLES}.slow_engine import SlowEngine as _S\nclass E(_S):\n    pass\nmake_engine = E",
}


@pytest.mark.parametrize("text", ENGINES.values(), ids=ENGINES)
def test_an_engine_of_the_course_earns_nothing_in_the_capstone(text):
    message, earned = grade("17.1", text, 'make_engine = check("17.1", make_engine)')
    assert earned == 0 and "is the reference of this exercise" in message


def test_a_file_that_calls_an_engine_of_the_course_earns_nothing(tmp_path):
    (tmp_path / "own_engine.py").write_text(
        f"from {EXAMPLES}.small_engine import SmallEngine\n"
        "def make_engine(model, limits, tokenizer):\n    SmallEngine(model, limits)\n    raise ValueError('early')\n"
    )
    message, earned = grade("17.1", "from own_engine import make_engine", folder=tmp_path)
    assert (message.split(" calls")[0], earned) == ("line 3 of own_engine.py", 0)


TAMPERED = {
    "check": "check = points = lambda id, attempt=None: attempt",
    "judge": "import lessons_lib.checks.judge as j\nj.judge = lambda *each: (j.Outcome(None, '', False), '')",
    "exercise": "import lessons_lib.checks.lesson_03 as l\nfor each in l.EXERCISES:\n    object.__setattr__(each, 'test', print)",
    "modules": "import sys\nsys.modules['lessons_lib.checks.judge'] = None",
    "torch": "import torch\ntorch.equal = torch.allclose = lambda *each, **named: True",
    "int": "import builtins\nbuiltins.int = lambda *each: 3",
    "exit": "import os\nos._exit(0)",
}


@pytest.mark.parametrize("text", TAMPERED.values(), ids=TAMPERED)
def test_what_an_answer_does_not_need_is_not_executed(text):
    assert grade("03.6", text + "\n" + CEIL.format("num_tokens // block_size"))[1] == 0
    assert grade("03.6", text + "\n" + CEIL.format("-(-num_tokens // block_size)"))[1] is None


def test_other_exercises_are_answers_where_they_passed_and_references_elsewhere():
    wrong = CEIL.format("1")
    cells = ["import torch", wrong, 'blocks_for = check("03.6", blocks_for)', "size = blocks_for(33, 16)"]
    asks = "class BlockPool:\n    def __init__(self, *each):\n        raise ValueError(size)"
    assert "ValueError: 3" in grade("03.5", *cells, asks)[0]
    assert "ValueError: 1" in grade("03.5", *cells, asks, passed={"03.6"})[0]


def test_a_module_next_to_the_notebook_can_be_imported(tmp_path):
    (tmp_path / "own_helper.py").write_text("def up(a, b):\n    return -(-a // b)\n")
    assert (
        grade("03.6", "from own_helper import up", CEIL.format("up(num_tokens, block_size)"), folder=tmp_path)[1]
        is None
    )


NEEDED = [
    (["a = 1", "b = 2", "def f():\n    return a"], "f", ["a = 1", "def f():\n    return a"]),
    (["def f():\n    return g()", "def g():\n    return 1"], "f", ["def f():\n    return g()", "def g():\n    return 1"]),
    (["from math import pi, sqrt", "f = sqrt"], "f", ["from math import sqrt", "f = sqrt"]),
    (["f = 1", "f = 2"], "f", ["f = 2"]),
    (["f = 1", "f += 2"], "f", ["f = 1", "f += 2"]),
    (["f = {}", "f[1] = 2", "f.update({3: 4})", "print(f)"], "f", ["f = {}", "f[1] = 2", "f.update({3: 4})"]),
    (["f = []", "for x in [1]:\n    f.append(x)"], "f", ["f = []", "for x in [1]:\n    f.append(x)"]),
    (["try:\n    import json as f\nexcept ImportError:\n    f = None"], "f", ["try:\n    import json as f\nexcept ImportError:\n    f = None"]),
    (["import os", "os.getcwd = print", "f = os.getcwd"], "f", ["import os", "f = os.getcwd"]),
    (["from math import *", "f = sqrt"], "f", ["from math import *", "f = sqrt"]),
    (["f = (", "f = 3"], "f", ["f = 3"]),
    (["class A:\n    pass", "A.m = 3", "def f(x=A):\n    pass"], "f", ["class A:\n    pass", "A.m = 3", "def f(x=A):\n    pass"]),
    (["get_ipython().run_cell_magic('time', '', 'f = 3\\n')"], "f", ["f = 3"]),
    (['f = check("1", f)', "check = 4"], "f", ["f = check('1', f)"]),
    ([], "f", []),
]  # fmt: skip


@pytest.mark.parametrize("cells, name, expected", NEEDED)
def test_the_statements_that_a_name_needs(cells, name, expected):
    assert [ast.unparse(each.node) for each in needed(statements_of(cells), name)] == expected
