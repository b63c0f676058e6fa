"""One live server for the tests of a module."""

import asyncio
import inspect

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from live_server import LiveServer


@pytest.fixture(scope="module")
def live():
    with LiveServer() as server:
        yield server


@pytest.fixture(scope="module")
def http(live):
    """A client of it, of httpx."""
    import httpx

    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def own_loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run tests that are coroutines, such as LangChain's, in one event loop: their clients keep connections open."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    loop = pyfuncitem._request.getfixturevalue("own_loop")
    loop.run_until_complete(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_configure(config):
    for name in ("benchmark", "vcr"):  # marks of LangChain's tests, whose plugins may be absent
        config.addinivalue_line("markers", f"{name}: of LangChain's tests")
