"""Where streams and their leaders are: requested over NATS, cached, and requested again when an answer is stale."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_client.connection.permissions import Permissions
from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError, NoStreamError, UsageError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.stream_config import StreamConfig
from liftpy_envelope.subject import matches
from liftpy_envelope.unpacking import UnpackError, read_json

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from liftpy_envelope.pull import PartitionKey

__all__ = ["Cluster", "NobodyAnswersError", "NodeAddress", "StreamPlace"]

_LOOK_INTERVAL_S: Final = 0.08
_LOOK_TIMEOUT_S: Final = 2.0
_AGAIN_S: Final = 0.1
_STRANGER_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's pull server, what it admits us by, and where it stands."""

    node_id: str
    host: str
    port: int
    tls: bool
    token: str
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A stream and the nodes of its partitions.

    Attributes:
        leaders: Leaders by partition; None where there is none at the moment.
        readable: Nodes whose replicas are in sync as far as the metadata knows, and the observers, by partition.
    """

    uuid: bytes
    config: StreamConfig
    leaders: tuple[str | None, ...]
    readable: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def replicas_to_read(self, partition: int) -> tuple[str, ...]:
        """The nodes whose replicas of a partition may be read; none when nobody said."""
        return self.readable[partition] if partition < len(self.readable) else ()

    def key(self, partition: int) -> PartitionKey:
        """The key of one partition."""
        from liftpy_envelope.pull import PartitionKey  # here, as commands that only ask for streams need none of it

        return PartitionKey(self.uuid, partition)


class NobodyAnswersError(NodeUnavailableError):
    """No node listens, as NATS knows, and none ever answered; kept inside the client, which does not wait then."""


class Cluster:
    """Requests to the cluster, with a cache of streams, leaders and node addresses.

    Args:
        nats: An open connection.
        timeout_s: Time limit of a request in seconds.
        permissions: Tells of what NATS refused; by default nothing does.
    """

    def __init__(self, nats: Client, timeout_s: float, permissions: Permissions | None = None) -> None:
        self._nats = nats
        self._timeout_s = timeout_s
        self._permissions = permissions or Permissions()
        self._nodes: dict[str, NodeAddress] = {}
        self._streams: dict[str, StreamPlace] = {}
        self._wanted: set[str] = set()
        self._next_look: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")
        self._was_answered = False

    async def request(self, endpoint: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """One admin request.

        Raises:
            AdminError: it was refused.
            NotPermittedError: NATS does not let us ask, or hear the answer.
            NodeUnavailableError: no node answers within the time; after a second if none listens and none ever did.
            DisconnectedError: the connection to NATS is closed.
        """
        timeout = self._timeout_s if timeout_s is None else timeout_s
        subject = f"LIFT.API.{endpoint}"
        try:
            reply = await self._ask(subject, _encode(body), timeout)
        except NoRespondersError:
            error_type = NodeUnavailableError if self._was_answered else NobodyAnswersError
            raise error_type(
                "NATS is connected, but no liftpy node answers; check that a node runs on this NATS account"
            ) from None
        except NatsTimeoutError:
            if not self._nats.is_connected:
                raise NodeUnavailableError("the connection to NATS is lost, and is being set up again") from None
            raise NodeUnavailableError(f"no liftpy node answered {subject} within {timeout:g} s") from None
        except (ConnectionClosedError, ConnectionDrainingError):
            raise DisconnectedError("the connection to NATS is closed") from None
        except MaxPayloadError:
            raise UsageError(
                f"the request exceeds max_payload of the NATS server ({self._nats.max_payload} bytes)"
            ) from None
        except NatsError as error:
            raise NodeUnavailableError(f"NATS refuses a request to {subject}: {error}") from error
        answer = _decode(reply.data, subject)
        refusal = answer.get("error")
        if refusal is not None:
            raise AdminError(ErrorCode(int(refusal["err_code"])), str(refusal["description"]))
        return answer

    async def _ask(self, subject: str, data: bytes, timeout_s: float) -> Msg:
        """One request, sent again while NATS knows of nobody who listens.

        A node whose connection is made anew is missing for a moment, and a request that nobody got may be repeated.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        patient_until_s = until_s if self._was_answered else min(until_s, loop.time() + _STRANGER_PATIENCE_S)
        while True:
            try:
                async with self._permissions.needed(subject):
                    with KeptCancellation():
                        reply = await self._nats.request(subject, data, timeout=until_s - loop.time())
            except NoRespondersError:
                if loop.time() + _AGAIN_S >= patient_until_s:
                    raise
            else:
                self._was_answered = True
                return reply
            await asyncio.sleep(_AGAIN_S)

    async def refresh(self, names: list[str] | None = None, timeout_s: float | None = None) -> None:
        """Ask where things are now.

        Args:
            names: The streams wanted; None for all.
            timeout_s: How long to wait for the answer.
        """
        answer = await self.request("METADATA", {"streams": names}, timeout_s)
        self._nodes = {
            node["node_id"]: NodeAddress(
                node["node_id"],
                node["pull_host"],
                node["pull_port"],
                node["pull_tls"],
                node["pull_token"],
                node.get("rack"),
            )
            for node in answer["nodes"]
        }
        if names is None:
            self._streams.clear()
        for name in names or ():
            self._streams.pop(name, None)
        for stream in answer["streams"]:
            partitions = stream["partitions"]
            config = StreamConfig.from_plain(stream["config"])
            self._streams[config.name] = StreamPlace(
                bytes.fromhex(stream["uuid"]),
                config,
                tuple(partition["leader"] for partition in partitions),
                tuple((*partition.get("isr", ()), *partition.get("observers", ())) for partition in partitions),
            )

    async def stream(self, name: str, *, fresh: bool = False) -> StreamPlace:
        """Where a stream is.

        Raises:
            NoStreamError: there is none of this name.
        """
        if fresh or name not in self._streams:
            await self.refresh([name])
        place = self._streams.get(name)
        if place is None:
            raise NoStreamError(f"there is no stream {name!r}")
        return place

    async def confirmed(self, name: str, patience_s: float) -> StreamPlace:
        """As `stream` with `fresh`, for those who have time: when a node is too busy to answer it is asked again.

        Raises:
            NoStreamError: there is none of this name.
            NodeUnavailableError: nobody answers.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while True:
            try:
                return await self.stream(name, fresh=True)
            except NobodyAnswersError:
                raise
            except (NodeUnavailableError, AdminError) as error:
                is_final = isinstance(error, AdminError) and not is_passing(error.code)
                if is_final or loop.time() >= until_s:
                    raise
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def latest(self, name: str) -> StreamPlace:
        """Where a stream is now, for those who ask again and again until it has a leader.

        All who ask at about the same time share one request, and there is only one under way; so a client asks the
        cluster about ten times a second at most, however many streams and partitions it waits for.

        Raises:
            NoStreamError: there is none of this name.
            NodeUnavailableError: nobody answers.
        """
        self._wanted.add(name)
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
            self._next_look.add_done_callback(_retrieve)
        await asyncio.shield(self._next_look)
        place = self._streams.get(name)
        if place is None:
            raise NoStreamError(f"there is no stream {name!r}")
        return place

    async def _look(self) -> None:
        """Ask about all streams that are wanted when it is time to ask."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            interval_s = _LOOK_INTERVAL_S * random.uniform(0.75, 1.25)  # noqa: S311 - spreads requests, keeps no secret
            await asyncio.sleep(self._looked_s + interval_s - loop.time())
            names, self._wanted, self._next_look = sorted(self._wanted), set(), None
            self._looked_s = loop.time()
            await self.refresh(names, min(self._timeout_s, _LOOK_TIMEOUT_S))

    @property
    def node_ids(self) -> list[str]:
        """The nodes, as far as is known."""
        return list(self._nodes)

    def node(self, node_id: str) -> NodeAddress | None:
        """Where a node is, as far as is known."""
        return self._nodes.get(node_id)

    async def storing(self, subject: str, *, fresh: bool = False) -> list[StreamPlace]:
        """The streams that store a subject."""
        known = [place for place in self._streams.values() if matches(place.config.subject, subject)]
        if known and not fresh:
            return known
        found = await self.request("STREAM.FIND", {"subject": subject})
        names = [stream["name"] for stream in found["streams"]]
        for place in known:
            self.forget(place.name)
        missing = [name for name in names if name not in self._streams]
        if missing:
            await self.refresh(missing)
        return [self._streams[name] for name in names if name in self._streams]

    async def overlapping(self, pattern: str) -> dict[str, str]:
        """The streams that store any subject of a pattern, and what each of them stores.

        Raises:
            AdminError: an older node is asked for more than one subject.
            NodeUnavailableError: nobody answers.
        """
        found = await self.request("STREAM.FIND", {"subject": pattern})
        return {stream["name"]: stream.get("subject", pattern) for stream in found["streams"]}

    def forget(self, name: str) -> None:
        """Ask about a stream again when it is needed: it was changed."""
        self._streams.pop(name, None)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Whoever asked hears of the error; when all of them were cancelled, nobody needs to."""
    if not task.cancelled():
        task.exception()


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"an argument cannot be sent to the node: {error}") from None


def _decode(data: bytes, subject: str) -> dict[str, Any]:
    try:
        answer = read_json(data, items_max=ADMIN_ANSWER_ITEMS_MAX)
    except UnpackError:
        answer = None
    if not isinstance(answer, dict):
        raise NodeUnavailableError(f"what answers {subject} is no liftpy node: {data[:80]!r}")
    return answer


def is_passing(code: ErrorCode) -> bool:
    """Whether an error means that the partition is elsewhere, or a moment away, and asking again helps.

    A restart changes a node's token, and whoever told of the old one may have been behind.
    """
    return code.retriable or code in {ErrorCode.STALE_EPOCH, ErrorCode.UNAUTHENTICATED}
