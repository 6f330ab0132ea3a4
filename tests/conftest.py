"""Fixtures that tests of a real node share, and two guards: no test runs for ever, no process outlives the tests."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
import uvloop

import liftpy
from liftpy.cli.dev import nats_server as nats_server_module
from support.cluster import NodeProcess, make_nats
from support.examples import SHARES, choose

TESTS = Path(__file__).parent
TEST_S_MAX = 240
SLOW_TEST_S_MAX = 600
AGAIN_S = 5
PROMISED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GONE_WITHIN_S = 10


class TestTooLongError(SystemExit):
    """A test was interrupted. Event loops pass on no other kind of exception that a signal's handler raises."""

    __test__ = False


def pytest_addoption(parser):
    """How thoroughly properties are tried, and with which nats-server."""
    parser.addoption(
        "--examples", choices=list(SHARES), default="all", help="of each property's examples (default all)"
    )
    parser.addoption("--nats-server", type=Path, help="a nats-server other than the one that is installed")


def pytest_configure(config):
    """What commands print must not depend on the terminal that the tests were started from."""
    choose(config.getoption("--examples"))
    if (binary := config.getoption("--nats-server")) is not None:
        nats_server_module.find_binary = binary.resolve
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items):
    """Tests that CONTRIBUTING.md names as those that show a promise are marked so, and `make test` runs them."""
    named = set(PROMISED.findall((TESTS.parent / "CONTRIBUTING.md").read_text()))
    for item in items:
        path = str(item.path.relative_to(TESTS.parent))
        if (path, getattr(item, "originalname", item.name)) in named:
            item.add_marker(pytest.mark.promise)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Interrupt a test that takes far longer than it may."""
    limit_s = SLOW_TEST_S_MAX if item.get_closest_marker("slow") else TEST_S_MAX
    began_s = time.monotonic()

    def interrupt(_number, _frame):  # some tests set the alarm anew
        signal.alarm(AGAIN_S)  # what is raised in a callback may be swallowed
        raise TestTooLongError(f"the test is not through after {time.monotonic() - began_s:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(limit_s)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_asyncio_loop_factories(item):
    """What is of a node runs on the loop that nodes run on; all else on Python's own."""
    if "server" in item.path.relative_to(TESTS).parts:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def _children():
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def no_process_stays():
    """Whatever the tests started is gone when they are through."""
    before = set(_children())
    yield
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := set(_children()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    described = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert described == []


@pytest.fixture
def nats_server(tmp_path):
    """A nats-server with the shipped configuration."""
    server = make_nats(tmp_path / "nats")
    yield server
    server.stop()


@pytest.fixture
def node(nats_server, tmp_path):
    """A running node."""
    process = NodeProcess(nats_server.url, tmp_path / "node").start()
    yield process
    process.stop()


@pytest.fixture
async def lift(nats_server, node):
    """A connected client of the running node."""
    async with liftpy.connect(nats_server.url, timeout_s=20.0) as client:
        yield client


@pytest.fixture(scope="module")
def shared_nats(tmp_path_factory):
    """A nats-server for all tests of a module."""
    server = make_nats(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared_node(shared_nats, tmp_path_factory):
    """A node for all tests of a module, which must leave it as well as they found it."""
    process = NodeProcess(shared_nats.url, tmp_path_factory.mktemp("node"), "--http-port", "0").start()
    yield process
    process.stop()


@pytest.fixture
async def shared_lift(shared_nats, shared_node):
    """A connected client of the shared node."""
    async with liftpy.connect(shared_nats.url, timeout_s=20.0) as client:
        yield client


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """An S3 server for all tests of a module, which use prefixes of their own."""
    from support.s3_servers import seaweedfs  # noqa: PLC0415  # it imports moto, which most tests do without

    with seaweedfs(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def name(request):
    """A name that no other test of the module uses: for a stream, and for the first token of its subject."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:100].strip("-")
