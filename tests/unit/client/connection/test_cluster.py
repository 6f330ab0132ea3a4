"""Where things are: asked seldom, however many wait for it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from nats.errors import NoRespondersError

from liftpy_client.connection.cluster import Cluster, NobodyAnswersError, StreamPlace
from liftpy_client.consumer.consumer import ConsumeOptions
from liftpy_client.consumer.replica_choice import ReplicaChoice
from liftpy_client.errors import NodeUnavailableError, NoStreamError, UsageError
from liftpy_envelope.stream_config import StreamConfig


class Nats:
    """Answers metadata requests about streams `s0` to `s9`."""

    is_connected = True
    max_payload = 2**20

    def __init__(self):
        self.asked = []
        self.under_way = 0
        self.under_way_max = 0
        self.garbage = False
        self.unheard = 0

    async def request(self, _subject, data, timeout):
        if self.unheard:
            self.unheard -= 1
            raise NoRespondersError
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await asyncio.sleep(0.02)
        self.under_way -= 1
        names = json.loads(data)["streams"]
        self.asked.append(names)
        streams = [stream(name) for name in names if name.startswith("s")]
        node = {"node_id": "n1", "pull_host": "h", "pull_port": 1, "pull_tls": False, "pull_token": "t", "rack": "r"}
        answer = {"nodes": [node], "streams": streams}
        return SimpleNamespace(data=b"?" if self.garbage else json.dumps(answer).encode())


def stream(name):
    partition = {"partition": 0, "leader": "n1", "leader_epoch": 1, "isr": ["n1", "n2"], "observers": ["n3"]}
    config = StreamConfig(name=name, subject=name).to_plain()
    return {"uuid": "00" * 16, "config": config, "partitions": [partition]}


async def test_many_who_wait_share_few_requests():
    nats = Nats()
    cluster = Cluster(nats, 5.0)

    async def wait(name):
        for _ in range(5):
            place = await cluster.latest(name)
            assert place.name == name

    await asyncio.gather(*(wait(f"s{number % 10}") for number in range(200)))
    assert len(nats.asked) <= 7
    assert nats.under_way_max == 1
    assert place_of(cluster).replicas_to_read(0) == ("n1", "n2", "n3")
    assert cluster.node("n1").rack == "r"


def place_of(cluster):
    return cluster._streams["s0"]


async def test_who_has_time_asks_again():
    nats = Nats()
    cluster = Cluster(nats, 5.0)
    nats.garbage = True
    asking = asyncio.ensure_future(cluster.confirmed("s1", 10.0))
    while len(nats.asked) < 3:
        await asyncio.sleep(0.01)
    nats.garbage = False
    assert (await asking).name == "s1"
    nats.garbage = True
    with pytest.raises(NodeUnavailableError):
        await cluster.confirmed("s1", 0.0)


async def test_everybody_hears_of_what_went_wrong():
    nats = Nats()
    cluster = Cluster(nats, 5.0)
    with pytest.raises(NoStreamError):
        await cluster.latest("gone")
    nats.garbage = True
    results = await asyncio.gather(*(cluster.latest("s1") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [NodeUnavailableError] * 3
    nats.garbage = False
    assert (await cluster.latest("s1")).name == "s1"


def choice(racks, **options):
    cluster = SimpleNamespace(node=lambda name: SimpleNamespace(rack=racks[name]) if name in racks else None)
    return ReplicaChoice(cluster, ConsumeOptions(**options))


def three(leader="a"):
    return StreamPlace(bytes(16), StreamConfig(name="s", subject="s"), (leader,), (("a", "b", "c"),))


RACKS = {"a": "r1", "b": "r2", "c": "r2"}


async def test_the_leader_is_read_unless_one_asks_for_others():
    assert choice(RACKS).node(three(), 0) == "a"


async def test_replicas_of_the_rack_are_read_and_the_leader_where_there_is_none():
    near = choice(RACKS, read_from="nearest", rack="r2")
    assert near.node(three(), 0) in {"b", "c"}
    assert choice(RACKS, read_from="nearest", rack="r9").node(three(), 0) == "a"
    assert near.node(three(None), 0) is None
    near.avoid(0, "b")
    assert near.node(three(), 0) == "c"
    near.avoid(0, "c")
    assert near.node(three(), 0) == "a"


async def test_consumers_spread_over_all_replicas():
    assert {choice(RACKS, read_from="nearest").node(three(), 0) for _ in range(100)} == {"a", "b", "c"}


async def test_a_silent_replica_is_left_for_the_leader():
    near = choice(RACKS, read_from="nearest", rack="r2")
    near.avoid(0, "c")
    assert not near.is_elsewhere(three(), 0, "b", 0.5)
    assert near.is_elsewhere(three(), 0, "b", 1.5)
    assert near.node(three(), 0) == "a"
    assert not near.is_elsewhere(three(), 0, "a", 60)
    assert not choice(RACKS).is_elsewhere(three(None), 0, "a", 60)
    assert choice(RACKS).is_elsewhere(three("b"), 0, "a", 1.5)


@pytest.mark.parametrize("options", [{"read_from": "far"}, {"rack": "r1"}])
def test_senseless_options(options):
    with pytest.raises(UsageError, match=r"read_from|rack"):
        ConsumeOptions(**options)


@pytest.mark.parametrize("known", [False, True])
async def test_a_moment_in_which_no_node_listens_is_waited_for(known):
    nats = Nats()
    cluster = Cluster(nats, 30.0)
    if known:
        await cluster.refresh(["s1"])
    nats.unheard = 5
    assert (await cluster.stream("s0")).name == "s0"


async def test_where_no_node_listens_it_is_said_after_the_time_of_a_request():
    nats = Nats()
    cluster = Cluster(nats, 0.3)
    await cluster.refresh(["s1"])
    nats.unheard = 1_000
    with pytest.raises(NodeUnavailableError, match="no liftpy node answers"):
        await cluster.stream("s0")
    assert 900 < nats.unheard < 999


async def test_nodes_that_answered_before_are_waited_for_by_who_has_time():
    """Nodes whose connections are set up again are there, although NATS knows of none for longer than a request."""
    nats = Nats()
    cluster = Cluster(nats, 0.3)
    await cluster.refresh(["s1"])
    nats.unheard = 8
    assert (await cluster.confirmed("s0", 20.0)).name == "s0"
    nats.unheard = 1_000
    with pytest.raises(NodeUnavailableError, match="no liftpy node answers") as told:
        await cluster.confirmed("s0", 0.5)
    assert not isinstance(told.value, NobodyAnswersError), "a consumer that begins would not wait either"


async def test_where_no_node_ever_listened_it_is_said_soon(monkeypatch):
    monkeypatch.setattr("liftpy_client.connection.cluster._STRANGER_PATIENCE_S", 0.2)
    nats = Nats()
    nats.unheard = 1_000
    async with asyncio.timeout(20):
        with pytest.raises(NodeUnavailableError, match="no liftpy node answers"):
            await Cluster(nats, 60.0).stream("s0")
    assert 0 < nats.unheard < 1_000
