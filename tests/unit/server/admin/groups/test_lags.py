"""How far groups are behind: from what they committed, and from what leaders tell of their partitions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy_envelope.pull import PartitionKey
from liftpy_server.admin.groups import lags
from liftpy_server.admin.groups.lags import GroupLags
from liftpy_server.groups.host.group_host import ToldGroup

UUID = "ab" * 16


def key(number):
    return PartitionKey(bytes.fromhex(UUID), number)


def partition(number, start, end, *, unreachable=False):
    return {"partition": number, "log_start": start, "high_watermark": end, "unreachable": unreachable}


class Kit:
    """A node that coordinates the group `g`, which has committed these offsets and has these partitions."""

    def __init__(self, committed, assigned, *partitions):
        self.asked = 0
        self.partitions = partitions
        self.delay_s = 0.0

        def told(_groups_max):
            offsets = ((key(number), SimpleNamespace(offset=offset)) for number, offset in committed.items())
            yield ToldGroup("g", offsets, [key(number) for number in assigned], 1)

        states = SimpleNamespace(
            streams={"orders": SimpleNamespace(uuid=UUID), "other": SimpleNamespace(uuid="cd" * 16)}
        )
        node = SimpleNamespace(groups=SimpleNamespace(told=told), metadata=SimpleNamespace(state=states))
        self.lags = GroupLags(node, self._show)

    async def _show(self, streams):
        self.asked += 1
        assert [stream.uuid for stream in streams] == [UUID], "nobody asks for streams that no group reads"
        await asyncio.sleep(self.delay_s)
        return [{"uuid": UUID, "partitions": self.partitions}]

    async def read(self):
        return {each.partition: lag for (_, each), lag in (await self.lags.read()).items()}


async def test_what_is_left_to_read():
    """Where nothing is committed a group begins with the first message; what is gone is not left to read."""
    found = (partition(0, 0, 10), partition(1, 5, 9), partition(2, 4, 6), partition(3, 0, 3), partition(4, 0, 8))
    kit = Kit({0: 7, 2: 1, 3: 5}, [0, 1], *found)
    assert await kit.read() == {0: 3, 1: 4, 2: 2, 3: 0}


async def test_a_partition_whose_leader_is_silent_has_no_lag():
    kit = Kit({0: 7, 1: 7, 2: 7}, [], partition(0, 0, 10), partition(1, None, None, unreachable=True))
    assert await kit.read() == {0: 3}


async def test_leaders_are_asked_once_in_some_seconds(monkeypatch):
    kit = Kit({0: 7}, [], partition(0, 0, 10))
    await asyncio.gather(kit.read(), kit.read())
    await kit.read()
    assert kit.asked == 1
    monkeypatch.setattr(lags, "_FRESH_S", 0.0)
    kit.partitions = [partition(0, 0, 20)]
    assert await kit.read() == {0: 13}
    assert kit.asked == 2


async def test_whoever_reads_does_not_wait_for_long(monkeypatch):
    monkeypatch.setattr(lags, "_WAIT_S", 0.01)
    kit = Kit({0: 7}, [], partition(0, 0, 10))
    kit.delay_s = 60.0
    assert await kit.read() == {}
    assert kit.asked == 1
    await kit.lags.stop()
    assert kit.lags._reading.cancelled()


async def test_an_error_is_logged_and_costs_nothing_else(caplog):
    kit = Kit({0: 7}, [], {"partition": 0})
    assert await kit.read() == {}
    assert "the lags of groups can not be told now" in caplog.text


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_partitions_are_bounded(monkeypatch, most):
    monkeypatch.setattr(lags, "GROUP_PARTITIONS_MAX", most)
    kit = Kit({0: 7, 1: 7, 2: 7}, [], *(partition(number, 0, 10) for number in range(3)))
    assert len(await kit.read()) == most
