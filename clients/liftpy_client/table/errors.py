"""What can go wrong with a table, beside what can go wrong with any consumer."""

from __future__ import annotations

from liftpy_envelope.errors import LiftError

__all__ = ["ChangesMissedError", "TableDecodeError", "TableTimeoutError", "TableTooLargeError"]


class TableTooLargeError(LiftError):
    """A table needs more memory than it may have; it is of no use any more.

    Attributes:
        stream: its stream.
        bytes_max: what it may have.
    """

    def __init__(self, stream: str, bytes_max: int, keys: int) -> None:
        super().__init__(
            f"the table of stream {stream} needs more than bytes_max={bytes_max} bytes of memory, with {keys} keys: "
            "pass a larger bytes_max, or partitions=[...] for a part of the stream"
        )
        self.stream = stream
        self.bytes_max = bytes_max


class TableDecodeError(LiftError, ValueError):
    """The `decode` of a table raised; its exception is the cause. Other keys can be read.

    Attributes:
        stream: the table's stream.
        key: whose value it is.
        partition: where the record is.
        offset: where the record is.
    """

    def __init__(self, stream: str, key: bytes, partition: int, offset: int, cause: Exception) -> None:
        shown = f"{key[:60]!r}..." if len(key) > 60 else repr(key)
        super().__init__(
            f"stream {stream} partition {partition} offset {offset}: the value of key {shown} can not be decoded: "
            f"{type(cause).__name__}: {cause}"
        )
        self.stream = stream
        self.key = key
        self.partition = partition
        self.offset = offset


class ChangesMissedError(LiftError):
    """Whoever reads the changes of a table was too slow, and some were dropped.

    The table itself has them all. Read from it what is of interest, and go on with the same iterator: it continues
    with the next change of the table.

    Attributes:
        missed: how many.
    """

    def __init__(self, stream: str, missed: int) -> None:
        super().__init__(
            f"{missed} changes of the table of stream {stream} came faster than they were read, and were dropped; the "
            "table has them all: look there, and go on with the same iterator"
        )
        self.missed = missed


class TableTimeoutError(LiftError, TimeoutError):
    """A table did not get as far as it was to in the time given; it goes on, so waiting longer may help."""
