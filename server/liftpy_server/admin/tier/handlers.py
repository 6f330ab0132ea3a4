"""What admin requests tell of the bucket; any node answers, and asks all of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.gather import NUMBERS_TIMEOUT_S
from liftpy_server.admin.tier.requests import TierStatusRequest, read_tier_ends
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.requests.between_nodes import Body, NodeRequests

__all__ = ["LocalTierHandlers", "TierHandlers", "merged_status"]

_SEVERITY: Final = ("off", "ok", "slow", "busy", "away", "full", "refused")


class TierHandlers:
    """The handlers of one node.

    Args:
        node: This node.
        requests: Asks other nodes.
    """

    def __init__(self, node: NodeParts, requests: NodeRequests) -> None:
        self._node = node
        self._requests = requests

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"TIER.STATUS": self.status}

    async def status(self, body: Body) -> Body:
        """How the bucket is, as all nodes see it. `unreachable` names those that did not tell."""
        request = parse_settings(TierStatusRequest, body)
        state = self._node.metadata.state
        nodes = [node_id for node_id, node in state.nodes.items() if not node.expired] or [self._node.config.node_id]
        answers = await self._requests.ask_all(nodes, "TIER.STATUS", body, NUMBERS_TIMEOUT_S)
        told = {node_id: answer for node_id, answer in answers.items() if isinstance(answer, dict)}
        silent = sorted(node_id for node_id, answer in answers.items() if isinstance(answer, LiftError))
        return merged_status(told, request.limit) | {"unreachable": silent}


def merged_status(told: Mapping[str, Body], limit: int) -> Body:
    """What nodes told, as one answer: the state is that of the node that is worst off.

    Args:
        told: What the nodes told.
        limit: Maximum number of partitions.
    """
    worst_id = max(sorted(told), key=lambda node_id: _SEVERITY.index(told[node_id]["state"]), default=None)
    worst = _OFF if worst_id is None else told[worst_id]
    partitions = [each | {"leader": node_id} for node_id, answer in told.items() for each in answer["partitions"]]
    partitions.sort(
        key=lambda each: (each["trouble"] is None, -each["untiered_bytes"], each["stream"], each["partition"])
    )
    requests: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for answer in told.values():
        requests.update(answer["requests"])
        reads.update(answer.get("read_requests", {}))  # which an older node does not say
        failures.update(answer["failures"])
    rooms = [answer["room_s"] for answer in told.values() if answer["room_s"] is not None]
    with_bucket = (answer for _, answer in sorted(told.items()) if answer["url"] is not None)
    address = next(with_bucket, _OFF)
    return {
        "url": address["url"],
        "endpoint": address.get("endpoint"),  # which an older node does not say, as little as the region
        "region": address.get("region"),
        "state": worst["state"],
        "message": f"node {worst_id}: {worst['message']}" if worst["message"] and len(told) > 1 else worst["message"],
        "since_ns": worst["since_ns"],
        "room_s": min(rooms) if rooms else None,
        **{name: sum(answer.get(name, 0) for answer in told.values()) for name in _SUMS},
        "untiered_age_s": max((answer["untiered_age_s"] for answer in told.values()), default=0.0),
        "requests": dict(requests),
        "read_requests": dict(reads),
        "failures": dict(failures),
        "partitions": partitions[:limit],
        "nodes": {
            node_id: {name: answer[name] for name in ("state", "message", "since_ns", "room_s", "untiered_bytes")}
            for node_id, answer in sorted(told.items())
        },
    }


_SUMS: Final = (
    "partition_count",
    "trouble_count",
    "untiered_bytes",
    "bytes_in",
    "bytes_out",
    "deleted_objects",
    "read_bytes_in",
    "uploads",
)
_OFF: Final[dict[str, Any]] = {
    "url": None,
    "endpoint": None,
    "region": None,
    "state": "off",
    "message": "",
    "since_ns": None,
    "untiered_age_s": 0.0,
    "partitions": [],
    "requests": {},
    "read_requests": {},
    "failures": {},
    "room_s": None,
    **dict.fromkeys(_SUMS, 0),
}


class LocalTierHandlers:
    """What other nodes ask this one about the bucket."""

    def __init__(self, node: NodeParts) -> None:
        self._node = node

    def endpoints(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """Handlers by the last part of their subject."""
        return {"TIER.ENDS": self.ends, "TIER.STATUS": self.status}

    async def status(self, body: Body) -> Body:
        """How the bucket is, as this node sees it."""
        request = parse_settings(TierStatusRequest, body)
        if self._node.tier is None:
            return dict(_OFF)
        await self._node.tier.count_reads()
        return self._node.tier.status(request.limit)

    async def ends(self, body: Body) -> Body:
        """Up to which offsets the bucket surely has partitions that this node leads; 0 of those that it does not."""
        tier = self._node.tier
        if tier is None:
            text = f"node {self._node.config.node_id!r} has no bucket: give all nodes of a cluster the same tier.url"
            raise AdminError(ErrorCode.NOT_AVAILABLE, text)
        return {"ends": [tier.tierer.tiered_end(key) for key in _keys(body)]}


def _keys(body: Body) -> list[PartitionKey]:
    keys = []
    for text in read_tier_ends(body):
        uuid, _, number = text.partition("/")
        try:
            keys.append(PartitionKey(bytes.fromhex(uuid), int(number)))
        except ValueError:
            raise ConfigError("partitions", f"{text!r:.60} is not of the form uuid/number") from None
    return keys
