"""What admin requests do that bring streams back from the bucket of a cluster that is gone.

A sequence of requests, each of which may be repeated, by anybody and to any node: look at the bucket, and at where the
partitions end (RESTORE.BUCKET, RESTORE.LOOK); make it this cluster's own (RESTORE.TAKE); bring the streams back, some
at a time (RESTORE.APPLY). A restore that was cut short is finished by doing it again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_envelope.settings import parse_settings
from liftpy_envelope.stream_config import StreamConfig
from liftpy_server.admin.reserved import check_unreserved
from liftpy_server.admin.tier.restore_requests import (
    ApplyRequest,
    BucketRequest,
    TakeRequest,
    read_look,
)
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.metadata.placement import Placement
from liftpy_server.requests.errors import AdminError
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.jobs.restores.restoring import PartitionPlan
from liftpy_server.tier.requests import FenceStreamsJob, LookAtPartitionsJob, ReadCatalogJob, TakeCatalogJob
from liftpy_server.workers.requests import to_plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Protocol

    from liftpy_server.metadata.state import MetadataState, StreamInfo
    from liftpy_server.requests.between_nodes import Body
    from liftpy_server.settings.config import NodeConfig
    from liftpy_server.workers.requests import WorkerRequest

    class _Metadata(Protocol):
        @property
        def cluster_id(self) -> str: ...
        async def read(self) -> MetadataState: ...
        async def propose(self, op: str, /, **args: Any) -> Any: ...

    class _Worker(Protocol):
        async def call(self, request: WorkerRequest[R], /) -> R: ...


__all__ = ["RestoreHandlers"]

R = TypeVar("R")

logger = logging.getLogger(__name__)

_NAMES_SHOWN_MAX: Final = 5
_CODES: Final = {"missing": ErrorCode.NOT_AVAILABLE, "internal": ErrorCode.INTERNAL}


class RestoreHandlers:
    """The handlers of one node.

    Args:
        config: Settings of this node.
        metadata: Metadata of the cluster.
        worker: Gives what works on the bucket; None where there is no bucket.
    """

    def __init__(self, config: NodeConfig, metadata: _Metadata, worker: Callable[[], _Worker | None]) -> None:
        self._config = config
        self._metadata = metadata
        self._worker = worker
        self._placement = Placement()

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {
            "RESTORE.BUCKET": self.bucket,
            "RESTORE.LOOK": self.look,
            "RESTORE.TAKE": self.take,
            "RESTORE.APPLY": self.apply,
        }

    async def _work(self, request: WorkerRequest[R]) -> R:
        worker = self._worker()
        if worker is None:
            text = "this cluster has no bucket: start its nodes with --tier-url s3://bucket/prefix, and try again"
            raise AdminError(ErrorCode.CONFLICT, text)
        try:
            return await worker.call(request)
        except TierWorkError as error:
            code = ErrorCode.NOT_AVAILABLE if error.retriable else _CODES.get(error.code, ErrorCode.CONFLICT)
            if error.code == "missing":
                text = f"the bucket has nothing to restore: {error.message}; is the prefix right?"
                raise AdminError(ErrorCode.CONFLICT, text) from error
            raise AdminError(code, error.message) from error

    async def bucket(self, body: Body) -> Body:
        """Whose bucket it is, and which streams it has, a page at a time; `is_here` tells which are back."""
        request = parse_settings(BucketRequest, body)
        page = await self._work(ReadCatalogJob(after=request.after, limit=request.limit))
        here = {stream.uuid for stream in (await self._metadata.read()).streams.values()}
        streams = [stream | {"is_here": stream["uuid"] in here} for stream in page.streams]
        told: Body = to_plain(page)
        return told | {"streams": streams, "own_cluster_id": self._metadata.cluster_id}

    async def look(self, body: Body) -> Body:
        """Where partitions end in the bucket, without changing anything."""
        found: Body = to_plain(await self._work(LookAtPartitionsJob(partitions=tuple(read_look(body)))))
        return found

    async def take(self, body: Body) -> Body:
        """Make the bucket of a cluster that is gone this cluster's own; `cluster_id` names the one that is gone."""
        request = parse_settings(TakeRequest, body)
        state = await self._metadata.read()
        own = {stream.uuid: name for name, stream in state.streams.items() if not stream.config.is_internal}
        found = await self._work(
            TakeCatalogJob(
                cluster_id=self._metadata.cluster_id, from_cluster_id=request.cluster_id, streams=tuple(sorted(own))
            )
        )
        strangers = sorted(own[uuid] for uuid in found.strangers)
        if strangers:
            more = "" if len(strangers) <= _NAMES_SHOWN_MAX else f" and {len(strangers) - _NAMES_SHOWN_MAX} more"
            raise AdminError(
                ErrorCode.CONFLICT,
                f"this cluster has streams that are not those of the bucket: {', '.join(strangers[:_NAMES_SHOWN_MAX])}"
                f"{more}; a bucket is restored to an empty cluster: delete them, or start another one",
            )
        logger.info("this cluster, %s, takes over the bucket of %s", self._metadata.cluster_id, request.cluster_id)
        return {"cluster_id": self._metadata.cluster_id}

    async def apply(self, body: Body) -> Body:
        """Bring streams back; those that are here are left as they are. Tells of each what became of it."""
        request = parse_settings(ApplyRequest, body)
        known = {stream.uuid: stream for stream in (await self._metadata.read()).streams.values()}
        missing = [uuid for uuid in request.uuids if uuid not in known]
        outcomes = {uuid: _is_here(known[uuid]) for uuid in request.uuids if uuid in known}
        if missing:
            found = await self._work(
                FenceStreamsJob(cluster_id=self._metadata.cluster_id, node=self._config.node_id, uuids=tuple(missing))
            )
            # Those of the system last: what consumers committed is swept when its stream is not there.
            for stream in sorted(found.streams, key=lambda each: each["name"].startswith("__")):
                outcomes[stream["uuid"]] = await self._restore(stream, request.replicas_max)
        unknown = [uuid for uuid in request.uuids if uuid not in outcomes]
        if unknown:
            text = f"the bucket has no stream {unknown[0]}, or only as one that was deleted"
            raise AdminError(ErrorCode.UNKNOWN_STREAM, text)
        return {"streams": [outcomes[uuid] for uuid in request.uuids]}

    async def _restore(self, stream: Mapping[str, Any], replicas_max: int | None) -> Body:
        """Bring one back. What stands in the way of it is told, and is no reason to leave out others."""
        plans = [PartitionPlan.from_plain(plan) for plan in stream["plans"]]
        outcome = {
            "uuid": stream["uuid"],
            "name": stream["name"],
            "restored": False,
            "partitions": [plan.to_plain() for plan in plans],
            "problem": "; ".join(
                f"partition {plan.partition}: {plan.problem}" for plan in plans if not plan.is_readable
            ),
        }
        if outcome["problem"]:
            return outcome
        try:
            state = await self._metadata.read()
            config = _fitting(StreamConfig.from_plain(stream["config"]), len(state.nodes), replicas_max)
            check_unreserved(config, self._config)
            done = await self._metadata.propose(
                "restore_stream",
                uuid=stream["uuid"],
                config=config.to_plain(),
                created_ns=stream["created_ns"],
                assignment=self._placement.place(state, config),
                partitions=[plan.marks for plan in plans],
            )
        except (ConfigError, MetadataRefusedError) as error:
            return outcome | {"problem": str(error)}
        logger.info("stream %s (%s) is restored from the bucket", stream["name"], stream["uuid"])
        return outcome | {"restored": done["restored"]}


def _is_here(stream: StreamInfo) -> Body:
    return {"uuid": stream.uuid, "name": stream.name, "restored": False, "partitions": [], "problem": ""}


def _fitting(config: StreamConfig, nodes: int, replicas_max: int | None) -> StreamConfig:
    """The settings of a stream, with no more copies than are allowed and there are nodes for.

    Raises:
        ConfigError: there are too few nodes, and nothing else is allowed.
    """
    if replicas_max is not None and (config.replicas > replicas_max or config.replicas + config.observers > nodes):
        replicas = min(config.replicas, replicas_max)
        observers = min(config.observers, max(0, nodes - replicas))
        min_isr = None if (config.min_isr or 0) > replicas else config.min_isr
        config = replace(config, replicas=replicas, observers=observers, min_isr=min_isr)
    if config.replicas + config.observers > nodes:
        raise ConfigError(
            "replicas",
            f"stream {config.name} has {config.replicas} replicas and {config.observers} observers, but there are "
            f"{nodes} nodes: start more nodes, or restore with --replicas-max {max(1, nodes)}",
        )
    return config
