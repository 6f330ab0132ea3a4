"""Three nats-servers in a cluster of their own, JetStream on all of them, and three nodes beside them.

Both contestants have the same nats-servers: each node of liftpy is connected to one of them. While one contestant is
measured the other is idle.
"""

from __future__ import annotations

import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

from bench.rig import ROOT
from bench.wire import request
from liftpy.cli.dev.nats_server import NatsServer

NODES = 3
_READY_S = 60.0
_SETTLED_S = 60.0
_APPLIED_S = 10.0
_STOP_S = 60.0
_RETRY_S = 0.05


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(found, timeout_s, what):
    """Ask until there is something."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = found()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_RETRY_S)


class Node:
    """A node of liftpy; `runner` is what Python runs, by default the `liftpy` command."""

    def __init__(self, home, name, url, peers, port, runner=("-m", "liftpy")):
        home.mkdir()
        self.name = name
        self.cluster_port = port
        self._log = home / "node.log"
        settings = home / "liftpy.toml"
        listed = ", ".join(f'"{peer}"' for peer in peers)
        settings.write_text(f'[cluster]\nport = {port}\npeers = [{listed}]\nkey_file = "{home.parent / "key"}"\n')
        command = [sys.executable, *runner, "-s", url, "server", "--config", str(settings)]
        self._command = [*command, "--data-dir", str(home / "data"), "--node-id", name, "--pull-port", "0", "--json"]
        self.process = None

    def spawn(self):
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)

    def wait_ready(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended: {self._log.read_text(errors='replace')[-2_000:]}")
        self.pull_port = json.loads(line)["pull_port"]

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None


class Liftpy:
    """What a workload asks of liftpy; replicas on all nodes."""

    def __init__(self, nodes, servers):
        self.nodes = nodes
        self._servers = servers

    def create(self, name, subject, **settings):
        body = {"name": name, "subject": subject, "replicas": NODES} | settings
        _accepted(lambda: request(self._servers[0].port, "LIFT.API.STREAM.CREATE", body))
        return self.settled(name, 0)

    def info(self, name):
        return request(self._servers[0].port, "LIFT.API.STREAM.INFO", {"name": name}).get("stream")

    def settled(self, name, expected):
        """Wait until every replica has everything, in sync; the number of messages. It must be what is expected."""

        def found():
            info = self.info(name)
            return info if info is not None and all(map(_is_settled, info["partitions"])) else None

        messages = until(found, _SETTLED_S, f"replicas of {name} in sync")["messages"]
        assert messages >= expected, f"{name} has {messages:,} messages, and {expected:,} were acknowledged"
        return messages

    def are_whole(self, streams):
        """Whether there are at least so many streams, all of them led, with all replicas in sync; by the metadata.

        The stream of the events counts, too.
        """
        cluster = request(self._servers[0].port, "LIFT.API.CLUSTER.INFO", {}).get("cluster")
        return (
            cluster is not None
            and cluster["streams"] >= streams
            and not (cluster["under_replicated_count"] or cluster["leaderless_count"])
        )

    def leader(self, name):
        """Which node leads the only partition."""
        return self.info(name)["partitions"][0]["leader"]

    def port(self, name, *, is_beside=True):
        """Of the nats-server that the leader is connected to, or of another."""
        names = [node.name for node in self.nodes]
        return self._servers[(names.index(self.leader(name)) + (not is_beside)) % NODES].port

    def delete(self, name):
        request(self._servers[0].port, "LIFT.API.STREAM.DELETE", {"name": name})


def _accepted(create):
    """Create a stream. Just after the start not everybody knows that all servers are there, so it is tried again."""
    deadline = time.monotonic() + _READY_S
    while "error" in (answer := create()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"a stream with {NODES} replicas is refused: {answer['error']}")
        time.sleep(_RETRY_S)


def _is_settled(partition):
    end = partition["log_end"]
    return (
        partition["leader"] is not None
        and len(partition["isr"]) == NODES
        and partition["high_watermark"] == end
        and all(replica["log_end"] == end for replica in partition["replica_states"])
    )


class JetStream:
    """What a workload asks of JetStream; R3."""

    def __init__(self, servers):
        self._servers = servers

    def _ask(self, endpoint, body=None):
        return request(self._servers[0].port, f"$JS.API.{endpoint}", body)

    def wait_ready(self):
        """Wait until it has elected who places streams."""

        def found():
            try:
                return "error" not in request(self._servers[0].port, "$JS.API.INFO", None, timeout_s=1.0)
            except (ConnectionError, TimeoutError):
                return False

        until(found, _READY_S, "a leader of JetStream")

    def create(self, name, subject, **more):
        body = {"name": name, "subjects": [subject], "storage": "file", "num_replicas": NODES, "retention": "limits"}
        body |= {"max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "discard": "old"} | more
        _accepted(lambda: self._ask(f"STREAM.CREATE.{name}", body))
        return self.settled(name, 0)

    def settled(self, name, expected):
        """Wait until every replica is current; the number of messages, which may be less than what is expected.

        A new leader tells of its state before it has applied all that it holds, so a number too small is asked again.
        """

        def found():
            info = self._ask(f"STREAM.INFO.{name}")
            replicas = info.get("cluster", {}).get("replicas", ())
            is_whole = len(replicas) == NODES - 1 and all(each["current"] and not each.get("lag") for each in replicas)
            return info if is_whole and info["cluster"].get("leader") else None

        deadline = time.monotonic() + _APPLIED_S
        while True:
            messages = until(found, _SETTLED_S, f"replicas of {name} current")["state"]["messages"]
            if messages >= expected or time.monotonic() > deadline:
                return messages
            time.sleep(_RETRY_S)

    def leader(self, name):
        return self._ask(f"STREAM.INFO.{name}")["cluster"]["leader"]

    def port(self, name, *, is_beside=True):
        """Of the nats-server that leads the stream, or of another."""
        number = int(self.leader(name).removeprefix("nats-")) - 1
        return self._servers[(number + (not is_beside)) % NODES].port

    def delete(self, name):
        self._ask(f"STREAM.DELETE.{name}")


class ClusterRig:
    """See the module.

    Args:
        home: where everything is kept; it must not exist.
        sync_always: JetStream syncs before it acknowledges.
        runner: see `Node`.
    """

    def __init__(self, home, *, sync_always=False, runner=("-m", "liftpy")):
        self._home = home
        self._stack = ExitStack()
        self._runner = runner
        self._sync = "sync_interval: always\n" if sync_always else ""

    def __enter__(self):
        self._home.mkdir()
        key = self._home / "key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        with self._stack:  # what was started is stopped when the rest does not start
            self.servers = self._start_servers()
            self.jetstream = JetStream(self.servers)
            self.jetstream.wait_ready()
            self.nodes = self._start_nodes()
            self.liftpy = Liftpy(self.nodes, self.servers)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc):
        self._stack.close()

    def _start_servers(self):
        routes = [free_port() for _ in range(NODES)]
        servers = []
        for number, route in enumerate(routes, 1):
            home = self._home / f"nats-{number}"
            home.mkdir()
            others = ", ".join(f'"nats://127.0.0.1:{other}"' for other in routes if other != route)
            config = home / "nats.conf"
            config.write_text(
                f'server_name: nats-{number}\nmax_pending: 1GB\nwrite_deadline: "30s"\n'
                f'jetstream {{\nstore_dir: "{home / "store"}"\n{self._sync}}}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{others}] }}\n'
            )
            server = NatsServer(0, config, home / "log")
            server.start()
            self._stack.callback(server.stop)
            servers.append(server)
        return servers

    def _start_nodes(self):
        ports = [free_port() for _ in range(NODES)]
        peers = [f"node-{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1)]
        nodes = []
        for number, (server, port) in enumerate(zip(self.servers, ports, strict=True), 1):
            name = f"node-{number}"
            nodes.append(Node(self._home / name, name, server.url, peers, port, self._runner))
        self._stack.callback(_stop_all, nodes)
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.wait_ready()
        return nodes


def _stop_all(nodes):
    """All at once: a majority that is gone makes the last one wait."""
    for node in nodes:
        if node.process is not None:
            node.process.send_signal(signal.SIGTERM)
    for node in nodes:
        if node.process is not None:
            try:
                node.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
            node.process.stdout.close()
            node.process = None
