"""Without the packages of an extra the command says which extra is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = (
    "import sys; sys.modules[{missing!r}] = None; sys.argv = ['liftpy', 'server']; "
    "import liftpy.__main__ as main; main.main()"
)
CLIENT = "import sys; sys.modules |= dict.fromkeys(('numpy', 'prometheus_client', 'uvloop')); import liftpy.cli.app"


@pytest.mark.parametrize("missing", ["numpy", "prometheus_client"])
def test_a_node_needs_the_server_extra(missing, tmp_path):
    command = [sys.executable, "-c", SERVER.format(missing=missing)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "pip install 'liftpy[server]'" in ended.stderr


def test_a_client_needs_none():
    subprocess.run([sys.executable, "-c", CLIENT], check=True, timeout=60)
