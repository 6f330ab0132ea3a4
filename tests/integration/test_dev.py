"""`liftpy dev`: one command, a nats-server and a node, and nothing of them stays behind."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import psutil
import pytest

import liftpy
from liftpy.cli.dev.layout import DevLayout
from liftpy.cli.dev.nats_server import NatsServer, NatsServerError, shipped_config
from support.cli import COMMAND, Cli, DevProcess, environment_of, run_process
from support.reading import read_all

SHOWN_S_MAX = 60


async def test_data_survives_and_no_process_stays(tmp_path):
    for number, end in enumerate((signal.SIGTERM, signal.SIGINT)):
        # What the environment says of other servers is not meant for a server of one's own.
        dev = DevProcess(tmp_path / "data", tmp_path, NATS_URL="nats://127.0.0.1:1", NATS_CREDS="gone")
        servers = psutil.Process(dev.process.pid).children(recursive=True)
        assert len(servers) == 1
        async with liftpy.connect(dev.url) as lift:
            await lift.create_stream("orders", subject="orders.>")
            await lift.publish("orders.new", b"%d" % number)
            assert [message.value for message in await read_all(lift, "orders")] == [b"0", b"1"][: number + 1]
        code, said = dev.stop(end)
        assert code == 0
        assert b"Traceback" not in said
        assert not any(server.is_running() for server in servers)


def test_a_killed_dev_takes_its_server_along(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path)
    (server,) = psutil.Process(dev.process.pid).children()
    dev.stop(signal.SIGKILL)
    psutil.wait_procs([server], timeout=60)
    assert not server.is_running()


def test_ports_that_are_taken(tmp_path):
    """Another server on the port must not be mistaken for ours: its messages are none of our business."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cli = Cli(None, tmp_path)
        data = str(tmp_path / "data")
        error = cli.error("dev", "--data-dir", data, "--port", port, "--pull-port", "0")
        assert f"port {port} cannot be used: Address already in use; use --port 0 for a free port" in error
        with pytest.raises(NatsServerError, match="already in use"):
            NatsServer(int(port), shipped_config(), tmp_path / "log").start()
        ended = run_process("dev", "--data-dir", data, "--port", "0", "--pull-port", port, home=tmp_path)
        assert ended.returncode == 1
        assert f"can not listen on 127.0.0.1:{port}".encode() in ended.stderr
        assert b"Traceback" not in ended.stderr


def test_mistakes(tmp_path):
    cli = Cli(None, tmp_path)
    path = tmp_path / "file"
    path.write_text("")
    assert "is not a directory" in cli.error("dev", "--data-dir", str(path), "--port", "0", code=2)
    error = cli.error("-s", "nats://127.0.0.1:1", "dev", "--data-dir", str(tmp_path / "d"), code=2)
    assert "dev runs a nats-server of its own" in error
    path.write_text("no configuration {")
    error = cli.error("dev", "--data-dir", str(tmp_path / "d"), "--port", "0", "--nats-config", str(path))
    assert "nats-server ended at once" in error


def test_several_nodes_come_and_go_together(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path, "--nodes", "3", LIFTPY_CLUSTER_PORT="1", LIFTPY_NODE_ID="x")
    nodes = dev.ready["nodes"]
    assert [node["node_id"] for node in nodes] == ["node-1", "node-2", "node-3"]
    assert len({node[port] for node in nodes for port in ("pull_port", "cluster_port")}) == 6
    started = psutil.Process(dev.process.pid).children(recursive=True)
    assert {node["pid"] for node in nodes} < {process.pid for process in started}
    code, said = dev.stop(signal.SIGINT)
    assert (code, said) == (0, b"")
    assert not any(process.is_running() for process in started)
    again = DevProcess(tmp_path / "data", tmp_path, "--nodes", "3")
    try:
        ports = [[node["cluster_port"] for node in each] for each in (nodes, again.ready["nodes"])]
        assert ports[0] == ports[1]
        started = psutil.Process(again.process.pid).children(recursive=True)
    finally:
        again.stop(signal.SIGKILL)
    psutil.wait_procs(started, timeout=60)
    assert not any(process.is_running() for process in started)


