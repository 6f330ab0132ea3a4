"""Administration: streams and nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from liftpy_client.cluster import Cluster

__all__ = ["Admin", "PartitionDetails", "StreamDetails"]

_LIST_PAGE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """One partition, as its leader tells.

    Attributes:
        log_start: first offset there is.
        high_watermark: offset after the last committed record.
        log_end: offset after the last record.
        offline: why the partition refuses to work; None while it is well.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    log_start: int
    high_watermark: int
    log_end: int
    bytes: int
    segments: int
    offline: str | None

    @classmethod
    def from_answer(cls, partition: dict[str, Any]) -> PartitionDetails:
        """Read what a node said."""
        known = {name: partition[name] for name in cls.__slots__}
        return cls(**known | {"replicas": tuple(partition["replicas"]), "isr": tuple(partition["isr"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDetails:
    """One stream.

    Attributes:
        messages: committed records that are there now.
        bytes: size on disk.
        warnings: what its creator should know.
        raw: everything that the node said.
    """

    name: str
    uuid: str
    config: StreamConfig
    created: datetime
    version: int
    paused: bool
    read_only: bool
    messages: int
    bytes: int
    partitions: tuple[PartitionDetails, ...]
    warnings: tuple[str, ...] = ()
    raw: dict[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def from_answer(cls, stream: dict[str, Any], warnings: list[str] | None = None) -> StreamDetails:
        """Read what a node said."""
        return cls(
            name=stream["name"],
            uuid=stream["uuid"],
            config=StreamConfig.from_plain(stream["config"]),
            created=datetime.fromtimestamp(stream["created_ns"] / 1e9, UTC),
            version=stream["version"],
            paused=stream["paused"],
            read_only=stream["read_only"],
            messages=stream["messages"],
            bytes=stream["bytes"],
            partitions=tuple(PartitionDetails.from_answer(partition) for partition in stream["partitions"]),
            warnings=tuple(warnings or ()),
            raw=stream,
        )


class Admin:
    """Requests to any node. All of them raise `AdminError` when refused, `NodeUnavailableError` when nobody answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_stream(self, name: str, *, subject: str, **settings: Any) -> StreamDetails:
        """Create a stream; returns when its subscription is confirmed. Idempotent.

        Args:
            name: 1 to 128 letters, digits, `_` or `-`.
            subject: NATS subject to store, wildcards included.
            settings: other fields of `StreamConfig`.

        Raises:
            ConfigError: a setting is unknown or wrong.
            AdminError: a stream of that name has other settings, or NATS does not allow the subscription.
        """
        config = StreamConfig.from_plain({"name": name, "subject": subject} | settings)
        self._cluster.forget(name)
        answer = await self._cluster.request("STREAM.CREATE", config.to_plain(), 15.0)
        return StreamDetails.from_answer(answer["stream"], answer["warnings"])

    async def update_stream(self, name: str, *, expected_version: int | None = None, **changes: Any) -> StreamDetails:
        """Change settings of a stream.

        Args:
            name: of the stream.
            expected_version: refuse the change when the stream has another version.
            changes: fields of `StreamConfig`.
        """
        body = {"name": name, "changes": changes, "expected_version": expected_version}
        answer = await self._cluster.request("STREAM.UPDATE", body)
        self._cluster.forget(name)
        return StreamDetails.from_answer(answer["stream"], answer["warnings"])

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all of its records."""
        await self._cluster.request("STREAM.DELETE", {"name": name}, 30.0)
        self._cluster.forget(name)

    async def stream_info(self, name: str) -> StreamDetails:
        """One stream."""
        answer = await self._cluster.request("STREAM.INFO", {"name": name})
        return StreamDetails.from_answer(answer["stream"])

    async def streams(self) -> AsyncIterator[StreamDetails]:
        """All streams, in the order of their names."""
        offset, total = 0, 1
        while offset < total:
            answer = await self._cluster.request("STREAM.LIST", {"offset": offset, "limit": _LIST_PAGE})
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
        """Take messages again."""
        return await self._change("STREAM.RESUME", {"name": name})

    async def set_read_only(self, name: str, *, read_only: bool = True) -> StreamDetails:
        """Refuse messages from now on, or take them again."""
        return await self._change("STREAM.READONLY", {"name": name, "read_only": read_only})

    async def purge_stream(
        self, name: str, *, partition: int | None = None, offset: int | None = None
    ) -> StreamDetails:
        """Delete records below an offset, by default all that are committed."""
        return await self._change("STREAM.PURGE", {"name": name, "partition": partition, "offset": offset})

    async def _change(self, endpoint: str, body: dict[str, Any]) -> StreamDetails:
        answer = await self._cluster.request(endpoint, body)
        return StreamDetails.from_answer(answer["stream"])

    async def find_streams(self, subject: str) -> list[str]:
        """Names of the streams that store a subject: those that ack replies each send an ack."""
        answer = await self._cluster.request("STREAM.FIND", {"subject": subject})
        return [stream["name"] for stream in answer["streams"]]

    async def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the cluster."""
        answer = await self._cluster.request("NODE.LIST", {})
        return list(answer["nodes"])

    async def node_info(self) -> dict[str, Any]:
        """How the node that answers is."""
        answer = await self._cluster.request("NODE.INFO", {})
        return dict(answer["node"])
