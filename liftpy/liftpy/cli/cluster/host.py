"""Several nodes on one host under one supervisor: `liftpy server --processes N`.

A Python process keeps about one core busy, so a host with many cores runs many nodes. All of them have the settings of
the host, but for what `node_variables` derives: ids, directories, ports, and the rack, which is the host's, so that the
replicas of a partition stand on different hosts.

A node that ends is started again, ever more slowly. `/metrics`, `/varz`, `/healthz` and `/readyz` of the host tell of
all of its nodes; those have ports of their own on loopback, where the host asks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from liftpy.cli.child_processes import NodeProcess
from liftpy_envelope.errors import ConfigError
from liftpy_server.settings.cluster import PEERS_MAX, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from liftpy_server.settings.config import NodeConfig

__all__ = ["Host", "HostNode", "node_variables"]

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 30.0
_STABLE_S: Final = 60.0
_STOP_AGAIN_S: Final = 0.1
_PORT_MAX: Final = 65_535
_IDENTITY: Final = "liftpy.json"


def node_variables(settings: NodeConfig, count: int) -> list[dict[str, str]]:
    """What the nodes of a host are told besides the settings of the host, as environment variables.

    The first node has the id and the ports of the settings, the second one `ID-2` and the ports behind, and so on. A
    new cluster is founded by the first node of each of `cluster.peers`, then by the second ones, up to five nodes;
    so no host has a majority of the votes where there are three. Further nodes join.

    Args:
        settings: Settings of the host.
        count: Number of nodes, at least 2.

    Raises:
        ConfigError: The settings do not do for several nodes.
    """
    _check(settings, count)
    cluster = settings.cluster
    own = Peer(settings.node_id, cluster.reachable_host, cluster.port or 0)
    peers = cluster.parsed_peers or (own,)
    founders = [_shifted(peer, number) for number in range(count) for peer in peers][:PEERS_MAX]
    return [_variables(settings, number, founders) for number in range(count)]


def _variables(settings: NodeConfig, number: int, founders: Sequence[Peer]) -> dict[str, str]:
    node_id = _node_id(settings.node_id, number)
    variables = {
        "NODE_ID": node_id,
        "DATA_DIR": str(settings.data_path.absolute() / node_id),
        "RACK": settings.rack or settings.node_id,
        "PULL_PORT": str(settings.pull.port and settings.pull.port + number),
        "HTTP_HOST": "127.0.0.1",
        "HTTP_PORT": "0",
        "CLUSTER_PORT": str((settings.cluster.port or 0) + number),
    }
    joins = settings.cluster.join or node_id not in {founder.node_id for founder in founders}
    variables["CLUSTER_JOIN"] = "true" if joins else "false"
    variables["CLUSTER_PEERS"] = "" if joins else ",".join(map(str, founders))
    if number:
        variables["CANARY_STREAM"] = ""  # one canary on a host is enough
    return {f"LIFTPY_{name}": text for name, text in variables.items()}


def _check(settings: NodeConfig, count: int) -> None:
    cluster = settings.cluster
    if not cluster.port:
        raise ConfigError(
            "cluster.port",
            "the nodes of a host are nodes of a cluster: with --processes set cluster.port, the first of as many ports "
            "as there are processes, and cluster.key_file",
        )
    for name, port in (("pull.port", settings.pull.port), ("cluster.port", cluster.port)):
        if port + count - 1 > _PORT_MAX:
            raise ConfigError(name, f"{port} leaves no room for the ports of {count} processes")
    if settings.pull.port:
        first, second = sorted((settings.pull.port, cluster.port))
        if second - first < count:
            raise ConfigError(
                "pull.port",
                f"{settings.pull.port} and cluster.port {cluster.port} are too near: {count} processes take "
                f"{count} ports from each on",
            )
    if (settings.data_path / _IDENTITY).exists():
        raise ConfigError(
            "data_dir",
            f"{settings.data_path} holds the data of a single node, and the nodes of a host have a directory each: "
            f"move what is in it to {settings.data_path / settings.node_id}",
        )


def _node_id(host: str, number: int) -> str:
    return f"{host}-{number + 1}" if number else host


def _shifted(peer: Peer, number: int) -> Peer:
    return Peer(_node_id(peer.node_id, number), peer.host, peer.port + number)


class HostNode:
    """A node of a host: its process, and how often it was started again.

    Args:
        node_id: Id of the node.
        command: Command that runs it.
        environment: Environment of the process.

    Attributes:
        http_port: Port on loopback where it tells of itself; None while it is not up.
        restarts: How often it was started again.
    """

    def __init__(self, node_id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.http_port: int | None = None
        self.restarts = 0
        self._process = NodeProcess(node_id, command, environment, None)

    @property
    def pid(self) -> int | None:
        """The process; None while the node is not up."""
        return None if self.http_port is None else self._process.pid

    @property
    def ready(self) -> dict[str, Any]:
        """What the node said when it was up last."""
        return self._process.ready

    async def run_once(self, came_up: Callable[[], None]) -> str:
        """Run the process to its end. Returns how it ended.

        Args:
            came_up: Called when the node is up.

        Raises:
            OSError: The process cannot be started.
        """
        await self._process.spawn()
        printing = asyncio.ensure_future(self._print_log())
        try:
            if await self._process.is_ready():
                self.http_port = self._process.ready["http_port"]
                came_up()
            await self._process.wait_ended()
            await printing
        finally:
            self.http_port = None
            printing.cancel()
        return self._process.obituary()

    async def _print_log(self) -> None:
        """Pass on what the node logs, with its id before each line."""
        async for line in self._process.log_lines():
            sys.stderr.buffer.write(b"%b: %b" % (self.node_id.encode(), line))
            sys.stderr.flush()

    async def stop(self) -> None:
        """End the process: with SIGTERM, and with SIGKILL where it does not listen."""
        await self._process.stop()


class Host:
    """Runs the nodes of a host.

    Args:
        host_id: Id of the host, for the log.
        nodes: Its nodes.
    """

    def __init__(self, host_id: str, nodes: Sequence[HostNode]) -> None:
        self.host_id = host_id
        self.nodes = tuple(nodes)
        self._ups = [asyncio.Event() for _ in self.nodes]
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all nodes, and look after them."""
        pairs = zip(self.nodes, self._ups, strict=True)
        self._tasks = [asyncio.ensure_future(self._keep(node, up)) for node, up in pairs]

    async def wait_up(self) -> None:
        """Wait until every node was up once."""
        await asyncio.gather(*(up.wait() for up in self._ups))

    async def wait_ended(self) -> None:
        """Wait until nobody looks after the nodes any more: after `stop`, or because of an error, which is raised."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """End all nodes, side by side."""
        self._stopping.set()
        while not all(task.done() for task in self._tasks):  # one that was just being started is ended next time
            await asyncio.gather(*(node.stop() for node in self.nodes))
            await asyncio.wait(self._tasks, timeout=_STOP_AGAIN_S)

    async def _keep(self, node: HostNode, up: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S

        def came_up() -> None:
            up.set()
            logger.info("host %s: %s", self.host_id, self.status)

        while True:
            started_s = loop.time()
            try:
                end = await node.run_once(came_up)
            except OSError as error:
                end = f"{node.node_id} cannot be started: {error}"
            if self._stopping.is_set():
                return
            if loop.time() - started_s > _STABLE_S:
                pause_s = _PAUSE_S
            logger.warning("%s; it is started again in %g s", end, pause_s)
            if await self._stops_within(pause_s):
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            node.restarts += 1

    async def _stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    @property
    def status(self) -> str:
        """The nodes of the host in one line."""
        count = sum(node.http_port is not None for node in self.nodes)
        down = [node.node_id for node in self.nodes if node.http_port is None]
        missing = f", without {', '.join(down)}" if down else ""
        return f"{count} of {len(self.nodes)} nodes are up{missing}"
