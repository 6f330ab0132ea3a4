"""What the consumer of a group has, where it is in that, and how to move it; as for a consumer without a group.

Only partitions that it has at the moment can be steered, from when `on_assigned` is told of them. What was said of a
partition ends when it goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from liftpy_client.consumer.positions import check_start
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import UsageError
from liftpy_client.group.ahead import Ahead
from liftpy_envelope.pull import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.assigned import AssignedConsumer
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.group.member import GroupMember

__all__ = ["GroupSteering"]


class GroupSteering:
    """See the module.

    Args:
        session: connections and the cluster's metadata.
        streams: names of the streams that are consumed.
        options: how to fetch.
    """

    def __init__(self, session: Session, streams: tuple[str, ...], options: ConsumeOptions) -> None:
        self._session = session
        self._streams = streams
        self._options = options
        self._member: GroupMember | None = None
        self._ahead = Ahead()
        self._assigned: AssignedConsumer | None = None

    # -- what it has

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """The partitions it has, as pairs of stream and number."""
        member = self._member
        return [] if member is None else sorted((member.names[key.uuid], key.partition) for key in member.owned)

    @property
    def generation(self) -> int:
        """Of the assignment; it grows with every change of it. 0 before the first one."""
        return 0 if self._member is None else self._member.generation

    @property
    def member_id(self) -> str:
        """Given by the coordinator; "" while it is no member."""
        return "" if self._member is None else self._member.member_id

    def find_key(self, stream: str, partition: int) -> PartitionKey | None:
        """The key of a partition, if this consumer has it."""
        member = self._member
        named = {} if member is None else {uuid for uuid, name in member.names.items() if name == stream}
        keys = (PartitionKey(uuid, partition) for uuid in named)
        return next((key for key in keys if member is not None and key in member.owned), None)

    # -- where it is

    def position(self, partition: int = 0, *, stream: str | None = None) -> int:
        """The offset after the last message that was handed out.

        Raises:
            UsageError: it does not read the partition at the moment.
        """
        name = self._stream(stream)
        (key,) = self._keys(name, [partition])
        said = self._ahead.find(key)
        offset = self._reader.position(name, key.uuid, partition) if said is None else said.offset
        if offset is None:
            raise UsageError(f"partition {partition} of stream {name} is not being read yet")
        return offset

    def lag(self, *, stream: str | None = None) -> dict[int, int]:
        """By partition that it has, how many offsets are committed beyond what was handed out, as nodes said last.

        Raises:
            UsageError: there is no such stream.
        """
        name = self._stream(stream)
        return {number: lag for (of, _, number), lag in self._reader.lag().items() if of == name}

    # -- where it goes

    def seek(self, offset: int | Mapping[int, int], *, stream: str | None = None) -> None:
        """Go on at an offset, back or forth, in partitions that it has. What is finished is committed from there on.

        Args:
            offset: the next one wanted, of every partition that it has, or by partition.
            stream: which; needed only when several are consumed.

        Raises:
            UsageError: there is no such offset or stream, or it does not have the partition.
        """
        name = self._stream(stream)
        wanted = offset if isinstance(offset, Mapping) else {key.partition: offset for key in self._of_stream(name)}
        check_start(wanted)
        for key in self._keys(name, list(wanted)):
            if self._ahead.has(key):
                self._ahead.seek(key, wanted[key.partition])
            else:
                self._reader.seek(name, key.uuid, key.partition, wanted[key.partition])

    async def seek_to_time(
        self, when: datetime, *, partitions: Sequence[int] | None = None, stream: str | None = None
    ) -> None:
        """Go on at the first message that is not older than a time, which has a time zone.

        Args:
            when: the time; after that of the last message, the end.
            partitions: which; by default all that it has.
            stream: which; needed only when several are consumed.

        Raises:
            UsageError: the time has no time zone, or it does not have the partition, or no more when that is found.
            LiftError: nobody can tell.
        """
        check_start(when)
        name = self._stream(stream)
        numbers = [key.partition for key in self._keys(name, partitions)]
        _, found = await StartFinder(self._session, when, None, numbers, self._options).find(name)
        self.seek({number: position.offset for number, position in found.items()}, stream=name)

    def pause(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Hand out nothing of some partitions, by default all that it has, until `resume` or until they go elsewhere.

        Raises:
            UsageError: there is no such stream, or it does not have the partition.
        """
        for name, key in self._steered(partitions, stream):
            if self._ahead.has(key):
                self._ahead.pause(key, is_paused=True)
            else:
                self._reader.pause(name, key.uuid, [key.partition])

    def resume(self, partitions: Sequence[int] | None = None, *, stream: str | None = None) -> None:
        """Go on with partitions that were paused, where they were.

        Raises:
            UsageError: there is no such stream, or it does not have the partition.
        """
        for name, key in self._steered(partitions, stream):
            if self._ahead.has(key):
                self._ahead.pause(key, is_paused=False)
            else:
                self._reader.resume(name, key.uuid, [key.partition])

    @property
    def _reader(self) -> AssignedConsumer:
        if self._assigned is None:
            raise UsageError("this consumer has not begun: enter it with `async with`, or iterate it first")
        return self._assigned

    def _steered(self, partitions: Sequence[int] | None, stream: str | None) -> list[tuple[str, PartitionKey]]:
        names = self._streams if stream is None and partitions is None else (self._stream(stream),)
        return [(name, key) for name in names for key in self._keys(name, partitions)]

    def _stream(self, stream: str | None) -> str:
        if stream is None and len(self._streams) == 1:
            return self._streams[0]
        if stream not in self._streams:
            raise UsageError(f"stream: {stream!r} is not one of those that are consumed: {', '.join(self._streams)}")
        return stream

    def _of_stream(self, stream: str) -> list[PartitionKey]:
        member = self._member
        return [] if member is None else sorted(key for key in member.owned if member.names[key.uuid] == stream)

    def _keys(self, stream: str, partitions: Collection[int] | None) -> list[PartitionKey]:
        here = {key.partition: key for key in self._of_stream(stream)}
        if partitions is None:
            return list(here.values())
        missing = [number for number in partitions if number not in here]
        if missing:
            raise UsageError(f"partition {missing[0]} of stream {stream} is not this consumer's at the moment")
        return [here[number] for number in partitions]
