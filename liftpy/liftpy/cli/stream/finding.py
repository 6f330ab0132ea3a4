"""Finds single messages and keys of a stream, and counts its subjects.

Nodes keep no index by subject. They filter what they send, and read from where they are told: a search for the last
message of a subject reads backwards, in windows that grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy.cli.stream.replicas import end_of
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftpy_client.admin.details import PartitionDetails
    from liftpy_client.client import Lift
    from liftpy_client.consumer.positions import Start
    from liftpy_client.message import Message

__all__ = ["KEYS_MAX", "SUBJECTS_MAX", "SubjectCount", "count_subjects", "keys_on", "last_message", "message_at"]

KEYS_MAX: Final = 1_000_000
SUBJECTS_MAX: Final = 100_000
_WINDOW: Final = 1_000
_WINDOW_GROWTH: Final = 8


def _ends(stream: str, part: PartitionDetails) -> tuple[int, int]:
    end = end_of(stream, part)
    return end if part.log_start is None else part.log_start, end


async def message_at(lift: Lift, stream: str, offset: int, partition: int | None) -> Message:
    """Return the message at an offset.

    Args:
        lift: The connection.
        stream: Name of the stream.
        offset: Of the message.
        partition: Its partition; None in a stream that has one only.

    Raises:
        UsageError: The partition is missing, or there is no such partition or offset.
        LiftError: Compaction removed the message.
    """
    parts = (await lift.stream_info(stream)).partitions
    if partition is None and len(parts) > 1:
        raise UsageError(f"stream {stream} has partitions 0 to {len(parts) - 1}: name one with --partition")
    number = partition or 0
    if number >= len(parts):
        raise UsageError(f"stream {stream} has partitions 0 to {len(parts) - 1}, not {number}")
    start, end = _ends(stream, parts[number])
    if not start <= offset < end:
        there = f"choose {start} to {end - 1}" if start < end else "the partition is empty"
        raise UsageError(f"stream {stream} partition {number}: offset {offset} is out of range; {there}")
    async with lift.consume(stream, start={number: offset}, stop=offset + 1, partitions=[number]) as messages:
        async for message in messages:
            return message
    raise LiftError(f"stream {stream} partition {number}: compaction removed the message at offset {offset}")


async def last_message(lift: Lift, stream: str, subject: str) -> Message | None:
    """Return the last message of a subject, which may have wildcards; None if the stream has none.

    In a stream with several partitions, it is the one with the latest timestamp.
    """
    found: Message | None = None
    details = await lift.stream_info(stream)
    newest = {part["partition"]: part.get("last_timestamp_ns") or 0 for part in details.raw["partitions"]}
    for part in sorted(details.partitions, key=lambda each: newest[each.partition], reverse=True):
        start, upper = _ends(stream, part)
        if found is not None and newest[part.partition] < found.timestamp_ns:
            break
        window = _WINDOW
        last: Message | None = None
        while last is None and upper > start:
            lower = max(start, upper - window)
            last = await _last_between(lift, stream, part.partition, lower, upper, subject)
            upper, window = lower, window * _WINDOW_GROWTH
        if last is not None and (found is None or last.timestamp_ns > found.timestamp_ns):
            found = last
    return found


async def _last_between(lift: Lift, stream: str, number: int, lower: int, upper: int, subject: str) -> Message | None:
    last = None
    consumer = lift.consume(stream, start={number: lower}, stop=upper, partitions=[number], subjects=subject)
    async with consumer as messages:
        async for message in messages:
            last = message
    return last


class SubjectCount(NamedTuple):
    """What a stream has of one subject.

    Attributes:
        messages: Number of messages.
        bytes: Size of their values.
        partition: Partition of the last one.
        offset: Its offset.
        timestamp_ns: When it was stored.
    """

    messages: int
    bytes: int
    partition: int
    offset: int
    timestamp_ns: int


async def count_subjects(lift: Lift, stream: str, pattern: str | None, start: Start) -> dict[str, SubjectCount]:
    """Read a stream to its end, and count the messages of each subject.

    Args:
        lift: The connection.
        stream: Name of the stream.
        pattern: Count only subjects that match it; None for all.
        start: Where to begin.

    Raises:
        UsageError: There are more than 100,000 subjects.
    """
    counts: dict[str, SubjectCount] = {}
    async with lift.consume_batches(stream, start=start, stop="latest", subjects=pattern) as batches:
        async for batch in batches:
            _add(counts, batch)
            if len(counts) > SUBJECTS_MAX:
                raise UsageError(f"there are more than {SUBJECTS_MAX:,} subjects: name a pattern, or a later --start")
    return counts


def _add(counts: dict[str, SubjectCount], batch: pa.RecordBatch) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    partition = batch.column("partition")[0].as_py()
    plain = {name: batch.column(name) for name in ("subject", "offset")}
    sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0)
    table = pa.table(plain | {"timestamp": batch.column("timestamp").cast(pa.int64()), "size": sizes})
    wanted = [("offset", "count"), ("size", "sum"), ("offset", "max"), ("timestamp", "max")]
    for row in table.group_by("subject").aggregate(wanted).to_pylist():
        new = SubjectCount(row["offset_count"], row["size_sum"], partition, row["offset_max"], row["timestamp_max"])
        old = counts.get(row["subject"])
        if old is not None:
            newest = new if new.timestamp_ns >= old.timestamp_ns else old
            new = newest._replace(messages=old.messages + new.messages, bytes=old.bytes + new.bytes)
        counts[row["subject"]] = new


async def keys_on(lift: Lift, stream: str, pattern: str) -> list[tuple[bytes, str]]:
    """Read a stream to its end, and find the keys whose last message is on a subject that matches.

    Args:
        lift: The connection.
        stream: Name of the stream.
        pattern: Subject, wildcards included.

    Returns:
        The keys, each with the subject of its last message, without keys that are deleted.

    Raises:
        UsageError: There are more than a million keys.
        SubjectInvalidError: The pattern is no subject.
    """
    from liftpy_client.consumer.filtering import SubjectFilter

    wanted = SubjectFilter(pattern)
    found: dict[tuple[int, bytes], str] = {}  # partitions are compacted one by one
    async with lift.consume_batches(stream, start="earliest", stop="latest") as batches:
        async for batch in batches:
            partition = batch.column("partition")[0].as_py()
            are_deleted = batch.column("value").is_null().to_pylist()
            rows = zip(batch.column("key").to_pylist(), batch.column("subject").to_pylist(), are_deleted, strict=True)
            for key, subject, is_deleted in rows:
                if is_deleted:
                    found.pop((partition, key), None)
                elif key is not None:
                    found[partition, key] = subject
            if len(found) > KEYS_MAX:
                raise UsageError(f"there are more than {KEYS_MAX:,} keys: publish their tombstones from a program")
    return [(key, subject) for (_, key), subject in found.items() if wanted.matches(subject.encode())]
