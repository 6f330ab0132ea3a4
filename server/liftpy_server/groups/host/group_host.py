"""The consumer groups of a node: those in the partitions of the stream of the groups that it leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.group_offsets import CommitRequest, OffsetFetchRequest
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from liftpy_envelope.groups import MESSAGE_LENGTH_MAX, GroupError
from liftpy_server.groups.host.append_scheduler import AppendScheduler
from liftpy_server.groups.host.checking import RequestChecks, without
from liftpy_server.groups.host.coordinators import Coordinators
from liftpy_server.groups.host.finding import CoordinatorFinder
from liftpy_server.groups.host.group_partition import GroupPartition
from liftpy_server.groups.host.limits import UPKEEP_INTERVAL_S
from liftpy_server.groups.host.pending import PendingRequest
from liftpy_server.groups.host.quota import GroupQuota
from liftpy_server.groups.host.replaying import read_groups
from liftpy_server.groups.host.shapes import StreamShapes
from liftpy_server.groups.host.upkeep import GroupUpkeep
from liftpy_server.metadata.errors import MetadataUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from liftpy_envelope.groups import HeartbeatRequest, JoinRequest, LeaveRequest
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.clock import Clock
    from liftpy_log.storage.files import FileCache
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.groups.core.records import CommittedOffset
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.partition.partition import Partition
    from liftpy_server.replication.host.local import LocalReplica
    from liftpy_server.settings.groups import GroupsConfig
    from liftpy_server.streams.streams import Streams
    from liftpy_server.tier.reads.reads import ColdReads

    GroupRequest = JoinRequest | HeartbeatRequest | LeaveRequest | CommitRequest | OffsetFetchRequest

__all__ = ["GroupHost", "ToldGroup"]

_ELSEWHERE = "another node coordinates the group now; look it up again"


class ToldGroup(NamedTuple):
    """What a coordinator tells of a group.

    Attributes:
        name: Name of the group.
        committed: Next offset to read, by partition.
        assigned: Partitions that its members have.
        members: How many it has.
    """

    name: str
    committed: Iterator[tuple[PartitionKey, CommittedOffset]]
    assigned: Sequence[PartitionKey]
    members: int


class GroupHost:
    """Coordinates the groups of all partitions of `__consumer_offsets` that this node leads.

    Args:
        node_id: This node.
        config: Settings of groups.
        streams: The node's.
        metadata: Metadata of the cluster.
        files: The node's open files.
        clock: Clock of the node.
        executor: Reads from the disk.
        cold: Reads the bucket; None where there is none.
        upkeep_s: How often to look for groups that nobody uses any more.
    """

    def __init__(
        self,
        node_id: str,
        config: GroupsConfig,
        streams: Streams,
        metadata: RaftMetadataStore,
        files: FileCache,
        clock: Clock,
        executor: Executor,
        cold: ColdReads | None = None,
        upkeep_s: float = UPKEEP_INTERVAL_S,
    ) -> None:
        self._node_id = node_id
        self._streams = streams
        self._metadata = metadata
        self._files = files
        self._clock = clock
        self._executor = executor
        self._cold = cold
        self._shapes = StreamShapes()
        self._scheduler = AppendScheduler()
        self._hosted: dict[int, GroupPartition] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._has_stopped = False
        self.quota = GroupQuota(config)
        self.finder = CoordinatorFinder(config, metadata)
        self._checks = RequestChecks(node_id, streams.by_key, metadata)
        self._upkeep = GroupUpkeep(self._hosted, metadata, config.retention_s, upkeep_s)

    @property
    def hosted(self) -> Mapping[int, GroupPartition]:
        """By number, the partitions of the stream of the groups that this node leads."""
        return self._hosted

    def told(self, groups_max: int) -> Iterator[ToldGroup]:
        """Groups that this node coordinates."""
        for hosted in self.hosted.values():
            coordinators = hosted.coordinators
            if coordinators is None:
                continue
            for group in coordinators.groups[:groups_max]:
                found = coordinators.find(group)
                members = [] if found is None else list(found.members.values())
                assigned = [key for member in members for key in member.assigned]
                yield ToldGroup(group, coordinators.table.of_group(group), assigned, len(members))
            groups_max -= min(groups_max, len(coordinators.groups))

    def at(self, group: str) -> GroupPartition | GroupError:
        """Where a group is on this node, or why it is not here."""
        info = self._metadata.state.streams.get(GROUPS_STREAM)
        if info is None:
            return GroupError.NOT_LEADER
        number = partition_of_group(group, len(info.partitions))
        hosted = self._hosted.get(number)
        if hosted is not None:
            return hosted
        is_led = info.partitions[number].leader == self._node_id  # then it begins to know, or is about to
        return GroupError.NOT_AVAILABLE if is_led else GroupError.NOT_LEADER

    def ask(self, request: GroupRequest, client: str = "") -> PendingRequest:
        """Give a request to the coordinator of its group, and get its answer later."""
        pending = PendingRequest(request.group, request, client)
        place = self.at(request.group)
        if isinstance(place, GroupPartition):
            place.ask(pending)
        elif place is GroupError.NOT_LEADER:
            pending.refuse(place, "this node does not coordinate the group; look up which one does")
        else:
            pending.refuse(place, "this node begins to coordinate the group; ask again")
        return pending

    async def take(self, request: GroupRequest, client: str = "") -> PendingRequest:
        """As `ask`, after what has to be looked at before; see `checking`.

        Args:
            request: The request.
            client: The address of who asks.
        """
        try:
            if isinstance(request, CommitRequest) and (refusals := await self._checks.refusals(request)):
                pending = self.ask(without(request, {refusal.key for refusal in refusals}), client)
                pending.refusals = refusals
                return pending
            if isinstance(request, OffsetFetchRequest) and not await self._may_tell(request):
                return self._refused(request, GroupError.NOT_LEADER, _ELSEWHERE)
        except MetadataUnavailableError as error:
            text = f"whether this node coordinates the group is not known now: {error}"[:MESSAGE_LENGTH_MAX]
            return self._refused(request, GroupError.NOT_AVAILABLE, text)
        return self.ask(request, client)

    async def _may_tell(self, request: OffsetFetchRequest) -> bool:
        place = self.at(request.group)
        return not isinstance(place, GroupPartition) or await self._checks.may_tell(request, place.epoch)

    @staticmethod
    def _refused(request: GroupRequest, error: GroupError, message: str) -> PendingRequest:
        pending = PendingRequest(request.group, request)
        pending.refuse(error, message)
        return pending

    def leadership_changed(self, replica: LocalReplica) -> None:
        """A replica of any stream leads now, or does no longer."""
        if replica.partition.stream.name == GROUPS_STREAM:
            self._review()

    def follow(self, state: MetadataState) -> None:
        """The metadata changed, and the node's streams have followed."""
        self._review()
        if self._hosted:
            streams = self._shapes.of(state)
            for hosted in self._hosted.values():
                hosted.streams_changed(streams)

    def _led(self) -> dict[int, Partition]:
        info = self._metadata.state.streams.get(GROUPS_STREAM)
        local = None if info is None or self._has_stopped else self._streams.by_uuid.get(info.uuid)
        if local is None:
            return {}
        return {
            number: partition
            for number, partition in local.partitions.items()
            if partition.is_leading and partition.gone is None and partition.log.failure is None
        }

    def _review(self) -> None:
        """Host what is led here, and nothing else."""
        led = self._led()
        for number, hosted in list(self._hosted.items()):
            if led.get(number) is not hosted.partition or not hosted.is_leading:
                del self._hosted[number]
                self._end(hosted)
        for number, partition in led.items():
            if number not in self._hosted:
                self._hosted[number] = self._begin(partition)

    def _begin(self, partition: Partition) -> GroupPartition:
        async def replayed() -> Coordinators:
            replay = await read_groups(partition, self._files, self._executor, self._cold)
            return Coordinators(replay, self._shapes.of(await self._metadata.read()), self.quota)

        hosted = GroupPartition(partition, replayed, self._clock, self._scheduler)
        hosted.start()
        return hosted

    def _end(self, hosted: GroupPartition) -> None:
        task = hosted.end(GroupError.NOT_LEADER, _ELSEWHERE)
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def start(self) -> None:
        """Begin to look after groups that nobody uses any more."""
        self._upkeep.start()

    async def stop(self) -> None:
        """Coordinate nothing any more."""
        self._has_stopped = True
        await self._upkeep.stop()
        await self.finder.stop()
        self._review()
        await asyncio.gather(*self._ending, return_exceptions=True)
