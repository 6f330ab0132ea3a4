"""Where groups are coordinated, and how their stream comes to be."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from liftpy_envelope.groups import GroupError
from liftpy_server.groups.host import finding
from liftpy_server.groups.host.finding import CoordinatorFinder, groups_stream
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnavailableError
from liftpy_server.metadata.state import MetadataState, NodeInfo, PartitionInfo, StreamInfo
from liftpy_server.settings.groups import GroupsConfig


def node(name, **more):
    return NodeInfo(**{"node_id": name, "incarnation": 1, "pull_host": f"{name}.test", "pull_port": 4_270} | more)


class Metadata:
    """Metadata that do what is proposed, after a while."""

    def __init__(self, *names, voters=None):
        self.state = MetadataState(nodes={name: node(name) for name in names})
        self.voters = list(voters or names)
        self.learners = []
        self.proposed = []
        self.error = None

    async def read(self):
        await asyncio.sleep(0.001)
        if isinstance(self.error, MetadataUnavailableError):
            raise self.error
        return self.state

    async def watch(self):
        yield self.state
        await asyncio.sleep(60)

    async def propose(self, op, *, uuid, config, assignment):
        await asyncio.sleep(0.001)
        self.proposed.append((op, config, assignment))
        self.create(uuid, config, assignment)
        if self.error is not None:
            raise self.error
        return {"uuid": uuid, "created": True}

    def create(self, uuid, config, assignment):
        config = groups_stream(config["partitions"], config["replicas"])
        places = tuple(
            PartitionInfo(replicas=tuple(nodes), isr=tuple(nodes), leader=nodes[0], leader_epoch=1)
            for nodes in assignment
        )
        info = StreamInfo(uuid=uuid, config=config, created_ns=0, partitions=places)
        self.state = SimpleNamespace(nodes=self.state.nodes, streams={GROUPS_STREAM: info})


async def find(metadata, *groups):
    return (await CoordinatorFinder(GroupsConfig(), metadata).find(groups)).coordinators


async def test_it_is_created_once_with_three_replicas():
    metadata = Metadata("a", "b", "c", "d")
    finder = CoordinatorFinder(GroupsConfig(partitions=8), metadata)
    found = await asyncio.gather(*(finder.find(("g",)) for _ in range(10)))
    ((op, config, assignment),) = metadata.proposed
    assert (op, config["replicas"], config["compact"], config["subject"]) == ("create_stream", 3, True, "")
    assert (len(assignment), {len(nodes) for nodes in assignment}) == (8, {3})
    assert len({each.coordinators for each in found}) == 1
    (one,) = found[0].coordinators
    leader = metadata.state.streams[GROUPS_STREAM].partitions[partition_of_group("g", 8)].leader
    assert (one.error, one.node_id, one.host, one.port) == (GroupError.NONE, leader, f"{leader}.test", 4_270)


async def test_it_has_as_many_replicas_as_there_are_nodes(monkeypatch):
    monkeypatch.setattr(finding, "CREATE_WAIT_S", 0.01)
    metadata = Metadata("a", "b", voters="abc")
    await find(metadata, "g")
    assert metadata.proposed[0][1]["replicas"] == 2


async def test_nodes_that_are_drained_do_not_count():
    metadata = Metadata("a", "b", "c")
    metadata.state.nodes["c"] = node("c", draining=True)
    await find(metadata, "g")
    ((_, config, assignment),) = metadata.proposed
    assert config["replicas"] == 2
    assert "c" not in {name for nodes in assignment for name in nodes}


async def test_another_node_was_quicker():
    metadata = Metadata("a")
    metadata.error = MetadataRefusedError(ErrorCode.STREAM_EXISTS, "it exists with another replicas")
    (found,) = await find(metadata, "g")
    assert (found.error, found.node_id) == (GroupError.NONE, "a")


async def test_without_a_leader_of_the_metadata_nothing_is_created():
    metadata = Metadata("a")
    metadata.error = MetadataUnavailableError("there is no leader")
    found = await find(metadata, "g", "h")
    assert [(each.group, each.error) for each in found] == [(name, GroupError.NOT_AVAILABLE) for name in "gh"]
    assert "there is no leader" in found[0].message
    metadata.error = None
    assert (await find(metadata, "g"))[0].error is GroupError.NONE


async def test_a_partition_without_a_leader_is_said_to_have_none():
    metadata = Metadata("a")
    await find(metadata, "g")
    info = metadata.state.streams[GROUPS_STREAM]
    lost = PartitionInfo(replicas=("a",), isr=("a",), leader=None, leader_epoch=2)
    metadata.state.streams[GROUPS_STREAM] = StreamInfo(
        uuid=info.uuid, config=info.config, created_ns=0, partitions=(lost,) * 16
    )
    (found,) = await find(metadata, "g")
    assert (found.error, found.node_id) == (GroupError.NOT_AVAILABLE, "")


async def test_a_creation_that_is_given_up_does_not_stay():
    finder = CoordinatorFinder(GroupsConfig(), Metadata("a"))
    asking = asyncio.ensure_future(finder.find(("g",)))
    await asyncio.sleep(0)
    await finder.stop()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.done()
