"""One live server for the tests of a module."""

import httpx
import pytest
from live_server import LiveServer


@pytest.fixture(scope="module")
def live():
    with LiveServer() as server:
        yield server


@pytest.fixture(scope="module")
def http(live):
    """A client of it, of httpx."""
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


def pytest_configure(config):
    for name in ("benchmark", "vcr"):  # marks of LangChain's tests, whose plugins may be absent
        config.addinivalue_line("markers", f"{name}: of LangChain's tests")
