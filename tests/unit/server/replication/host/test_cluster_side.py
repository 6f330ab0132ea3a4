"""What a node says of its logs when it registers, and when it may forget that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_log.checkpoint import Checkpoint
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.replication.host import cluster_side
from liftpy_server.replication.host.cluster_side import ClusterSide
from liftpy_server.replication.host.durability_record import DurabilityRecord
from liftpy_server.settings.config import NodeConfig
from support.durability_records import proven
from support.metadata_commands import UUIDS, Cluster, config
from support.server_kit import SetClock
from support.simdisk import ROOT, SimDisk

THIS = (UUIDS[0], 0)


class Session:
    """What a node says when it registers, and what is there to be said: it is `a` of three nodes."""

    def __init__(self, partitions=1):
        cluster = Cluster("a", "b", "c", streams=0)
        made = config("s", replicas=3, partitions=partitions)
        cluster.do("create_stream", uuid=UUIDS[0], config=made, assignment=[["a", "b", "c"]] * partitions)
        self.state = cluster.state
        self.said = None
        self.refuses = False

    async def reach(self):
        return self.state

    async def register(self, **said):
        if self.refuses:
            raise MetadataRefusedError(1, "told to")
        self.said = said


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_directory(ROOT)
    proven(disk, ROOT)
    return disk


def standing_on(disk):
    return DurabilityRecord(disk, ROOT / "standing.json", "boot")


def side_of(session):
    metadata = SimpleNamespace(port=0, propose_many=None, unheard_s=lambda: 0.0)
    side = ClusterSide(NodeConfig(node_id="a"), metadata, {}, SetClock(), None, None, None)
    side.sessions = session
    return side


def segment_of(disk, number):
    directory = ROOT / "streams" / f"s.{UUIDS[0]}" / str(number)
    disk.make_directory(directory)
    disk.open(directory / f"{0:020}.log", create=True).close()


async def test_what_is_found_when_logs_are_opened_is_said_by_the_registration_and_then_forgotten(disk):
    session, durability_record = Session(), standing_on(disk)
    segment_of(disk, 0)

    async def open_logs(state):
        assert state is session.state
        assert session.said is None
        durability_record.log_torn(*THIS)

    await side_of(session).register(durability_record, open_logs, Checkpoint())
    assert session.said["cut_logs"] == [THIS]
    assert (session.said["is_log_proven"], session.said["lost_logs"], session.said["failed_logs"]) == (True, [], [])
    assert standing_on(disk).cut_logs(session.state, "a") == []


async def test_what_is_found_is_kept_until_the_node_is_registered(disk):
    session, durability_record = Session(), standing_on(disk)
    segment_of(disk, 0)
    session.refuses = True

    async def open_logs(_state):
        durability_record.log_torn(*THIS)

    with pytest.raises(MetadataRefusedError):
        await side_of(session).register(durability_record, open_logs, Checkpoint())
    assert standing_on(disk.kill()).cut_logs(session.state, "a") == [THIS]


@pytest.mark.parametrize("is_there", [True, False])
async def test_of_more_logs_than_a_command_tells_none_is_proven(disk, is_there, monkeypatch):
    monkeypatch.setattr(cluster_side, "_LOGS_TOLD_MAX", 3)
    session, durability_record = Session(partitions=5), standing_on(disk)
    for number in range(5) if is_there else ():
        segment_of(disk, number)

    async def open_logs(_state):
        if is_there:
            durability_record.wal_torn()

    await side_of(session).register(durability_record, open_logs, Checkpoint())
    told = session.said["cut_logs"] if is_there else session.said["lost_logs"]
    assert (session.said["is_log_proven"], len(told)) == (False, 3)
