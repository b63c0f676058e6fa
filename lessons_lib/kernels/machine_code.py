"""Lesson 08: which instructions an NVIDIA GPU would execute for a kernel, counted on a machine that may have none."""

import re
from collections import Counter

from lessons_lib.kernels.compile_check import ptx_of

_INSTRUCTION = re.compile(r"^\t(?:@!?%\w+ )?([a-z][\w.:]+)", re.MULTILINE)


class MachineCode:
    """Stands in for a kernel where it is launched: compiles it for an H100, down to PTX, instead of running it.

    Attributes:
        instructions: name -> how often it occurs in the code, where a loop's body occurs once; empty if nothing can be
            compiled here. Every thread executes them, the 32 threads of a warp those on tensor cores together.
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
        """How many instructions have a name that starts and ends like this; None if nothing could be compiled."""
        if not self.instructions:
            return None
        found = (name for name in self.instructions if name.startswith(beginnings) and name.endswith(ending))
        return sum(self.instructions[name] for name in found)
