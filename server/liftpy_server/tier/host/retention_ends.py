"""How far the leaders of partitions that are followed here have come with the bucket.

A follower drops nothing that the bucket does not have. It asks only where something is to be dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_envelope.errors import LiftError
    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.metadata.state import MetadataState

__all__ = ["ENDS_MAX", "LeaderEnds", "Requests"]

ENDS_MAX = 5_000
"""Partitions in one question: their names fit into what a NATS server takes."""
_TIMEOUT_S = 2.0


class Requests(Protocol):
    """Asks other nodes; see `requests.between_nodes.NodeRequests`."""

    async def ask_all(
        self, nodes: list[str], endpoint: str, body: dict[str, Any], timeout_s: float
    ) -> Mapping[str, dict[str, Any] | LiftError]:
        """Ask several nodes the same."""


class LeaderEnds:
    """How far leaders have come with the bucket, as they said last."""

    def __init__(self) -> None:
        self._known: dict[PartitionKey, int] = {}
        self._wanted: dict[PartitionKey, None] = {}

    def of(self, key: PartitionKey, wanted: int) -> int:
        """The bucket has everything below this offset, as far as is known; asked for where `wanted` lies above."""
        known = self._known.get(key, 0)
        if wanted > known:
            self._wanted[key] = None
        return known

    async def ask(self, state: MetadataState, requests: Requests) -> None:
        """Ask the leaders of what is wanted; those that are silent are asked when it is wanted again."""
        wanted, self._wanted = self._wanted, {}
        if not wanted:
            return
        streams = {stream.uuid: stream for stream in state.streams.values()}
        self._known = {key: end for key, end in self._known.items() if key.uuid.hex() in streams}
        by_leader: dict[str, list[PartitionKey]] = {}
        for key in wanted:
            stream = streams.get(key.uuid.hex())
            leader = None if stream is None else stream.partitions[key.partition].leader
            if leader is not None:
                by_leader.setdefault(leader, []).append(key)
        for leader, keys in by_leader.items():
            asked = keys[:ENDS_MAX]
            body = {"partitions": [f"{key.uuid.hex()}/{key.partition}" for key in asked]}
            answer = (await requests.ask_all([leader], "TIER.ENDS", body, _TIMEOUT_S))[leader]
            if isinstance(answer, dict):
                for key, end in zip(asked, answer["ends"], strict=True):
                    self._known[key] = max(end, self._known.get(key, 0))
