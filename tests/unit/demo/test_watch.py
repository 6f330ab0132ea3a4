"""The demonstration's look at its nodes, some of which do not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy.demo import watch
from liftpy.demo.watch import Watch
from liftpy_client.admin.details import PartitionDetails
from liftpy_client.errors import NodeUnavailableError
from liftpy_envelope.errors import LiftError


class Lift:
    """Answers as it is told; the last answer stands for all that follow."""

    def __init__(self, *answers):
        self._answers = list(answers)

    async def streams(self):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer == "nobody":
            raise NodeUnavailableError("no node answers")
        leader, epoch = answer
        known = dict.fromkeys(("log_start", "high_watermark", "log_end", "bytes", "segments", "offline"))
        part = PartitionDetails(partition=0, leader=leader, leader_epoch=epoch, replicas=("a",), isr=("a",), **known)
        yield SimpleNamespace(name="flights", partitions=(part,))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watch, "_EVERY_S", 0.004)


async def test_waiting_for_a_leader():
    shown = []
    looking = Watch(Lift("nobody", (None, 1), ("b", 2)), shown.append)
    seen = await looking.until("someone leads", lambda streams: streams["flights"].leader is not None)
    assert seen["flights"].leader == "b"
    assert looking.leaders == {("flights", 2): "b"}
    assert [bool(streams) for streams in shown] == [False, True, True]


@pytest.mark.parametrize("answer", ["nobody", (None, 1)])
async def test_waiting_in_vain(monkeypatch, answer):
    monkeypatch.setattr(watch, "_TIMEOUT_S", 0.05)
    with pytest.raises(LiftError, match=r"someone leads: not within 0\.05 s"):
        await Watch(Lift(answer), lambda _: None).until("someone leads", lambda s: s["flights"].leader is not None)


async def test_looking_until_it_is_stopped():
    looking = Watch(Lift("nobody", ("a", 1), ("b", 2)), lambda _: len(looking.leaders) == 2 and looking.stop())
    async with asyncio.timeout(20):
        await looking.run()
    assert looking.leaders == {("flights", 1): "a", ("flights", 2): "b"}
