"""`PublishAsync` of nats.go as a load generator, where Go is on the path: its module is fetched when it is built."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

__all__ = ["build_go_publisher"]

_TIMEOUT_S = 180


def build_go_publisher(directory):
    """What publishes with nats.go, and returns acks per second; None, which is said, where it can not be built."""
    if shutil.which("go") is None:
        print("nothing is published with nats.go: there is no go on the path")
        return None
    program = directory / "go-publisher"
    command = ["go", "build", "-o", str(program), "."]
    built = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    if built.returncode:
        print(f"nothing is published with nats.go, which can not be built: {built.stderr.strip()}")
        return None
    return partial(_publish, program)


def _publish(program, port, subject, size, count, window):
    command = [program, *map(str, (port, subject, size, count, window))]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_TIMEOUT_S).stdout)