def test_a_nats_server_that_ends_is_told_of_and_started_again(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path)
    cli = Cli(dev.url, tmp_path)
    cli.json("stream", "add", "orders", "--subject", "orders.>")
    (server,) = [child for child in psutil.Process(dev.process.pid).children() if "nats-server" in child.name()]
    server.kill()
    told = next(line for line in dev.process.stderr if b"was ended by signal 9" in line).decode()
    assert f"nats-server (pid {server.pid}) was ended by signal 9" in told
    assert "started again with pid" in told
    deadline = time.monotonic() + 60
    while run_process("-s", dev.url, "publish", "orders.x", "v", home=tmp_path).returncode:
        assert time.monotonic() < deadline  # the node connects again by itself
    assert dev.stop()[0] == 0


def test_a_node_that_ends_is_told_of_and_not_restarted(tmp_path):
    dev = DevProcess(tmp_path / "data", tmp_path, "--nodes", "3")
    pid = dev.ready["nodes"][1]["pid"]
    os.kill(pid, signal.SIGKILL)
    told = dev.process.stderr.readline().decode()
    assert f"node-2 (pid {pid}) was ended by signal 9" in told
    assert f"to start it again: liftpy -s {dev.url} server --" in told
    assert len(psutil.Process(dev.process.pid).children()) == 3
    assert dev.stop()[0] == 0
    assert (tmp_path / "data" / "node-2.log").read_text()


def test_too_few_nodes_of_a_cluster(tmp_path):
    DevLayout.open(tmp_path, 5)
    error = Cli(None, tmp_path).error("dev", "--data-dir", str(tmp_path), "--port", "0", "--nodes", "2", code=2)
    assert "start at least 3 of them" in error


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, home, *arguments):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C arrives
            env=environment_of(home, TERM="xterm"),
        )
        os.close(slave)
        self.shown = ""

    def read_until(self, text):
        deadline = time.monotonic() + SHOWN_S_MAX
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._master], [], [], 0.2)[0]:
                self.shown += os.read(self._master, 65_536).decode(errors="replace")

    def type(self, keys):
        os.write(self._master, keys)

    def wait(self):
        """The exit code; the output is read on, or the process would wait for that."""
        while self.process.poll() is None:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._master, 65_536).decode(errors="replace")
                except OSError:
                    break
        os.close(self._master)
        return self.process.wait(60)


def test_the_live_view(tmp_path):
    terminal = Terminal(tmp_path, "dev", "--data-dir", str(tmp_path / "data"), "--port", "0", "--pull-port", "0")
    try:
        terminal.read_until("liftpy is up")
        terminal.read_until("Msgs/s")
        url = terminal.shown.partition("liftpy -s ")[2].split()[0]
        cli = Cli(url, tmp_path)
        cli.run("stream", "add", "orders", "--subject", "orders.[/].>")
        terminal.read_until("orders.[/].>")
        cli.run("publish", "orders.[/].x", "x", "--count", "1234")
        terminal.read_until("1,234")
        terminal.type(b"\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_the_live_view_of_a_cluster(tmp_path):
    data = tmp_path / "data"
    terminal = Terminal(tmp_path, "dev", "--data-dir", str(data), "--port", "0", "--nodes", "3")
    try:
        terminal.read_until("liftpy is up")
        terminal.read_until("Cluster ")
        pid = int(terminal.shown.partition("node-3: pid ")[2].partition(",")[0])
        os.kill(pid, signal.SIGKILL)
        terminal.read_until(f"node-3 (pid {pid}) was ended by signal 9")
        terminal.read_until("expired")
        terminal.type(b"\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown
    finally:
        terminal.process.terminate()
        terminal.process.wait()


def test_watching_a_node_that_goes_away_says_so_and_goes_on(nats_server, node, tmp_path):
    terminal = Terminal(tmp_path, "-s", nats_server.url, "--timeout", "2s", "status", "--watch")
    try:
        terminal.read_until("Msgs/s")
        node.kill()
        terminal.read_until("no liftpy node answers")
        node.start()
        Cli(nats_server.url, tmp_path).run("stream", "add", "later", "--subject", "later")
        terminal.read_until("later")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown
    finally:
        terminal.process.kill()
        terminal.process.wait()
