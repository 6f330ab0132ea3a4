"""A cluster of real nodes, each a process of its own, and what may befall it. Loopback only."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import liftpy
from liftpy.cli.dev.nats_server import shipped_config
from liftpy_client.errors import LiftError
from support.cluster import NatsServer, NodeProcess, eventually
from support.link_proxy import LinkProxy
from support.ports import free_port
from support.socket_owner import has_socket, inodes_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from liftpy_client.admin.details import PartitionDetails

NODE_HOST = "127.0.1.{}"  # where nodes listen that are reached through the proxy; Linux only
PROXY_HOST = "127.0.2.{}"  # where they are said to be
SETTLED_TIMEOUT_S = 60.0
CLIENT = "client"


class ClusterKit:
    """Nodes `node-1` to `node-N`, which find each other on ports that stay the same over restarts.

    Args:
        home: where everything is kept.
        nodes: how many.
        nats_servers: how many; several form a cluster of their own.
        is_proxied: between the nodes stands a `LinkProxy`.
        cluster: further settings of the table `[cluster]`.
        toml: further tables of the settings.

    Attributes:
        home: as above.
        nodes: the processes, by name.
        links: the proxy, when there is one.
    """

    def __init__(
        self,
        home: Path,
        nodes: int = 3,
        *,
        nats_servers: int = 1,
        is_proxied: bool = False,
        cluster: dict[str, float] | None = None,
        toml: str = "",
    ) -> None:
        self.home = home
        self.nats = _nats_servers(home, nats_servers)
        self.url = ",".join(server.url for server in self.nats)
        self.links = LinkProxy(self._owner) if is_proxied else None
        key_file = home / "cluster.key"
        key_file.write_text(secrets.token_hex(32))
        key_file.chmod(0o600)
        numbers = range(1, nodes + 1)
        self._hosts = {f"node-{n}": NODE_HOST.format(n) if is_proxied else "127.0.0.1" for n in numbers}
        self._told = {f"node-{n}": PROXY_HOST.format(n) if is_proxied else "127.0.0.1" for n in numbers}
        self._ports = {name: (free_port(host), free_port(host)) for name, host in self._hosts.items()}
        peers = [f"{name}@{self._told[name]}:{ports[0]}" for name, ports in self._ports.items()]
        self.nodes = {}
        for name, (cluster_port, pull_port) in self._ports.items():
            table = {
                "host": self._hosts[name],
                "advertise_host": self._told[name],
                "port": cluster_port,
                "peers": peers,
                "key_file": str(key_file),
            }
            settings = _toml("cluster", table | (cluster or {}))
            settings += _toml("pull", {"host": self._hosts[name], "advertise_host": self._told[name]})
            arguments = ("--node-id", name, "--pull-port", str(pull_port))
            self.nodes[name] = NodeProcess(self.url, home / name, *arguments, toml=settings + toml)

    def start(self) -> ClusterKit:
        """Start everything; returns when all nodes are up. When they do not come up, nothing of it stays."""
        try:
            for server in self.nats:
                server.start()
            if self.links is not None:
                self.links.start()
                for name, ports in self._ports.items():
                    for port in ports:
                        self.links.listen(name, (self._told[name], port), (self._hosts[name], port))
            self.start_nodes()
        except BaseException:
            self.close()
            raise
        return self

    def start_nodes(self, names: Iterable[str] | None = None) -> None:
        """Start the nodes that do not run, all at once: a node waits for a majority."""
        starting = [self.nodes[name] for name in names or self.nodes if not self.nodes[name].is_running]
        for node in starting:
            node.kill()  # reaps one that has ended by itself
            node.spawn()
        for node in starting:
            node.wait_ready()

    def kill(self, *names: str) -> float:
        """SIGKILL, all at once; when that was, in monotonic seconds."""
        for name in names:
            if self.nodes[name].is_running:
                self.nodes[name].signal(signal.SIGKILL)
        killed_s = time.monotonic()
        for name in names:
            self.nodes[name].kill()
        return killed_s

    def stop_nodes(self) -> None:
        """Stop all nodes cleanly, all at once."""
        for node in self.nodes.values():
            if node.is_running:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
        codes = {name: node._reap() for name, node in self.nodes.items()}  # a second SIGTERM would end it at once
        assert set(codes.values()) == {0}, f"nodes ended with {codes}"

    def close(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        self.kill(*self.nodes)
        if self.links is not None and self.links.is_running:
            self.links.stop()
        for server in self.nats:
            server.stop()

    @property
    def logs(self) -> dict[str, Path]:
        """The nodes' log files."""
        return {name: node.log_path for name, node in self.nodes.items()}

    @property
    def running(self) -> list[str]:
        """The nodes whose processes are there."""
        return [name for name, node in self.nodes.items() if node.is_running]

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[liftpy.Lift]:
        """A client."""
        async with liftpy.connect(self.url, **({"timeout_s": 5.0} | options)) as lift:
            yield lift

    async def pause(self, names: Iterable[str], seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        stopped = [self.nodes[name] for name in names if self.nodes[name].is_running]
        for node in stopped:
            node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for node in stopped:
                node.signal(signal.SIGCONT)

    def cut_off(self, name: str, *, hears: bool = False, is_heard: bool = False) -> None:
        """Cut a node off from the other nodes, in one direction or in both; consumers still reach it."""
        assert self.links is not None
        for other in set(self.nodes) - {name}:
            if not is_heard:
                self.links.cut(name, other)
            if not hears:
                self.links.cut(other, name)

    def _owner(self, port: int) -> str:
        inodes = inodes_of(port)
        for name, node in self.nodes.items():
            process = node.process  # another thread may just be reaping it
            if process is not None and has_socket(process.pid, inodes):
                return name
        return CLIENT


def _toml(name: str, table: dict[str, Any]) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in table.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _nats_servers(home: Path, count: int) -> list[NatsServer]:
    ports = [free_port() for _ in range(count)]
    routes = [free_port() for _ in range(count)]
    servers = []
    for number, port in enumerate(ports):
        folder = home / f"nats-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nats.conf"
        others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes if route != routes[number])
        text = shipped_config().read_text()
        if count > 1:
            text += f'\ncluster {{ name: chaos, listen: "127.0.0.1:{routes[number]}", routes: [{others}] }}\n'
        config.write_text(text)
        servers.append(NatsServer(port, config, folder / "nats-server.log"))
    return servers


