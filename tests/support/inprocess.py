"""A node inside the test's own process and event loop, for what can not be reached from outside."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_server.node.node import Node
from liftpy_server.settings.config import HttpConfig, NodeConfig, PullConfig, StorageConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def running_node(url: str, home: Path, **storage: float) -> AsyncIterator[Node]:
    """A started node; what it changes of the whole process is put back."""
    switch_interval, threads, io_threads = sys.getswitchinterval(), pa.cpu_count(), pa.io_thread_count()
    config = NodeConfig(
        data_dir=str(home),
        nats=NatsOptions(url=url),
        pull=PullConfig(port=0),
        http=HttpConfig(port=0),
        storage=StorageConfig(**storage),
    )
    node = Node(config)
    try:
        await node.start()
        try:
            yield node
        finally:
            await node.stop()
    finally:
        sys.setswitchinterval(switch_interval)
        pa.set_cpu_count(threads)
        pa.set_io_thread_count(io_threads)
