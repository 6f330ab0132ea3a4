"""Where streams and their leaders are: asked over NATS, remembered, and asked again when it turns out to be old."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, NoRespondersError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError, NoStreamError, UsageError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.pull import PartitionKey, error_code
from liftpy_envelope.stream_config import StreamConfig
from liftpy_envelope.subject import matches

if TYPE_CHECKING:
    from nats.aio.client import Client

__all__ = ["Cluster", "NodeAddress", "StreamPlace"]


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node's pull server, and what it admits us by."""

    node_id: str
    host: str
    port: int
    tls: bool
    token: str


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A stream and the leaders of its partitions."""

    uuid: bytes
    config: StreamConfig
    leaders: tuple[str | None, ...]

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    def key(self, partition: int) -> PartitionKey:
        """The key of one partition."""
        return PartitionKey(self.uuid, partition)


class Cluster:
    """See the module.

    Args:
        nats: an open connection.
        timeout_s: for requests.
    """

    def __init__(self, nats: Client, timeout_s: float) -> None:
        self._nats = nats
        self._timeout_s = timeout_s
        self._nodes: dict[str, NodeAddress] = {}
        self._streams: dict[str, StreamPlace] = {}

    async def request(self, endpoint: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """One admin request.

        Raises:
            AdminError: it was refused.
            NodeUnavailableError: no node answers.
            DisconnectedError: the connection to NATS is closed.
        """
        timeout = self._timeout_s if timeout_s is None else timeout_s
        subject = f"LIFT.API.{endpoint}"
        try:
            reply = await self._nats.request(subject, _encode(body), timeout=timeout)
        except NoRespondersError:
            raise NodeUnavailableError("NATS is there, but no liftpy node answers: is one running?") from None
        except NatsTimeoutError:
            if not self._nats.is_connected:
                raise NodeUnavailableError("the connection to NATS is lost, and is being set up again") from None
            raise NodeUnavailableError(f"no liftpy node answered {subject} within {timeout:g} s") from None
        except (ConnectionClosedError, ConnectionDrainingError):
            raise DisconnectedError("the connection to NATS is closed") from None
        except MaxPayloadError:
            raise UsageError(f"the request is larger than NATS takes ({self._nats.max_payload} bytes)") from None
        except NatsError as error:
            raise NodeUnavailableError(f"NATS does not take {subject}: {error}") from error
        answer = _decode(reply.data, subject)
        refusal = answer.get("error")
        if refusal is not None:
            raise AdminError(error_code(int(refusal["err_code"])), str(refusal["description"]))
        return answer

    async def refresh(self, names: list[str] | None = None) -> None:
        """Ask where things are now.

        Args:
            names: the streams wanted; None for all.
        """
        answer = await self.request("METADATA", {"streams": names})
        self._nodes = {
            node["node_id"]: NodeAddress(
                node["node_id"], node["pull_host"], node["pull_port"], node["pull_tls"], node["pull_token"]
            )
            for node in answer["nodes"]
        }
        if names is None:
            self._streams.clear()
        for name in names or ():
            self._streams.pop(name, None)
        for stream in answer["streams"]:
            leaders = tuple(partition["leader"] for partition in stream["partitions"])
            config = StreamConfig.from_plain(stream["config"])
            self._streams[config.name] = StreamPlace(bytes.fromhex(stream["uuid"]), config, leaders)

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

    def forget(self, name: str) -> None:
        """Ask about a stream again when it is needed: it was changed."""
        self._streams.pop(name, None)


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"an argument can not be sent to the node: {error}") from None


def _decode(data: bytes, subject: str) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NodeUnavailableError(f"what answers {subject} is no liftpy node: {data[:80]!r}")
    return answer


def is_stale(code: ErrorCode) -> bool:
    """Whether an error means that the partition is elsewhere, or a moment away, and asking again helps."""
    return code.retriable or code is ErrorCode.STALE_EPOCH
