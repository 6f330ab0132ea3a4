"""What the canary's process tells is added up, and a process that ends is started again, ever more slowly."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from liftpy_server.canary import host as host_module
from liftpy_server.canary.host import CanaryHost
from liftpy_server.canary.ledger import WayCounts
from liftpy_server.settings.canary import CanaryConfig
from liftpy_server.settings.config import NodeConfig
from liftpy_server.workers.json_lines import read_line, to_line
from support.cluster import eventually

WELL = {"read": 1, "late": 0, "lost": 0, "doubled": 0}
TOLD = {
    "acked": 1,
    "unacked": 0,
    "ways": {"pull": WELL, "group": WELL},
    "seconds": [["ack", 0.002], ["pull", 0.02], ["group", 0.3]],
}


class Process:
    """A process that says these lines, and ends."""

    def __init__(self, *lines):
        self.written = bytearray()
        self.returncode = None
        self.stdout = asyncio.StreamReader()
        self.stdin = SimpleNamespace(write=self.written.extend, drain=lambda: asyncio.sleep(0), close=self.kill)
        for line in lines:
            self.stdout.feed_data(line)

    def end(self):
        self.stdout.feed_eof()
        return self

    def kill(self):
        self.returncode = 0

    async def wait(self):
        return self.returncode


@pytest.fixture
def waits(monkeypatch):
    """How long the host waits before it starts a process again."""
    found = []

    async def wait(seconds):
        found.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(host_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": wait}))
    return found


@pytest.fixture
async def run(monkeypatch, kit):
    """Run a host with processes that were prepared."""
    hosts = []

    def begin(*processes):
        rest = list(processes)

        async def start(_module):
            if not rest:
                await asyncio.Event().wait()
            return rest.pop(0)

        monkeypatch.setattr(host_module, "start_child", start)
        config = replace(NodeConfig(node_id="n1"), canary=CanaryConfig(stream="canary"))
        host = CanaryHost(config, kit.clock)
        host.start()
        hosts.append(host)
        return host

    yield begin
    for host in hosts:
        await host.stop()


async def test_lines_are_added_up(run, kit):
    process = Process(to_line(TOLD), to_line(TOLD | {"acked": 0, "unacked": 2}))
    host = run(process)
    await eventually(lambda: host.unacked)
    assert (host.acked, host.ways) == (1, {"pull": WayCounts(read=2), "group": WayCounts(read=2)})
    assert [histogram.buckets()[-1][1] for histogram in host.seconds.values()] == [2, 2, 2]
    settings = read_line(bytes(process.written))
    assert (settings["canary"]["stream"], settings["tier"]) == ("canary", None)
    kit.clock.advance(7)
    assert host.silent_s == pytest.approx(7)


async def test_a_process_that_ends_is_started_again_ever_more_slowly(run, waits, caplog):
    problems = [Process(to_line({"problem": f"problem {number}"})).end() for number in range(5)]
    run(*problems, Process(to_line(TOLD)).end(), Process().end())
    await eventually(lambda: len(waits) == 7)
    assert waits == [5, 10, 20, 40, 60, 5, 10]
    assert "canary: stream canary: it ended, and starts again in 5 s: problem 0" in caplog.text


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b'{"acked": 1}\n', to_line(TOLD | {"ways": {"other": WELL}})])
async def test_lines_that_make_no_sense_end_the_process(run, waits, line):
    process = Process(line)
    run(process)
    await eventually(lambda: waits)
    assert process.returncode == 0


async def test_a_loss_is_logged(run, caplog):
    caplog.set_level(logging.ERROR)
    host = run(Process(to_line(TOLD | {"ways": {"pull": WELL | {"lost": 1}, "group": WELL}})))
    await eventually(lambda: host.acked)
    assert "canary: stream canary: acknowledged messages are lost or doubled" in caplog.text
    assert host.ways["pull"].lost == 1
