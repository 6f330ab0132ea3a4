"""One Spark session and one system for all tests of Spark; these are run in a process of their own."""

from __future__ import annotations

import pytest

from support.s3_servers import seaweedfs
from support.spark_system import java_trouble, spark_session, system_of


def pytest_collection_modifyitems(items):
    """Where there is no Java nothing of this can run, and that is said."""
    trouble = java_trouble()
    if trouble is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=trouble))


def pytest_terminal_summary(terminalreporter):
    """Also where nobody asks why tests were skipped."""
    trouble = java_trouble()
    if trouble is not None:
        terminalreporter.write_line(f"NOTHING OF SPARK WAS TESTED: {trouble}", red=True)


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """An S3 server whose credentials are those of this process, and of all that it starts."""
    with seaweedfs(tmp_path_factory.mktemp("s3")) as server, server.in_environment():
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory, s3):
    """A session."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        session.range(1).toArrow()  # what the first query has to load is not to be part of the time of a test
        yield session


@pytest.fixture(scope="session")
def system(tmp_path_factory, s3):
    """A nats-server, a bucket and a node. Tests leave it as well as they found it, but for their streams."""
    with system_of(tmp_path_factory.mktemp("system"), s3) as made:
        yield made
