"""Where a message has to be published so that its stream gets it, and how its ack comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftpy_client.errors import NoStreamError, UsageError
from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import AckMode, Spread
from liftpy_envelope.subject import check_literal, matches

if TYPE_CHECKING:
    from liftpy_client.connection.cluster import Cluster
    from liftpy_envelope.stream_config import StreamConfig

__all__ = ["Route", "find_route", "is_current"]


@dataclass(frozen=True, slots=True)
class Route:
    """How to publish on one subject.

    Attributes:
        subject: Subject, as the publisher says it.
        config: Configuration of the stream whose ack counts.
    """

    subject: str
    config: StreamConfig

    def partition(self, key: bytes | None) -> int | None:
        """The partition of a record, where the stream has several."""
        if self.config.partitions == 1:
            return None
        return partition_of(self.subject.encode() if key is None else key, self.config.partitions)

    def nats_subject(self, partition: int | None) -> str:
        """The subject to publish on."""
        if partition is None or self.config.spread is Spread.HASH:
            return self.subject
        return f"{self.config.partition_prefix}.{partition}.{self.subject}"


def is_current(route: Route, config: StreamConfig) -> bool:
    """Whether a stream, as it is now, is published to as the route says."""
    known = route.config
    return (
        matches(config.subject, route.subject)
        and config.acks is known.acks
        and (config.partitions, config.spread) == (known.partitions, known.spread)
    )


async def find_route(cluster: Cluster, subject: str, stream: str | None, *, fresh: bool = False) -> Route:
    """The route for a subject.

    Args:
        cluster: Knows the streams.
        subject: A literal subject.
        stream: The stream whose ack counts; by default the first that acks.
        fresh: Ask the cluster, whatever is remembered.

    Raises:
        NoStreamError: no stream stores the subject.
        UsageError: the stream sends no acks.
    """
    check_literal(subject)
    places = await cluster.storing(subject, fresh=fresh)
    if not fresh and stream is not None and all(place.name != stream for place in places):
        places = await cluster.storing(subject, fresh=True)
    wanted = [place for place in places if stream in {None, place.name}]
    if not wanted:
        what = f"stream {stream!r} does not store" if stream is not None else "no stream stores"
        raise NoStreamError(f"{what} {subject!r}; create one, or publish with any NATS client")
    acking = [place for place in wanted if place.config.acks is not AckMode.OFF]
    if not acking:
        raise UsageError(f"stream {wanted[0].name!r} sends no acks (acks = off): publish with any NATS client instead")
    return Route(subject, acking[0].config)
