"""Tests that are coroutines run in an event loop of their own, or in that of a fixture `loop`, with a limit."""

import asyncio
import inspect

import pytest
from fronts import LIMIT


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run = pyfuncitem.funcargs["loop"].run_until_complete if "loop" in pyfuncitem.funcargs else asyncio.run
    run(asyncio.wait_for(pyfuncitem.obj(**arguments), LIMIT))
    return True
