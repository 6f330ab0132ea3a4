"""A group with a log behind it: what a step wrote is there, and a coordinator can be made from it at any time."""

import pytest

from liftpy_envelope.group_offsets import CommitOffset, CommitRequest, CommitStream, OffsetFetchRequest
from liftpy_envelope.groups import HeartbeatRequest, JoinRequest, LeaveRequest
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.assignment import StreamShape
from liftpy_server.groups.core.inputs import Now, StreamsChanged
from liftpy_server.groups.core.replay import GroupsReplay

UUID = b"s" * 16


class Group:
    """See the module."""

    def __init__(self):
        self.now_s = 100.0
        self.log = []
        self.effects = None
        self.restart(StreamsChanged(1, {"s": StreamShape(UUID, 4)}))

    def restart(self, given=None):
        replay = GroupsReplay()
        replay.apply([key for key, _ in self.log], [value for _, value in self.log])
        self.coordinator = replay.coordinator("g")
        if given is not None:
            self.streams = given
        self.step(self.streams)

    def step(self, given):
        self.effects = self.coordinator.step(given, Now(self.now_s, int(self.now_s * 1e9)))
        self.log += self.effects.records
        return self.effects.answer

    def join(self, name, *, instance_id="", revision=0, subscriptions=("s",)):
        request = ("g", name.encode().ljust(16), revision, instance_id, name, "", 6_000, 9_000, tuple(subscriptions))
        return self.step(JoinRequest(*request))

    def beat(self, member_id, generation, instance_id=""):
        return self.step(HeartbeatRequest("g", member_id, instance_id, generation))

    def leave(self, member_id):
        return self.step(LeaveRequest("g", member_id, ""))

    def commit(self, member_id, generation, sequence, offsets, *, uuid=UUID, name="s", instance_id=""):
        rows = tuple(CommitOffset(partition, offset, 1, b"m") for partition, offset in offsets.items())
        streams = (CommitStream(uuid, name, rows),)
        return self.step(CommitRequest("g", member_id, instance_id, generation, sequence, streams))

    def fetch(self, member_id="", generation=-1, partitions=range(4)):
        keys = tuple(PartitionKey(UUID, partition) for partition in partitions)
        return self.step(OffsetFetchRequest("g", member_id, "", generation, keys))

    def committed(self):
        return {row.key.partition: row.offset for row in self.fetch().offsets}


@pytest.fixture
def group():
    return Group()
