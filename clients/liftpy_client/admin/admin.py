"""Admin requests about streams, nodes, consumer groups, the bucket and restores.

Answers that few requests have are imported where they are read: a command that lists streams needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from liftpy_client.admin.details import ClusterDetails, MoveDetails, NodeDetails, StreamDetails
from liftpy_client.connection.cluster import Cluster
from liftpy_client.connection.connecting import Connecting
from liftpy_client.errors import NodeUnavailableError
from liftpy_envelope.settings import check_names
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Unpack

    from liftpy_client.admin.groups import GroupDetails, GroupSummary
    from liftpy_client.admin.recovery import QuarantineDetails, RecoveryDetails
    from liftpy_client.admin.restoring import RestoredStream, RestorePlan
    from liftpy_client.admin.stream_settings import StreamChanges, StreamSettings
    from liftpy_client.admin.tier import TierStatus
    from liftpy_client.connection.nats_options import NatsOptions

__all__ = ["Admin", "connect_admin"]

_STREAMS_PAGE: Final = 256
_CREATE_TIMEOUT_S: Final = 20.0  # the leaders get 10 s to subscribe
_CHANGE_TIMEOUT_S: Final = 15.0  # the leaders get 5 s to follow
_MEMBERS_TIMEOUT_S: Final = 30.0
_FIRST_TIMEOUT_S: Final = 2.5  # a node waits 2 s for others before it answers without them
_DELETE_TIMEOUT_S: Final = 10.0
_GROUPS_PAGE: Final = 500


class Admin:
    """Requests to any node. They raise `AdminError` when refused and `NodeUnavailableError` when no node answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _read(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request that changes nothing: NATS may hand it to a node that hangs, so it is asked a second time."""
        try:
            return await self._cluster.request(endpoint, body, _FIRST_TIMEOUT_S)
        except NodeUnavailableError:
            return await self._cluster.request(endpoint, body)

    async def create_stream(self, name: str, *, subject: str, **settings: Unpack[StreamSettings]) -> StreamDetails:
        """Create a stream; returns when its subscription is confirmed. Idempotent.

        Args:
            name: 1 to 128 letters, digits, `_` or `-`.
            subject: NATS subject to store, wildcards included.
            settings: Other fields of `StreamConfig`.

        Raises:
            ConfigError: a setting is unknown or wrong.
            AdminError: a stream of that name has other settings, or NATS does not allow the subscription.
        """
        config = StreamConfig.from_plain({"name": name, "subject": subject, **settings})
        self._cluster.forget(name)
        answer = await self._cluster.request("STREAM.CREATE", config.to_plain(), _CREATE_TIMEOUT_S)
        return StreamDetails.from_answer(answer["stream"], answer["warnings"])

    async def update_stream(
        self, name: str, *, expected_version: int | None = None, **changes: Unpack[StreamChanges]
    ) -> StreamDetails:
        """Change settings of a stream.

        Args:
            name: Name of the stream.
            expected_version: Refuse the change when the stream has another version.
            changes: Fields of `StreamConfig`.

        Raises:
            ConfigError: a setting is unknown.
            AdminError: the change is refused.
        """
        check_names(StreamConfig, changes)
        body = {"name": name, "changes": changes, "expected_version": expected_version}
        answer = await self._cluster.request("STREAM.UPDATE", body, _CHANGE_TIMEOUT_S)
        self._cluster.forget(name)
        return StreamDetails.from_answer(answer["stream"], answer["warnings"])

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all of its records."""
        await self._cluster.request("STREAM.DELETE", {"name": name}, 30.0)
        self._cluster.forget(name)

    async def stream_info(self, name: str) -> StreamDetails:
        """One stream."""
        answer = await self._read("STREAM.INFO", {"name": name})
        return StreamDetails.from_answer(answer["stream"])

    async def streams(self, *, internal: bool = False) -> AsyncIterator[StreamDetails]:
        """All streams, in the order of their names; with `internal`, also those of liftpy itself."""
        offset, total = 0, 1
        while offset < total:
            page = {"offset": offset, "limit": _STREAMS_PAGE, "internal": internal}
            answer = await self._read("STREAM.LIST", page)
            total = answer["total"]
            for stream in answer["streams"]:
                yield StreamDetails.from_answer(stream)
            if not answer["streams"]:
                return  # some were deleted meanwhile
            offset += len(answer["streams"])  # a node may send fewer than were asked for

    async def pause_stream(self, name: str) -> StreamDetails:
        """Refuse messages until the stream is resumed."""
        return await self._change("STREAM.PAUSE", {"name": name})

    async def resume_stream(self, name: str) -> StreamDetails:
        """Accept messages again after a pause."""
        return await self._change("STREAM.RESUME", {"name": name})

    async def set_read_only(self, name: str, *, read_only: bool = True) -> StreamDetails:
        """Refuse messages from now on, or accept them again."""
        return await self._change("STREAM.READONLY", {"name": name, "read_only": read_only})

    async def purge_stream(
        self, name: str, *, partition: int | None = None, offset: int | None = None
    ) -> StreamDetails:
        """Delete records below an offset, by default all that are committed. An offset beyond the end is refused."""
        return await self._change("STREAM.PURGE", {"name": name, "partition": partition, "offset": offset})

    async def _change(self, endpoint: str, body: dict[str, Any]) -> StreamDetails:
        answer = await self._cluster.request(endpoint, body, _CHANGE_TIMEOUT_S)
        return StreamDetails.from_answer(answer["stream"], answer.get("warnings"))

    async def find_streams(self, subject: str) -> list[str]:
        """Names of the streams that store a subject, or any of a pattern: those that ack replies each send an ack."""
        answer = await self._read("STREAM.FIND", {"subject": subject})
        return [stream["name"] for stream in answer["streams"]]

    async def reassign_stream(
        self,
        name: str,
        *,
        replicas: int | None = None,
        observers: int | None = None,
        partitions: Mapping[int, Sequence[str]] | None = None,
        dry_run: bool = False,
    ) -> MoveDetails:
        """Move the replicas of a stream to other nodes, while it is in use.

        Returns when the moves have begun; `cluster_info` shows how far they are.

        Args:
            name: Name of the stream.
            replicas: How many copies there shall be; the nodes are chosen.
            observers: How many further copies there shall be that do not count.
            partitions: The nodes wanted, by number of the partition, the preferred leader first and observers last.
            dry_run: Return the moves without starting them.

        Returns:
            The partitions that are moved.

        Raises:
            AdminError: a node is unknown or drained, or a partition is being moved already.
        """
        body: dict[str, Any] = {"name": name, "replicas": replicas, "observers": observers, "dry_run": dry_run}
        if partitions is not None:
            body["partitions"] = {str(number): list(nodes) for number, nodes in partitions.items()}
        answer = await self._cluster.request("STREAM.REASSIGN", body, _CHANGE_TIMEOUT_S)
        return MoveDetails.from_answer(answer)

    async def cancel_reassignment(self, name: str) -> int:
        """Leave the replicas of a stream where they were. Returns how many partitions were being moved."""
        answer = await self._cluster.request("STREAM.REASSIGN", {"name": name, "cancel": True}, _CHANGE_TIMEOUT_S)
        return int(answer["cancelled"])

    async def recover_stream(
        self,
        name: str,
        *,
        partition: int | None = None,
        leader: str | None = None,
        give_up: Sequence[str] = (),
        accept_data_loss: bool = False,
        dry_run: bool = False,
        versions: Mapping[int, int] | None = None,
    ) -> RecoveryDetails:
        """Elect leaders for partitions that no replica can lead without a decision, because records may be lost.

        The longest log of each partition leads, and the other replicas follow it. A replica with committed records
        that the leader lacks goes to its node's quarantine whole, and is copied again. Use `dry_run` first.

        Args:
            name: Name of the stream.
            partition: Number of the partition; by default all that need a decision.
            leader: Node that is to lead; by default the one whose log reaches the furthest.
            give_up: Nodes that are gone for good, with what they have; the others must be up.
            accept_data_loss: Committed records that are known to be lost by it may be lost.
            dry_run: Return what each replica has and which would lead, and decide nothing.
            versions: Versions of the partitions as they were looked at, by number; refused when they have changed
                since.

        Raises:
            AdminError: a replica is neither up nor given up, or records would be lost without `accept_data_loss`.
        """
        from liftpy_client.admin.recovery import RecoveryDetails

        body: dict[str, Any] = {
            "name": name,
            "partition": partition,
            "leader": leader,
            "give_up": list(give_up),
            "accept_data_loss": accept_data_loss,
            "dry_run": dry_run,
            "versions": {str(number): version for number, version in (versions or {}).items()},
        }
        answer = await self._cluster.request("STREAM.RECOVER", body, _CHANGE_TIMEOUT_S)
        self._cluster.forget(name)
        return RecoveryDetails.from_answer(answer)

    async def cluster_info(self, *, limit: int = 100) -> ClusterDetails:
        """The cluster as a whole, and up to `limit` partitions of each kind that needs attention."""
        answer = await self._read("CLUSTER.INFO", {"limit": limit})
        return ClusterDetails.from_answer(answer["cluster"])

    async def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the cluster; `node_details` has them typed."""
        answer = await self._read("NODE.LIST", {})
        return list(answer["nodes"])

    async def node_details(self) -> list[NodeDetails]:
        """The nodes of the cluster, with what they lead and keep."""
        return [NodeDetails.from_answer(node) for node in await self.nodes()]

    async def node_info(self, node_id: str | None = None) -> dict[str, Any]:
        """Return the state of a node, by default of the one that answers."""
        answer = await self._read("NODE.INFO", {} if node_id is None else {"node_id": node_id})
        return dict(answer["node"])

    async def quarantine(self, stream: str | None = None, *, limit: int = 100) -> QuarantineDetails:
        """Return what nodes moved to quarantine: replaced replicas, damaged files, unknown directories.

        Args:
            stream: Only what belonged to it.
            limit: Number of items to return, newest first.
        """
        from liftpy_client.admin.recovery import QuarantineDetails

        return QuarantineDetails.from_answer(await self._read("NODE.QUARANTINE", {"stream": stream, "limit": limit}))

    async def drain_node(self, node_id: str, *, cancel: bool = False) -> MoveDetails:
        """Move everything off a node, so that it can be stopped for good; `cancel` lets it keep and take replicas.

        Returns when the moves have begun; `cluster_info` shows how far they are. What could not be moved, for want of
        nodes, stays; asking again moves it when there is room.

        Returns:
            The partitions that move to other nodes; none with `cancel`.
        """
        body = {"node_id": node_id, "cancel": cancel}
        answer = await self._cluster.request("NODE.DRAIN", body, _MEMBERS_TIMEOUT_S)
        return MoveDetails.from_answer(answer)

    async def remove_node(self, node_id: str) -> None:
        """Remove a drained node from the cluster.

        Raises:
            AdminError: The node still has replicas.
        """
        await self._cluster.request("NODE.REMOVE", {"node_id": node_id}, _MEMBERS_TIMEOUT_S)

    async def groups(self) -> list[GroupSummary]:
        """All consumer groups, in the order of their names.

        Raises:
            NodeUnavailableError: a node that coordinates some of them does not answer.
        """
        from liftpy_client.admin.groups import GroupSummary

        found: list[GroupSummary] = []
        after, is_more = "", True
        while is_more:
            answer = await self._read("GROUP.LIST", {"after": after, "limit": _GROUPS_PAGE})
            if answer["unreachable"]:
                names = ", ".join(answer["unreachable"])
                raise NodeUnavailableError(f"nodes that coordinate consumer groups do not answer: {names}")
            found += map(GroupSummary.from_answer, answer["groups"])
            is_more = answer["more"] and bool(answer["groups"])
            after = found[-1].group if found else ""
        return found

    async def group(self, name: str) -> GroupDetails:
        """Return a consumer group, with its members and committed offsets.

        Raises:
            AdminError: there is no such group, or its coordinator is just being changed.
        """
        from liftpy_client.admin.groups import GroupDetails

        answer = await self._read("GROUP.INFO", {"group": name})
        offsets = list(answer["offsets"])
        while answer["offsets"] and len(offsets) < answer["offsets_total"]:
            more = await self._read("GROUP.INFO", {"group": name, "offsets_from": len(offsets)})
            if not more["offsets"]:
                break  # some went meanwhile
            offsets += more["offsets"]
        return GroupDetails.from_answer(answer | {"offsets": offsets})

    async def delete_group(self, name: str) -> None:
        """Delete a consumer group and its committed offsets.

        Raises:
            AdminError: it has members, or there is no such group.
        """
        await self._cluster.request("GROUP.DELETE", {"group": name}, _DELETE_TIMEOUT_S)

    async def tier_status(self, *, limit: int = 100) -> TierStatus:
        """How the bucket is, and up to `limit` of the partitions that go to it, those in trouble first."""
        from liftpy_client.admin.tier import TierStatus

        return TierStatus.from_answer(await self._read("TIER.STATUS", {"limit": limit}))

    async def restore_plan(self, *, progress: Callable[[int, int], None] | None = None) -> RestorePlan:
        """What the bucket of this cluster holds, and up to where; changes nothing.

        Args:
            progress: Called with the number of partitions that were read, and their total.
        """
        from liftpy_client.admin.restoring import plan_restore

        return await plan_restore(self._cluster, progress)

    async def restore(
        self,
        plan: RestorePlan | None = None,
        *,
        replicas_max: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RestoredStream]:
        """Bring back every stream that the bucket has, to a cluster that has no others. May be repeated.

        Consumers that had read what did not reach the bucket get a `LogDivergedError` or an `OffsetLostError`.

        Args:
            plan: Plan, as `restore_plan` gives it; by default, made now.
            replicas_max: Number of copies at most, where there are fewer nodes than a stream had replicas.
            progress: Called with the number of restored partitions, and their total.

        Returns:
            What became of each stream that was not here; those with a problem are not back.

        Raises:
            AdminError: there is no bucket, or nothing in it; this cluster has other streams; or another cluster still
                writes to the bucket.
        """
        from liftpy_client.admin.restoring import apply_restore

        plan = await self.restore_plan() if plan is None else plan
        return await apply_restore(self._cluster, plan, replicas_max=replicas_max, progress=progress)

    async def verify_restore(self, plan: RestorePlan, *, within_s: float = 30.0) -> list[str]:
        """What is amiss of what a plan says should be here, for people; nothing when all is well.

        Args:
            plan: Plan that was carried out.
            within_s: Time for which it is looked again while something is amiss, seconds: leaders are elected first.
        """
        from liftpy_client.admin.restoring import verify_restore

        return await verify_restore(self._cluster, plan, within_s=within_s)


def connect_admin(options: NatsOptions, *, name: str) -> Connecting[Admin]:
    """Connect for requests about streams, nodes and groups alone: without Arrow, which only messages need."""
    return Connecting(options, name, lambda nats, may: Admin(Cluster(nats, options.timeout_s, may)))
