"""Batches of ordered producers: of each producer, a partition stores ascending epochs and sequences only.

So each batch of a producer for a partition is sent when the one before it is acknowledged: if a batch was lost and its
successor stored, the lost one would count as a duplicate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.errors import UsageError
from liftpy_client.publisher.delivery import RETRIABLE, BatchParcel
from liftpy_client.publisher.outgoing import OutgoingBatch
from liftpy_client.publisher.routes import find_route
from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.headers import check_record_headers, encode_header_block

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_client.connection.session import Session
    from liftpy_client.publisher.ack_inbox import AckInbox
    from liftpy_client.publisher.resender import Resender
    from liftpy_client.publisher.routes import Route

__all__ = ["OrderedDelivery", "OrderedOutput", "OrderedSource"]

BATCH_BYTES: Final = 64 * 1024
"""Outputs of one subject in a row are sent together up to this size. It is part of the protocol: if a handler is called
again, by whatever version, the same outputs must be in the same batches."""

_ENVELOPE_BYTES: Final = 4_096  # room for everything in a payload that is not records
_RECORD_OVERHEAD_BYTES: Final = 16
_INDEX_BITS: Final = 16
_OFFSET_END: Final = 2 ** (63 - _INDEX_BITS)
_ACK_TIMEOUT_S: Final = 5.0
_DELIVERY_TIMEOUT_S: Final = 60.0


class OrderedSource(NamedTuple):
    """What outputs are made of: a message, and who makes them.

    Attributes:
        producer_id: 16 bytes.
        epoch: Leader epoch of the message.
        offset: Its offset.
    """

    producer_id: bytes
    epoch: int
    offset: int


class OrderedOutput(NamedTuple):
    """One output."""

    subject: str
    stream: str | None
    value: bytes | None
    key: bytes | None
    headers: bytes | None

    @property
    def size(self) -> int:
        """Approximate bytes on the wire."""
        return len(self.value or b"") + len(self.key or b"") + len(self.headers or b"") + _RECORD_OVERHEAD_BYTES


def header_block(headers: Mapping[str, str | Sequence[str]] | None) -> bytes | None:
    """Headers as they are stored.

    Raises:
        HeaderError: one cannot be written, or asks for what a batch cannot do.
    """
    if not headers:
        return None
    block = encode_header_block(headers)
    check_record_headers(block)
    return block


class OrderedDelivery:
    """Delivers outputs.

    Args:
        session: Connections and the cluster's metadata.
        inbox: Subscription on which acks arrive.
        resender: Sends batches until they are acknowledged.
    """

    def __init__(self, session: Session, inbox: AckInbox, resender: Resender) -> None:
        self._session = session
        self._inbox = inbox
        self._resender = resender

    async def deliver(self, source: OrderedSource, outputs: Sequence[OrderedOutput]) -> None:
        """Send the outputs of a message, and return when all of them are acknowledged by all in-sync replicas.

        Nothing is sent if one of them cannot be.

        Raises:
            NoStreamError: No stream stores a subject.
            UsageError: An output is too large, or there are too many.
            LiftError: A batch was refused for good, or the time for its delivery is over.
        """
        by_partition = await self._divide(outputs)
        if any(len(batches) > 1 << _INDEX_BITS for batches in by_partition) or source.offset >= _OFFSET_END:
            raise UsageError(f"a message has at most {1 << _INDEX_BITS} batches of outputs in a partition")
        await self._inbox.open()
        ends = await asyncio.gather(
            *(self._deliver(source, batches) for batches in by_partition), return_exceptions=True
        )
        for end in ends:
            if end is not None:
                raise end

    async def _divide(self, outputs: Sequence[OrderedOutput]) -> list[list[OutgoingBatch]]:
        """The batches of each partition, in order."""
        divided: dict[tuple[str, int | None], list[OutgoingBatch]] = {}
        routes: dict[tuple[str, str | None], Route] = {}
        loop = asyncio.get_running_loop()
        for output in outputs:
            place = output.subject, output.stream
            route = routes.get(place)
            if route is None:
                route = routes[place] = await find_route(self._session.cluster, *place)
            partition = route.partition(output.key)
            batches = divided.setdefault((route.config.name, partition), [])
            last = batches[-1] if batches else None
            if last is None or last.route.subject != output.subject or last.size + output.size > BATCH_BYTES:
                last = OutgoingBatch(route, partition, loop.create_future(), BATCH_BYTES)
                batches.append(last)
            last.values.append(output.value)
            last.keys.append(output.key)
            last.headers.append(output.headers)
            last.count += 1
            last.size += output.size
            self._check_size(last, route)
        return list(divided.values())

    def _check_size(self, batch: OutgoingBatch, route: Route) -> None:
        limit = min(self._session.nats.max_payload - _ENVELOPE_BYTES, route.config.message_bytes_max)
        if batch.size > limit:
            what = "an output" if batch.count == 1 else "outputs that are sent together, up to 64 KiB,"
            raise UsageError(
                f"{what} for {route.subject!r} of {batch.size} bytes exceed the limit of {limit}: max_payload of the "
                f"NATS server, or message_bytes_max of stream {route.config.name!r}"
            )

    async def _deliver(self, source: OrderedSource, batches: Sequence[OutgoingBatch]) -> None:
        for index, batch in enumerate(batches):
            sequence = source.offset << _INDEX_BITS | index
            parcel = BatchParcel(batch, source.producer_id, sequence, AckPolicy.ALL, source.epoch + 1)
            await self._resender.deliver(
                parcel,
                batch.route.config.name,
                retry_after_s=_ACK_TIMEOUT_S,
                timeout_s=_DELIVERY_TIMEOUT_S,
                retriable=RETRIABLE,
                is_ordered=True,
            )
