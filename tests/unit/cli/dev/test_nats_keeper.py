"""A nats-server that ends is started again, with a program that only seems to be one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from liftpy.cli.dev import nats_keeper, nats_server
from liftpy.cli.dev.nats_keeper import NatsKeeper
from liftpy.cli.dev.nats_server import NatsServer

SERVER = """#!{python}
import pathlib, socket, sys, time
if pathlib.Path(sys.argv[sys.argv.index("-c") + 1]).exists():
    sys.exit("wrong settings")
with socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1]))):
    time.sleep(60)
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    binary = tmp_path / "nats-server"
    binary.write_text(SERVER.format(python=sys.executable))
    binary.chmod(0o700)
    monkeypatch.setattr(nats_server, "find_binary", lambda: binary)
    monkeypatch.setattr(nats_keeper, "_LOOK_S", 0.01)
    server = NatsServer(0, tmp_path / "nats.conf", tmp_path / "log")
    server.start()
    yield server
    server.stop()


async def test_it_is_started_again_and_said_so(server, tmp_path):
    said = asyncio.Queue()
    keeper = NatsKeeper(server, said.put_nowait)
    keeping = asyncio.ensure_future(keeper.run())
    try:
        async with asyncio.timeout(50):
            first = server.pid
            os.kill(first, signal.SIGKILL)
            told = await said.get()
            assert f"nats-server (pid {first}) was ended by signal 9" in told
            assert f"started again with pid {server.pid}" in told
            assert server.is_running
            assert server.pid != first
            (tmp_path / "nats.conf").touch()
            os.kill(server.pid, signal.SIGKILL)
            assert "it does not start again: nats-server ended at once: wrong settings" in await said.get()
            (tmp_path / "nats.conf").unlink()
            while "started again" not in await said.get():
                pass
            assert server.is_running
            assert len(keeper.notes) == 3
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
