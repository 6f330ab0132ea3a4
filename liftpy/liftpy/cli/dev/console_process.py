"""The web console as a process beside `liftpy dev`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from liftpy.cli.child_processes import die_with_parent
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ConsoleProcess"]

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.05


class ConsoleProcess:
    """A console on a free port of the loopback interface, whose pages may change things.

    Args:
        nats_url: NATS of the cluster.
        environment: For it.
        log: File for its output.

    Attributes:
        url: Where it is.

    Raises:
        LiftError: It does not start.
        OSError: The file cannot be written.
    """

    def __init__(self, nats_url: str, environment: dict[str, str], log: Path) -> None:
        command = [sys.executable, "-m", "liftpy", "-s", nats_url, "console", "--port", "0", "--allow-changes"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C ends the nodes first
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        until_s = time.monotonic() + _START_TIMEOUT_S
        while (found := re.search(r"http://\S+", log.read_text())) is None:
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.stop()
                said = log.read_text().strip().removeprefix("error: ")
                raise LiftError(said or f"the console did not start within {_START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        self.url = found[0]

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