@asynccontextmanager
async def running_cluster(home: Path, nodes: int = 3, **options: Any) -> AsyncIterator[ClusterKit]:
    """A cluster that is up, and gone afterwards."""
    if options.get("is_proxied") and sys.platform != "linux":
        pytest.skip("the proxy needs several loopback addresses, and Linux has them")
    kit = ClusterKit(home, nodes, **options)
    try:
        await asyncio.to_thread(kit.start)
        yield kit
    finally:
        await asyncio.to_thread(kit.close)


async def create(lift: liftpy.Lift, name: str, subject: str, **settings: Any) -> None:
    """Create a stream; asked again while its leaders do not listen yet, as on a machine that is busy."""

    async def ask() -> bool:
        try:
            await lift.create_stream(name, subject=subject, **({"replicas": 3, "min_isr": 2} | settings))
        except LiftError:
            return False
        return True

    await eventually(ask, 60.0, f"{name} can not be created")


async def partitions(lift: liftpy.Lift, stream: str) -> tuple[PartitionDetails, ...]:
    """The partitions of a stream; asked again until somebody answers."""

    async def ask() -> tuple[PartitionDetails, ...] | None:
        try:
            return (await lift.stream_info(stream)).partitions
        except LiftError:
            return None

    return await eventually(ask, 40.0, f"nobody tells of {stream}")


async def leader_of(lift: liftpy.Lift, stream: str, partition: int = 0) -> str:
    """Who leads a partition; waits until somebody does."""

    async def ask() -> str | None:
        return (await partitions(lift, stream))[partition].leader

    return await eventually(ask, 40.0, f"{stream} has no leader")


async def metadata_leader(lift: liftpy.Lift) -> str:
    """Who leads the metadata; waits until somebody does."""

    async def ask() -> str | None:
        try:
            return (await lift.cluster_info()).metadata_leader
        except LiftError:
            return None

    return await eventually(ask, 40.0, "the metadata has no leader")


async def settled(lift: liftpy.Lift, streams: Iterable[str], timeout_s: float = SETTLED_TIMEOUT_S) -> None:
    """Wait until every replica is in sync and has all there is, and everything is committed."""
    deadline = time.monotonic() + timeout_s
    for stream in streams:
        unsettled: list[Any] = []
        while True:
            unsettled = [each for each in await partitions(lift, stream) if not _is_settled(each)]
            if not unsettled:
                break
            assert time.monotonic() < deadline, f"{stream} does not settle within {timeout_s:g} s: {unsettled}"
            await asyncio.sleep(0.1)


def _is_settled(partition: PartitionDetails) -> bool:
    return (
        partition.leader is not None
        and partition.log_end is not None
        and set(partition.isr) == set(partition.replicas)
        and partition.high_watermark == partition.log_end
        and all(replica.log_end == partition.log_end for replica in partition.replica_states)
        # A leader that began a moment ago has heard of nobody.
        and {replica.node for replica in partition.replica_states} | {partition.leader} >= set(partition.replicas)
    )
