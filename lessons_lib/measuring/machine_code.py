"""Lesson 08: count the instructions of a kernel compiled for an NVIDIA GPU, on any machine."""

import re
from collections import Counter

from lessons_lib.measuring.compile_check import ptx_of

_INSTRUCTION = re.compile(r"^\t(?:@!?%\w+ )?([a-z][\w.:]+)", re.MULTILINE)


class MachineCode:
    """Stand-in for a kernel at its launch: compile it for an H100, down to PTX, instead of running it.

    Attributes:
        instructions: name -> number of occurrences in the code, with a loop's body once; empty if nothing can be
            compiled. Every thread executes them; tensor core instructions are shared by the 32 threads of a warp.
    """

    def __init__(self, kernel):
        self.kernel = kernel
        self.instructions: Counter[str] = Counter()

    def __getitem__(self, grid):
        def launch(*args, **constants) -> None:
            ptx = ptx_of(self.kernel, *args, **constants)
            self.instructions = Counter(_INSTRUCTION.findall(ptx or ""))

        return launch

    def count(self, *beginnings: str, ending: str = "") -> int | None:
        """Count the instructions with these beginnings and this ending; None if nothing could be compiled."""
        if not self.instructions:
            return None
        found = (name for name in self.instructions if name.startswith(beginnings) and name.endswith(ending))
        return sum(self.instructions[name] for name in found)
