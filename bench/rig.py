"""The servers that are compared, and the processes that load them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.wire import request
from liftpy.cli.dev.nats_server import NatsServer, shipped_config

__all__ = ["ROOT", "Rig", "finish", "resident", "run_client", "run_load", "spawn", "start_load", "wait_for_count"]

ROOT = Path(__file__).parents[1]


def spawn(module, name, arguments):
    command = [sys.executable, "-m", f"bench.{module}", name, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)


def finish(process, timeout_s=180):
    output, _ = process.communicate(timeout=timeout_s)
    if process.returncode:
        raise RuntimeError(f"{process.args[3:]} failed")
    return json.loads(output.strip().splitlines()[-1])


def run_load(name, **arguments):
    """Run a load generator to its end; its figures."""
    return finish(spawn("load", name, arguments))


def run_client(name, **arguments):
    """Run a client library's loop to its end; its figures."""
    return finish(spawn("clients", name, arguments))


@contextmanager
def start_load(name, **arguments):
    """A load process that is ready; ended on leaving. Calling what this yields waits for its figures."""
    process = spawn("load", name, arguments)
    try:
        assert json.loads(process.stdout.readline())["ready"]
        yield lambda: finish(process)
    finally:
        process.kill()
        process.wait()


def resident(pid):
    """(now, peak) resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(status.split(f"{name}:")[1].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


class JetStream:
    """A nats-server with JetStream."""

    def __init__(self, home, sync_always):
        self.home = home
        home.mkdir()
        sync = "sync_interval: always\n" if sync_always else ""
        config = home / "nats.conf"
        config.write_text(f'max_pending: 1GB\njetstream {{\nstore_dir: "{home / "store"}"\n{sync}}}\n')
        self.server = NatsServer(0, config, home / "log")
        self.server.start()

    @property
    def port(self):
        return self.server.port

    def create(self, name, subjects, **more):
        body = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": 1, "retention": "limits"}
        body |= {"max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "discard": "old"} | more
        answer = request(self.port, f"$JS.API.STREAM.CREATE.{name}", body)
        assert "error" not in answer, answer

    def count(self, name):
        return request(self.port, f"$JS.API.STREAM.INFO.{name}", None)["state"]["messages"]

    def delete(self, name):
        request(self.port, f"$JS.API.STREAM.DELETE.{name}", None)


class Liftpy:
    """A nats-server as liftpy ships it, and a node; `environment` is for the node."""

    def __init__(self, home, environment=None):
        home.mkdir()
        self._environment = os.environ | {"LIFTPY_GROUPS_CLIENT_BYTES_MAX": str(10**9)} | (environment or {})
        self.server = NatsServer(0, shipped_config(), home / "nats.log")
        self.server.start()
        self._home = home
        self.start_node()

    def start_node(self):
        command = [sys.executable, "-m", "liftpy", "-s", self.server.url, "server"]
        command += ["--data-dir", str(self._home / "data"), "--pull-port", "0", "--json"]
        with (self._home / "node.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        json.loads(self.process.stdout.readline())

    @property
    def port(self):
        return self.server.port

    @property
    def url(self):
        return self.server.url

    @property
    def pid(self):
        return self.process.pid

    def create(self, name, subject, **settings):
        answer = request(self.port, "LIFT.API.STREAM.CREATE", {"name": name, "subject": subject} | settings)
        assert "error" not in answer, answer

    def info(self, name):
        return request(self.port, "LIFT.API.STREAM.INFO", {"name": name})["stream"]

    def count(self, name):
        return self.info(name)["messages"]

    def delete(self, name):
        request(self.port, "LIFT.API.STREAM.DELETE", {"name": name})

    def stop_node(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def stop(self):
        self.stop_node()
        self.server.stop()


class Rig:
    """liftpy, JetStream as it comes, and JetStream that syncs always; all idle but the one that is measured."""

    def __init__(self, home):
        self._stack = ExitStack()
        self.home = home

    def __enter__(self):
        self.liftpy = Liftpy(self.home / "liftpy")
        self._stack.callback(self.liftpy.stop)
        self.jetstream = JetStream(self.home / "jetstream", sync_always=False)
        self._stack.callback(self.jetstream.server.stop)
        self.jetstream_always = JetStream(self.home / "jetstream-always", sync_always=True)
        self._stack.callback(self.jetstream_always.server.stop)
        self.nats = NatsServer(0, shipped_config(), self.home / "nats.log")
        self.nats.start()
        self._stack.callback(self.nats.stop)
        return self

    def __exit__(self, *exc):
        self._stack.close()


def wait_for_count(count, expected, timeout_s=60.0):
    """Wait until a store has everything, or nothing new for a second. Returns (what it has, when the last came)."""
    last, changed = count(), time.time()
    while last < expected and time.time() - changed < min(timeout_s, 1.5):
        time.sleep(0.05)
        now = count()
        if now != last:
            last, changed = now, time.time()
    return last, changed
