"""What tests of Spark share: a session, and a nats-server, a bucket and a node for it to read and write."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import liftpy
from support.cluster import NodeProcess, make_nats
from support.tier_kit import tier_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from support.s3_servers import S3Server

__all__ = ["System", "eventually", "java_trouble", "spark_session", "system_of"]

JAVA_LEAST = 17
WAIT_S = 60.0
GATEWAY_S = 20.0
PREFIX = "liftpy"


def java_trouble() -> str | None:
    """Why Spark can not run here; None where it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        return f"Spark needs Java {JAVA_LEAST} or newer, and there is none"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_LEAST:
        return f"Spark needs Java {JAVA_LEAST} or newer, and {java} is {found[1] if found else 'no Java'}"
    return None


@contextmanager
def spark_session(directory: Path, **settings: str) -> Iterator[SparkSession]:
    """A session on this machine whose JVM is gone afterwards. Workers inherit the environment as it is now."""
    from pyspark import SparkContext  # noqa: PLC0415 - it takes its time
    from pyspark.sql import SparkSession  # noqa: PLC0415

    usual = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "local"),
        "spark.master": "local[2,2]",  # a task that fails is tried once more
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes its time to start a worker
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with mock.patch.dict(os.environ, here):
        builder = SparkSession.builder.appName("tests")
        for name, value in (usual | settings).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()
            gateway = SparkContext._gateway
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM ends with it
            gateway.proc.wait(GATEWAY_S)


def eventually(condition: Callable[[], Any], message: str, timeout_s: float = WAIT_S) -> Any:
    """Wait until a condition gives something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {message}")
        time.sleep(0.02)
    return value


class System:
    """A nats-server, a bucket, and a node that moves what is published there within half a second.

    Attributes:
        url: of NATS.
        lift: a connection.
        server: the S3 server.
        node: the process of the node.
        bucket_url: what the node keeps its history in.
        options: of readers and writers.
    """

    def __init__(
        self, nats: Any, server: S3Server, node: NodeProcess, lift: liftpy.SyncLift, prefix: str = PREFIX
    ) -> None:
        self.nats = nats
        self.url = nats.url
        self.server = server
        self.node = node
        self.lift = lift
        self.bucket_url = server.url(prefix)
        self.options = {"servers": nats.url, "bucket": self.bucket_url, "s3.endpoint": server.endpoint}

    def publish(self, subject: str, **columns: pa.Array) -> None:
        """Publish records on a subject; the columns are those of `publish_batch`."""
        with self.lift.publisher() as publisher:
            publisher.publish_batch(subject, columns)

    def partitions(self, stream: str) -> list[Any]:
        """How the partitions of a stream are."""
        return list(self.lift.stream_info(stream).partitions)

    def records(self, stream: str, **where: Any) -> pa.Table:
        """What the client reads, in the order of partition and offset."""
        table = self.lift.to_arrow(stream, **where)
        return table.sort_by([("partition", "ascending"), ("offset", "ascending")])

    def tiered(self, stream: str) -> None:
        """Wait until the bucket has all of a stream."""

        def is_there() -> bool:
            found = self.partitions(stream)
            return all((each.tiered_end or 0) >= each.high_watermark for each in found)

        eventually(is_there, f"the bucket has all of {stream}")


@contextmanager
def system_of(directory: Path, server: S3Server, prefix: str = PREFIX, **tier: float) -> Iterator[System]:
    """All of it, with a bucket of this server; to be used while its credentials are those of this process.

    Args:
        directory: for what the processes keep.
        server: the S3 server.
        prefix: what keys in the bucket begin with; each system has its own.
        tier: settings of the table `[tier]`.
    """
    store = server.store(prefix)
    nats = make_nats(directory / "nats")
    try:
        toml = tier_toml(server, prefix, **tier)
        node = NodeProcess(nats.url, directory / "node", toml=toml, environment=server.environment).start()
        try:
            eventually(lambda: any(store.list("catalog.json")), "the bucket has a catalog")
            with liftpy.connect_sync(nats.url, timeout_s=10.0) as lift:
                yield System(nats, server, node, lift, prefix)
        finally:
            node.stop()
    finally:
        nats.stop()
