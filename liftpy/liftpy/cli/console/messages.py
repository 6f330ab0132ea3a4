"""Reading a few messages of a stream for a page: from a place on, filtered, bounded in count, size and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from liftpy.cli.units import parse_offset_or_time
from liftpy_client.errors import ConsumerEndedError, OffsetLostError, UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_client.admin.details import StreamDetails
    from liftpy_client.client import Lift
    from liftpy_client.message import Message

__all__ = ["LIMIT_MAX", "Found", "Query", "find_messages", "get_message"]

LIMIT: Final = 50
LIMIT_MAX: Final = 500
LOOKED_AT_MAX: Final = 50_000
_BYTES_MAX: Final = 64 * 1024**2
_WITHIN_S: Final = 5.0
_AT_ONCE: Final = 500
_WORDS: Final = ("newest", "earliest")
_TEXT_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which messages of a stream to show.

    Attributes:
        partition: Its number; None for all.
        place: `newest`, `earliest`, an offset, or a time.
        subject: A subject, which may have wildcards; "" for all.
        key: The key, as text; "" for all.
        contains: What the value contains, as text; "" for all.
        limit: How many to show.
    """

    partition: int | None = None
    place: int | str | datetime = "newest"
    subject: str = ""
    key: str = ""
    contains: str = ""
    limit: int = LIMIT

    @classmethod
    def of_fields(cls, fields: Mapping[str, str], partitions: int, limit_max: int = LIMIT_MAX) -> Query:
        """Read the fields of a form.

        Args:
            fields: Of the form.
            partitions: How many the stream has.
            limit_max: The most that `limit` may be.

        Raises:
            UsageError: A field is wrong.
        """
        given = {name: value.strip() for name, value in fields.items() if value.strip()}
        for name, value in given.items():
            if len(value) > _TEXT_MAX:
                raise UsageError(f"{name}: at most {_TEXT_MAX} characters")
        partition = _number(given, "partition", 0, partitions - 1)
        place = parse_offset_or_time(given.get("from", "newest"), _WORDS, "from")
        if isinstance(place, int) and partition is None:
            if partitions > 1:
                raise UsageError("from: an offset belongs to a partition; choose one")
            partition = 0
        limit = _number(given, "limit", 1, limit_max)
        texts = {name: given.get(name, "") for name in ("subject", "key", "contains")}
        return cls(partition=partition, place=place, limit=LIMIT if limit is None else limit, **texts)

    @property
    def is_filtered(self) -> bool:
        """Whether only some messages are wanted."""
        return bool(self.subject or self.key or self.contains)

    def takes(self, message: Message) -> bool:
        """Whether a message is wanted. The subject is looked at elsewhere."""
        if self.key and message.key != self.key.encode():
            return False
        return not self.contains or self.contains.encode() in (message.value or b"")


