"""One upstream and one weir for all tests, and clients as an application would make them."""

import os
from pathlib import Path

import openai
import pytest

import harness

CONFIG = Path(__file__).parents[1] / "weir.toml"


def pytest_configure(config):
    for name in [name for name in os.environ if harness.FOREIGN.match(name)]:
        if not name.startswith("WEIR_TEST_"):
            del os.environ[name]


@pytest.fixture(scope="session")
def shared_upstream():
    upstream = harness.Upstream("--require-key", harness.KEY)
    yield upstream
    upstream.stop()


@pytest.fixture
def upstream(shared_upstream):
    """The upstream with an empty log."""
    shared_upstream.clear()
    return shared_upstream


@pytest.fixture(scope="session")
def weir(shared_upstream):
    weir = harness.Weir(shared_upstream.base_url, CONFIG)
    yield weir
    assert weir.stop() == 0, "".join(weir.lines)


@pytest.fixture(scope="session")
def client(weir):
    with openai.OpenAI(base_url=weir.base_url, api_key=harness.KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def direct(shared_upstream):
    """The same client without weir, to compare with."""
    base_url = shared_upstream.base_url
    with openai.OpenAI(base_url=base_url, api_key=harness.KEY, max_retries=0) as client:
        yield client
