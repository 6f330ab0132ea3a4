"""What the demonstration runs on: a nats-server and nodes, each a process of its own, in a temporary directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftpy.cli.child_processes import NodeProcess, wait_ready
from liftpy.cli.dev.layout import DevLayout
from liftpy.cli.dev.nats_server import NatsServer, shipped_config
from liftpy.cli.dev.seaweed import SeaweedServer
from liftpy.demo.bucket import BUCKET_SETTINGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["DemoCluster", "open_cluster"]

# A leadership that goes home in the middle of the show would be a second change of leader beside the one that is shown.
_PREFERRED_RETURN_S: Final = 3_600.0


class DemoCluster:
    """A running nats-server, and nodes that can be killed.

    Attributes:
        url: URL of the nats-server.
        bucket: URL of the bucket; None without one.
        endpoint: Where S3 is spoken; None without a bucket.
        home: A directory for what processes keep; of files in it, `*.log` are kept when something goes wrong.
        environment: Environment of processes, with the credentials of the bucket.
        nodes: Nodes by their names.
    """

    def __init__(
        self, url: str, nodes: list[NodeProcess], home: Path, environment: dict[str, str], bucket: SeaweedServer | None
    ) -> None:
        self.url = url
        self.bucket = None if bucket is None else bucket.url
        self.endpoint = None if bucket is None else bucket.endpoint
        self.home = home
        self.environment = environment
        self.nodes = {node.node_id: node for node in nodes}

    async def start(self) -> None:
        """Start all nodes; returns when they are up."""
        for node in self.nodes.values():
            await node.spawn()
        await wait_ready(self.nodes.values())

    async def start_again(self, node_id: str) -> None:
        """Start a node that has ended; returns when it is up."""
        await self.nodes[node_id].spawn()
        await wait_ready([self.nodes[node_id]])

    async def end(self) -> None:
        """End all nodes; what they have is thrown away, so nothing is gained by waiting for their goodbyes."""
        await asyncio.gather(*(node.kill() for node in self.nodes.values()))


@asynccontextmanager
async def open_cluster(nodes: int, tell: Callable[[str], None], *, s3: bool = False) -> AsyncIterator[DemoCluster]:
    """A nats-server and nodes that are not started yet. All is gone afterwards, but for the logs when it went wrong.

    Args:
        nodes: How many; one alone is no cluster.
        tell: Called with where the logs are kept.
        s3: S3 server and its bucket.

    Raises:
        LiftError: the nats-server, or the S3 server, cannot be run.
    """
    home = Path(tempfile.mkdtemp(prefix="liftpy-demo-"))
    keeps_logs = False
    try:
        with ExitStack() as servers:
            bucket = None
            if s3:
                bucket = SeaweedServer(home / "s3", home / "s3.log")
                servers.callback(bucket.kill)
                bucket.start()
            server = NatsServer(0, shipped_config(), home / "nats-server.log")
            servers.callback(server.stop)
            server.start()
            environment = _environment(home, bucket)
            processes = _processes(server.url, home, nodes, environment)
            cluster = DemoCluster(server.url, processes, home, environment, bucket)
            try:
                yield cluster
            finally:
                await cluster.end()
    except Exception:
        keeps_logs = True
        tell(f"what the processes said is kept in {home}")
        raise
    finally:
        _clean(home, keeps_logs=keeps_logs)


def _processes(url: str, home: Path, count: int, environment: dict[str, str]) -> list[NodeProcess]:
    command = [sys.executable, "-m", "liftpy", "-s", url, "server", "--json", "--pull-port", "0"]
    if count == 1:
        flags = ["--node-id", "node-1", "--data-dir", str(home / "node-1")]
        return [NodeProcess("node-1", [*command, *flags], environment, home / "node-1.log")]
    layout = DevLayout.open(home, count)
    return [
        NodeProcess(place.node_id, [*command, *layout.flags(place, joins=False)], environment, layout.log_path(place))
        for place in layout.nodes
    ]


def _environment(home: Path, bucket: SeaweedServer | None) -> dict[str, str]:
    """Ours, without what it says of other nodes, NATS servers and accounts at Amazon's."""
    others = ("NATS_", "LIFTPY_", "AWS_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    if bucket is not None:
        kept |= bucket.environment | BUCKET_SETTINGS
        kept |= {"LIFTPY_TIER_URL": bucket.url, "LIFTPY_TIER_ENDPOINT": bucket.endpoint}
    return kept | {"XDG_CONFIG_HOME": str(home), "LIFTPY_CLUSTER_PREFERRED_RETURN_S": str(_PREFERRED_RETURN_S)}


def _clean(home: Path, *, keeps_logs: bool) -> None:
    if not keeps_logs:
        shutil.rmtree(home)
        return
    for path in home.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".log":
            path.unlink()
