"""When coordinators are ticked, and what they are told of the streams."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.groups.host.finding import groups_stream
from liftpy_server.groups.host.shapes import StreamShapes
from liftpy_server.groups.host.tick_timer import TickTimer
from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo
from liftpy_server.settings.groups import GroupsConfig
from support.server_kit import SetClock

NEVER = float("inf")


@pytest.fixture
async def pulse():
    clock, ticks = SetClock(), []
    pulse = TickTimer(clock.monotonic, ticks.append)
    yield pulse, clock, ticks
    pulse.end()


async def test_it_ticks_when_something_is_due(pulse):
    pulse, clock, ticks = pulse
    pulse.expect(clock.seconds + 0.02, is_needed=False)
    pulse.expect(clock.seconds + 0.5, is_needed=False)  # later: changes nothing
    async with asyncio.timeout(30):
        while not ticks:
            await asyncio.sleep(0.005)
    assert ticks == [0.0]


async def test_something_nearer_comes_first(pulse):
    pulse, clock, ticks = pulse
    pulse.expect(clock.seconds + 60, is_needed=False)
    pulse.expect(clock.seconds, is_needed=False)
    async with asyncio.timeout(10):
        while not ticks:
            await asyncio.sleep(0.005)


async def test_lateness_is_told(pulse):
    pulse, clock, ticks = pulse
    pulse.expect(clock.seconds + 0.01, is_needed=False)
    clock.advance(3.01)
    async with asyncio.timeout(30):
        while not ticks:
            await asyncio.sleep(0.005)
    assert ticks == [pytest.approx(3.0)]


async def test_it_runs_only_while_there_is_something_to_wait_for(pulse):
    pulse, _clock, _ticks = pulse
    pulse.expect(NEVER, is_needed=False)
    assert pulse._timer is None
    pulse.expect(NEVER, is_needed=True)
    assert pulse._timer is not None
    pulse.end()
    assert pulse._timer is None


def stream(name, count, uuid=b"u" * 16):
    config = StreamConfig(name=name, subject=name, partitions=count)
    places = tuple(PartitionInfo(replicas=("a", "b"), isr=("a",), leader="a", leader_epoch=1) for _ in range(count))
    return StreamInfo(uuid=uuid.hex(), config=config, created_ns=0, partitions=places)


def node(name, rack=None):
    return NodeInfo(node_id=name, incarnation=1, pull_host="h", pull_port=1, rack=rack)


def test_shapes_tell_which_partitions_were_restored():
    whole = stream("s", 2)
    first = replace(whole.partitions[0], local_start=70, restored_ns=5, restored_epoch=10_007)
    state = MetadataState(streams={"s": replace(whole, partitions=(first, whole.partitions[1]))})
    assert StreamShapes().of(state).streams["s"].recoveries == ((0, (5, 70, 10_007)),)
    assert StreamShapes().of(MetadataState(streams={"s": whole})).streams["s"].recoveries == ()


def test_shapes_are_those_of_the_users_streams():
    groups = StreamInfo(uuid="0" * 32, config=groups_stream(4, 1), created_ns=0)
    streams = {"__consumer_offsets": groups, "orders": stream("orders", 3)}
    told = StreamShapes().of(MetadataState(revision=7, nodes={"a": node("a")}, streams=streams))
    assert told.revision == 7
    assert {name: tuple(shape) for name, shape in told.streams.items()} == {"orders": (b"u" * 16, 3, (), ())}


def test_shapes_follow_streams_and_racks():
    shapes = StreamShapes()
    state = MetadataState(
        revision=1, nodes={"a": node("a"), "b": node("b")}, streams={"s": stream("s", 2), "t": stream("t", 1)}
    )
    before = shapes.of(state).streams
    changed = replace(state, revision=2, streams=state.streams | {"s": stream("s", 2, b"v" * 16)})
    after = shapes.of(changed).streams
    assert after["s"].uuid == b"v" * 16
    assert after["t"] is before["t"], "what did not change was made again"
    racks = replace(changed, nodes={"a": node("a", "r1"), "b": node("b")})
    assert shapes.of(racks).streams["t"].racks == (frozenset({"r1"}),)


@pytest.mark.parametrize(
    ("name", "value"), [("partitions", 0), ("partitions", 1_025), ("retention_s", 59), ("retention_s", float("nan"))]
)
def test_settings_are_checked(name, value):
    with pytest.raises(ConfigError, match=rf"groups\.{name}"):
        GroupsConfig(**{name: value})
