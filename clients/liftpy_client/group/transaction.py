"""Outputs of a message that are stored once, however often the message is handled.

Outputs wait until the handler has ended well, and are then sent. They carry who made them, a group, of what, a message
of a source partition, as an ordered producer: a partition stores them once, and never after those of a later message.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from liftpy_client.errors import UsageError
from liftpy_client.publisher.delivery import as_bytes
from liftpy_client.publisher.ordered import OrderedOutput, OrderedSource, header_block
from liftpy_envelope.subject import check_literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_client.publisher.ordered import OrderedDelivery
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Transaction", "check_run", "producer_id"]

_BYTES_MAX: Final = 64 * 1024 * 1024
_OUTPUT_BYTES: Final = 300  # of memory, beside value, key and headers
_RUN_BYTES_MAX: Final = 255


def producer_id(group: str, key: PartitionKey, run: str) -> bytes:
    """The id of what a group makes of a source partition.

    Args:
        group: Name of the group.
        key: The source partition.
        run: What tells this processing of the source from others by the same group.
    """
    hasher = hashlib.blake2b(digest_size=16, person=b"liftpy outputs")
    for part in (group.encode(), key.uuid, key.partition.to_bytes(4, "big"), run.encode()):
        hasher.update(len(part).to_bytes(2, "big") + part)
    return hasher.digest()


def check_run(run: str) -> str:
    """Return the name of a run.

    Raises:
        UsageError: It cannot be one.
    """
    given: object = run
    if not isinstance(given, str) or len(given.encode()) > _RUN_BYTES_MAX:
        raise UsageError(f"run: {given!r:.60} is not a string of at most {_RUN_BYTES_MAX} bytes")
    return run


class Transaction:
    """The outputs of one message.

    Args:
        delivery: Sends them.
        producer: Id of the group and source partition.
        epoch: Leader epoch of the message.
        offset: Offset of the message.

    Attributes:
        size: Approximate bytes of memory.
    """

    def __init__(self, delivery: OrderedDelivery, producer: bytes, epoch: int, offset: int) -> None:
        self._delivery = delivery
        self._source = OrderedSource(producer, epoch, offset)
        self._outputs: list[OrderedOutput] = []
        self._is_open = True
        self.size = 0

    def __len__(self) -> int:
        return len(self._outputs)

    def publish(
        self,
        subject: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        stream: str | None = None,
    ) -> None:
        """Add an output. It is sent when the block, or the handler, has ended without an exception.

        Args:
            subject: A literal subject that a stream stores.
            value: Payload. None is a tombstone.
            key: Key of the record.
            headers: NATS headers. One with several values has a list of them.
            stream: Stream whose ack counts, where several store the subject.

        Raises:
            UsageError: The value or key is not bytes, the outputs exceed 64 MiB, or the transaction is over.
            SubjectInvalidError: The subject cannot be one.
            HeaderError: A header cannot be written, or asks for what a batch cannot do.
        """
        if not self._is_open:
            raise UsageError("this transaction is over: publish inside its block, before the handler returns")
        check_literal(subject)
        output = OrderedOutput(subject, stream, as_bytes("value", value), as_bytes("key", key), header_block(headers))
        size = self.size + output.size + _OUTPUT_BYTES
        if size > _BYTES_MAX:
            raise UsageError(f"the outputs of one message exceed {_BYTES_MAX} bytes")
        self.size = size
        self._outputs.append(output)

    def end(self) -> None:
        """Take no more outputs."""
        self._is_open = False

    async def send(self) -> None:
        """Send the outputs, and return when all of them are acknowledged.

        Raises:
            LiftError: See `OrderedDelivery.deliver`. Sending again stores nothing twice.
        """
        self.end()
        if self._outputs:
            await self._delivery.deliver(self._source, self._outputs)
