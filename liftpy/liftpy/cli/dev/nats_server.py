"""A nats-server of our own, for `liftpy dev`, the demo and tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

from liftpy.cli.child_processes import die_with_parent
from liftpy_envelope.errors import LiftError

__all__ = ["NatsServer", "NatsServerError", "PortTakenError", "find_binary", "shipped_config"]

_START_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.02


class NatsServerError(LiftError):
    """The nats-server cannot be found or started."""


class PortTakenError(NatsServerError):
    """Someone else has the port."""


def find_binary() -> Path:
    """The nats-server binary: the one installed with this Python, else the one on the path.

    Raises:
        NatsServerError: there is none.
    """
    scripts = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = scripts if scripts.is_file() else shutil.which("nats-server")
    if not found:
        raise NatsServerError("no nats-server found: pip install 'liftpy[local]' brings one")
    return Path(found)


def shipped_config() -> Path:
    """The `nats.conf` that comes with liftpy."""
    installed = Path(__file__).parents[2] / "nats.conf"
    return installed if installed.is_file() else Path(__file__).parents[4] / "nats.conf"


class NatsServer:
    """A running nats-server.

    Args:
        port: Port to listen on; 0 takes a free one.
        config: Path of its configuration file.
        log: File for its output.
    """

    def __init__(self, port: int, config: Path, log: Path) -> None:
        self.port = port or _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._command = [str(find_binary()), "-c", str(config), "-a", "127.0.0.1", "-p", str(self.port)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it takes connections.

        Raises:
            PortTakenError: someone else has the port.
            NatsServerError: it does not come up.
        """
        self._spawn()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_up(deadline):
            time.sleep(_LOOK_S)

    async def start_again(self) -> None:
        """Start it once more, without holding the event loop up; otherwise as `start`."""
        self._spawn()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_up(deadline):  # noqa: ASYNC110 - a process comes up without an event
            await asyncio.sleep(_LOOK_S)

    def _spawn(self) -> None:
        self._check_port()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is ours to handle first
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )

    def _is_up(self, deadline: float) -> bool:
        """Whether it takes connections.

        Raises:
            NatsServerError: it has ended, or the time is over.
        """
        assert self._process is not None, "it was spawned"
        if self._process.poll() is not None:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise NatsServerError(f"nats-server ended at once: {' '.join(tail)} (see {self._log})")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                return True
        if time.monotonic() >= deadline:
            self.stop()
            raise NatsServerError(f"nats-server did not come up within {_START_TIMEOUT_S:g} s (see {self._log})")
        return False

    def _check_port(self) -> None:
        """A server of someone else on our port would look as if it were ours."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                raise PortTakenError(f"port {self.port} cannot be used: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None, "start the server first"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def obituary(self) -> str | None:
        """What became of the process; None while it runs."""
        if self._process is None or self.is_running:
            return None
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"nats-server (pid {self.pid}) {how} (see {self._log})"

    def stop(self) -> None:
        """Stop it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
