"""A message as a consumer delivers it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from liftpy_envelope.headers import Headers

__all__ = ["Message"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One record of a stream.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        offset: Position in the partition.
        timestamp_ns: Time at which the node stored the message, in ns since the epoch.
        subject: NATS subject on which it was published.
        key: Key of the record, or None.
        value: Payload. None is a tombstone.
        header_block: NATS header block as it was received, or None.
    """

    __slots__ = ("header_block", "key", "offset", "partition", "stream", "subject", "timestamp_ns", "value")

    def __init__(
        self,
        stream: str,
        partition: int,
        offset: int,
        timestamp_ns: int,
        subject: str,
        key: bytes | None,
        header_block: bytes | None,
        value: bytes | None,
    ) -> None:
        self.stream = stream
        self.partition = partition
        self.offset = offset
        self.timestamp_ns = timestamp_ns
        self.subject = subject
        self.key = key
        self.header_block = header_block
        self.value = value

    @property
    def timestamp(self) -> datetime:
        """Time at which the node stored the message, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1_000)

    @property
    def headers(self) -> Headers:
        """NATS headers, with the first value of each; empty if it had none. `get_all` has all values of a header."""
        return Headers(self.header_block)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.stream, self.partition, self.offset))

    def __repr__(self) -> str:
        value = None if self.value is None else self.value[:40]
        return f"Message({self.stream}[{self.partition}] offset={self.offset} subject={self.subject!r} value={value!r})"
