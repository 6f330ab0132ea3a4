"""Without the packages of an extra the command says which extra is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = (
    "import sys; sys.modules[{missing!r}] = None; sys.argv = ['liftpy', 'server']; "
    "import liftpy.__main__ as main; main.main()"
)
BUCKET = (
    "import sys; sys.modules['boto3'] = None; sys.argv = ['liftpy', 'tier', 'verify', '--bucket', 's3://bucket']; "
    "import liftpy.__main__ as main; main.main()"
)
CLIENT = (
    "import sys; sys.modules |= dict.fromkeys(('boto3', 'numpy', 'prometheus_client', 'uvloop')); import liftpy.cli.app"
)


def test_a_node_without_a_bucket_needs_nothing_of_the_s3_extra():
    code = "import sys; sys.modules |= dict.fromkeys(('boto3', 'xxhash')); import liftpy_server.node.node"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("missing", ["numpy", "prometheus_client"])
def test_a_node_needs_the_server_extra(missing, tmp_path):
    command = [sys.executable, "-c", SERVER.format(missing=missing)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "pip install 'liftpy[server]'" in ended.stderr


def test_the_bucket_needs_the_s3_extra():
    command = [sys.executable, "-c", BUCKET]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: the bucket needs more packages: pip install 'liftpy[s3]' (boto3)\n"


def test_the_console_needs_the_console_extra():
    program = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['liftpy', 'console']; "
        "import liftpy.__main__ as main; main.main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: the console needs more packages: pip install 'liftpy[console]' (starlette)\n",
    )


def test_a_client_needs_none():
    subprocess.run([sys.executable, "-c", CLIENT], check=True, timeout=60)