def _number(fields: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    if name not in fields:
        return None
    try:
        value = int(fields[name])
    except ValueError:
        raise UsageError(f"{name}: must be a number, not {fields[name]!r:.80}") from None
    if not low <= value <= high:
        raise UsageError(f"{name}: must be between {low} and {high}, not {value}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found.

    Attributes:
        messages: In the order of their times, the newest last.
        looked_at: How many messages were read for it.
        is_whole: All messages from the place on were looked at. If not, a bound of time, size or count was reached.
        next_offset: Of the partition, if there is one: where to go on.
        previous_offset: Where the page before begins; None when there is none.
    """

    messages: list[Message]
    looked_at: int
    is_whole: bool
    next_offset: int | None = None
    previous_offset: int | None = None


async def find_messages(lift: Lift, stream: StreamDetails, query: Query) -> Found:
    """Look for messages.

    Without filters `newest` means the last `limit` messages; with filters the last `LOOKED_AT_MAX` are looked through.

    Raises:
        LiftError: The stream can not be read.
    """
    numbers = [part.partition for part in stream.partitions if query.partition in {None, part.partition}]
    start = _start(stream, query, numbers)
    found = _Kept(query)
    looked_at, is_whole = 0, False
    until_s = asyncio.get_running_loop().time() + _WITHIN_S
    try:
        async with lift.consume(
            stream.name, start=start, stop="latest", partitions=numbers, subjects=query.subject or None
        ) as consumer:
            while looked_at < LOOKED_AT_MAX and not found.is_enough:
                left_s = until_s - asyncio.get_running_loop().time()
                messages = await consumer.next_batch(_AT_ONCE, left_s) if left_s > 0 else []
                if not messages:
                    break
                looked_at += len(messages)
                found.add(messages)
    except ConsumerEndedError:
        is_whole = not found.has_dropped
    messages = found.in_order()
    return Found(
        messages=messages, looked_at=looked_at, is_whole=is_whole, **_neighbours(stream, query, numbers, messages)
    )


class _Kept:
    """The messages that are wanted: the first ones from a place on, or the newest of all that are looked at."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._is_newest = query.place == "newest"
        self._messages: list[Message] = []
        self._bytes = 0
        self.has_dropped = False

    def add(self, messages: list[Message]) -> None:
        for message in messages:
            if self._query.takes(message):
                if self.is_enough:
                    return
                self._messages.append(message)
                self._bytes += len(message.value or b"")
        if self._bytes > _BYTES_MAX and self._is_newest:
            self._messages = self.in_order()
            self._bytes = sum(len(message.value or b"") for message in self._messages)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep to half of the bytes that may be kept, so that this is rare."""
        dropped = 0
        while self._bytes > _BYTES_MAX // 2 and dropped < len(self._messages) - 1:
            self._bytes -= len(self._messages[dropped].value or b"")
            dropped += 1
        del self._messages[:dropped]
        self.has_dropped = self.has_dropped or dropped > 0

    @property
    def is_enough(self) -> bool:
        """Whether no more can be taken."""
        if self._is_newest:
            return False
        return len(self._messages) >= self._query.limit or self._bytes > _BYTES_MAX

    def in_order(self) -> list[Message]:
        """By time."""
        found = sorted(self._messages, key=lambda message: (message.timestamp_ns, message.partition, message.offset))
        return found[-self._query.limit :]


def _start(stream: StreamDetails, query: Query, numbers: list[int]) -> Any:
    if isinstance(query.place, datetime) or query.place == "earliest":
        return query.place
    parts = {part.partition: part for part in stream.partitions}
    starts: dict[int, int] = {}
    back = LOOKED_AT_MAX // len(numbers) if query.is_filtered else query.limit
    for number in numbers:
        first, end = parts[number].log_start, parts[number].high_watermark
        if first is None or end is None:
            raise LiftError(f"stream {stream.name} partition {number}: its leader does not answer")
        if isinstance(query.place, int):
            if not first <= query.place <= end:
                raise UsageError(f"from: offset {query.place} is out of range; partition {number} has {first} to {end}")
            starts[number] = query.place
        else:
            starts[number] = max(first, end - back)
    return starts


def _neighbours(stream: StreamDetails, query: Query, numbers: list[int], found: list[Message]) -> dict[str, int | None]:
    if len(numbers) != 1 or query.is_filtered or not found:
        return {}
    part = next(part for part in stream.partitions if part.partition == numbers[0])
    first, end = part.log_start or 0, part.high_watermark or 0
    begin, after = found[0].offset, found[-1].offset + 1
    return {
        "previous_offset": max(first, begin - query.limit) if begin > first else None,
        "next_offset": after if after < end else None,
    }


async def get_message(lift: Lift, stream: str, partition: int, offset: int) -> Message | None:
    """Return one message; None when there is none at that offset, now or any more.

    Raises:
        LiftError: The stream can not be read, or not soon enough.
    """
    try:
        async with lift.consume(stream, start={partition: offset}, stop="latest", partitions=[partition]) as consumer:
            message = await consumer.next(_WITHIN_S)
    except (ConsumerEndedError, OffsetLostError):
        return None
    if message is None:
        raise LiftError(f"stream {stream} partition {partition}: offset {offset} was not read within {_WITHIN_S:.0f} s")
    return message if message.offset == offset else None
