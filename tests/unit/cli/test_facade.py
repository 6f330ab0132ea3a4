"""`import liftpy` offers what its users need, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import liftpy
import liftpy_client.errors
from liftpy_envelope.errors import LiftError

INTERNAL = {"NobodyListensError"}


def test_every_name_is_there():
    assert sorted(liftpy.__all__) == sorted(set(liftpy.__all__))
    assert all(hasattr(liftpy, name) for name in liftpy.__all__)


def test_every_error_of_the_client_can_be_named():
    assert set(liftpy_client.errors.__all__) - INTERNAL <= set(liftpy.__all__)
    for name in liftpy_client.errors.__all__:
        assert issubclass(getattr(liftpy_client.errors, name), LiftError)


def test_the_client_needs_no_server():
    """Neither the server's packages nor the command line's are loaded by whoever only consumes."""
    heavy = {"liftpy_server", "liftpy_log", "uvloop", "typer", "rich", "prometheus_client"}
    script = "import sys, liftpy; print(*{module.partition('.')[0] for module in sys.modules})"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert heavy & set(found.stdout.split()) == set()
