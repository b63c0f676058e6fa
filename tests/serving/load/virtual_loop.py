"""An event loop on virtual time: where it would wait, its clock jumps. For code without sockets and threads."""

import asyncio


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self.virtual_time = 0.0
        select = self._selector.select

        def jump(timeout):
            if timeout:  # None: nothing will ever happen, which a real loop would wait for as well
                self.virtual_time += timeout
            return select(0 if timeout is not None else 1)

        self._selector.select = jump

    def time(self):
        return self.virtual_time


def run_virtually(main):
    """Run the coroutine function `main(clock)` to its end; returns its result."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop.time))
    finally:
        loop.close()
