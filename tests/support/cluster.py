"""A real nats-server and a real node in a process of its own, for integration tests. Random ports, loopback only."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import liftpy
from liftpy.cli.dev.nats_server import NatsServer, shipped_config
from support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NatsServer", "NodeProcess", "eventually", "make_nats", "quick_options"]

READY_S = 120.0  # on a machine that is busy
REFUSED_WITHIN_S = 60.0
REFUSALS_MAX = 5


def make_nats(home: Path, *, config: str | None = None, port: int = 0) -> NatsServer:
    """A started nats-server; `config` replaces the shipped configuration."""
    home.mkdir(parents=True, exist_ok=True)
    path = shipped_config()
    if config is not None:
        path = home / "nats.conf"
        path.write_text(config)
    # A port of our own choice: no outgoing connection gets it while the server is away.
    server = NatsServer(port or free_port(), path, home / "nats-server.log")
    server.start()
    return server


class NodeProcess:
    """A node started with the `liftpy server` command."""

    def __init__(self, url: str, home: Path, *arguments: str, toml: str | None = None, environment=None):
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.data = home / "data"
        command = [sys.executable, "-m", "liftpy", "-s", url, "server"]
        if toml is not None:
            path = home / "liftpy.toml"
            path.write_text(toml)
            command += ["--config", str(path)]
        self.command = [*command, "--data-dir", str(self.data), "--pull-port", "0", "--json", *arguments]
        self.environment = os.environ | (environment or {})
        self.log_path = home / "node.log"
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict = {}

    def spawn(self) -> None:
        """Start it without waiting."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )

    def wait_ready(self) -> dict:
        """Wait until it is up; what it says of itself."""
        if not select.select([self.process.stdout], [], [], READY_S)[0]:
            raise AssertionError(f"the node did not come up within {READY_S:g} s:\n{self.log()}")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the node ended with {self.process.wait()}:\n{self.log()}")
        self.ready = json.loads(line)
        return self.ready

    def start(self) -> NodeProcess:
        """Start it, and wait until it is up."""
        self.spawn()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def refused(self) -> str:
        """Start it, and wait until it ends since its bucket is not to be used; what it said.

        A node does not wait long for a bucket, and goes on without it. A busy machine may be too slow for that: then it
        is started again.
        """
        for _ in range(REFUSALS_MAX):
            before, until = len(self.log()), time.monotonic() + REFUSED_WITHIN_S
            self.spawn()
            while self.is_running and "it is asked on" not in self.log()[before:]:
                assert time.monotonic() < until, f"the node goes on:\n{self.log()}"
                time.sleep(0.1)
            code = self.process.poll()
            self.stop()
            said = self.log()[before:]
            if code is not None:
                assert code == 1, said
                assert "Traceback" not in said
                return said
        raise AssertionError(f"the bucket does not answer in time:\n{self.log()}")

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """What it logged so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def pull_port(self) -> int:
        return self.ready["pull_port"]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        if self.process is None:
            return 0
        try:
            code = self.process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the node did not stop:\n{self.log()}") from None
        finally:
            self.process.stdout.close()
        self.process = None
        return code

    def restart(self) -> NodeProcess:
        """SIGKILL and start again."""
        self.kill()
        return self.start()


async def eventually(condition, timeout_s: float = 30.0, message: str = ""):
    """Wait until an (async) condition gives something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(message or f"not within {timeout_s:g} s: {condition}")
        await asyncio.sleep(0.02)


def quick_options(**more) -> liftpy.ConsumeOptions:
    """Consumer options that do not wait long."""
    return liftpy.ConsumeOptions(**({"wait_ms": 200} | more))
