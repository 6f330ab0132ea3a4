"""What the groups of one partition of their stream have committed: the newest value of every key.

A coordinator fills it from the log when it becomes one, and keeps it from then on, ahead of the log by what is not
committed there yet. Values stay as they are in the log and are decoded when somebody asks, so that a million of them
is filled in within a second and costs little more memory than its bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import BatchVersionError
from liftpy_envelope.pull import PartitionKey
from liftpy_server.groups.core.records import (
    OFFSET_KEY_AT,
    OFFSET_VERSION,
    TOKEN_AT,
    GroupRecord,
    decode_offset,
    offset_key,
    offset_suffix,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from liftpy_server.groups.core.records import CommittedOffset

__all__ = ["CommitToken", "OffsetTable"]

_TOKEN: Final = struct.Struct("<qq")
_TIME: Final = struct.Struct("<q")
_TIME_AT: Final = 16
_ENTRY_BYTES: Final = 100  # that an offset takes in memory beside its value, about


class CommitToken(NamedTuple):
    """Orders the commits of one partition: of two the greater one is the later one, whoever made it."""

    generation: int
    sequence: int


class OffsetTable:
    """Committed offsets in one partition of `__consumer_offsets`. Times are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._groups: dict[bytes, dict[bytes, bytes]] = {}
        self._sizes: dict[bytes, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def groups(self) -> list[str]:
        """Names of the groups that have committed something."""
        return [group.decode() for group in self._groups]

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record, in the order of the log.

        Raises:
            BatchVersionError: a newer liftpy wrote it.
        """
        self.apply_many(((key, value),))

    def apply_many(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take records with keys of offsets, in the order of the log.

        Raises:
            BatchVersionError: a newer liftpy wrote one of them.
        """
        groups, sizes = self._groups, self._sizes
        last_name, last = None, None
        for key, value in records:
            name = key[OFFSET_KEY_AT:]
            if name != last_name or last is None:
                last_name, last = name, groups.setdefault(name, {})
                sizes.setdefault(name, 0)
            suffix = key[1:OFFSET_KEY_AT]
            before = last.get(suffix)
            if value is None:
                if before is not None:
                    del last[suffix]
                    sizes[name] -= len(before) + _ENTRY_BYTES
                if not last:
                    del groups[name], sizes[name]
                    last = None
            elif value[0] == OFFSET_VERSION:
                last[suffix] = value
                sizes[name] += len(value) - len(before) if before is not None else len(value) + _ENTRY_BYTES
            else:
                raise BatchVersionError(
                    f"a committed offset has version {value[0]}; this liftpy reads version {OFFSET_VERSION}: "
                    "upgrade the node"
                )

    def find(self, group: bytes, key: PartitionKey) -> CommittedOffset | None:
        """What a group has committed for a partition."""
        offsets = self._groups.get(group)
        value = None if offsets is None else offsets.get(offset_suffix(key))
        return None if value is None else decode_offset(value)

    def token(self, group: bytes, suffix: bytes) -> tuple[int, int] | None:
        """The token of what a group has committed for the partition with this key suffix, as a plain pair."""
        offsets = self._groups.get(group)
        value = None if offsets is None else offsets.get(suffix)
        if value is None:
            return None
        generation, sequence = _TOKEN.unpack_from(value, TOKEN_AT)
        return generation, sequence

    def of_group(self, group: str) -> Iterator[tuple[PartitionKey, CommittedOffset]]:
        """Everything a group has committed."""
        for suffix, value in self._groups.get(group.encode(), {}).items():
            yield _partition(suffix), decode_offset(value)

    def newest_ns(self, group: str) -> int | None:
        """When a group last committed something; None when it never did."""
        values = self._groups.get(group.encode())
        return max(_TIME.unpack_from(value, _TIME_AT)[0] for value in values.values()) if values else None

    def tombstones(self, group: str) -> list[GroupRecord]:
        """Records that delete everything a group has committed."""
        name = group.encode()
        return [GroupRecord(offset_key(name, suffix), None) for suffix in self._groups.get(name, ())]

    def tombstones_of_streams(self, group: str, uuids: AbstractSet[bytes]) -> list[GroupRecord]:
        """Records that delete what a group has committed for streams that are no more."""
        name = group.encode()
        return [
            GroupRecord(offset_key(name, suffix), None) for suffix in self._groups.get(name, ()) if suffix[:16] in uuids
        ]

    def streams_of(self, group: str) -> set[bytes]:
        """Uuids of the streams that a group has committed something for."""
        return {suffix[:16] for suffix in self._groups.get(group.encode(), ())}

    def has(self, group: str) -> bool:
        """Whether a group has committed something."""
        return group.encode() in self._groups

    def size_bytes(self, group: str) -> int:
        """What a group has committed, in bytes."""
        return self._sizes.get(group.encode(), 0)

    def growth(self, group: str, rows: Iterable[tuple[bytes, int]]) -> int:
        """How many bytes the table would grow by.

        Args:
            group: Name of the group.
            rows: Key suffixes, and how long their values would be.
        """
        offsets = self._groups.get(group.encode(), {})
        more = 0
        for suffix, size in rows:
            before = offsets.get(suffix)
            more += size - len(before) if before is not None else size + _ENTRY_BYTES
        return more

    @property
    def total_bytes(self) -> int:
        """What all groups have committed."""
        return sum(self._sizes.values())

    def count(self, group: str) -> int:
        """Number of partitions for which a group has committed offsets."""
        return len(self._groups.get(group.encode(), ()))


def _partition(suffix: bytes) -> PartitionKey:
    return PartitionKey(suffix[:16], int.from_bytes(suffix[16:], "big"))
