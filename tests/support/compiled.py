"""A kernel that is compiled and not run."""

from lessons_lib.measuring.compile_check import why_not_compiled


class Compiled:
    """Stands in for a kernel: asks the compiler, and runs nothing."""

    def __init__(self, kernel):
        self.kernel, self.refusals = kernel, []

    def __getitem__(self, grid):
        def run(*args, num_warps=None, num_stages=None, **kwargs):
            self.refusals.append(why_not_compiled(self.kernel, *args, **kwargs))

        return run
