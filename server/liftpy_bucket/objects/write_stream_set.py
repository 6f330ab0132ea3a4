"""Writes stream-set objects: records of many partitions, a whole Parquet file for each member, one after the other.

    file of a member | file of a member | ... | "LFTC" | crc32c u32 (of what follows) | footer of all | length | "PAR1"

The columns are those of a fragment, replies always among them, behind `stream` (the uuid, 32 hexadecimal digits) and
`partition`. A member is read without the others: the set manifest says where it lies, and its footer has
`liftpy.uuid`, `liftpy.partition`, `liftpy.setsum`, `liftpy.nonce`, `liftpy.hash` and `liftpy.format`. The footer of all
lets any reader of Parquet take the object for one file; it says `liftpy.node` instead of whose the records are, and has
`liftpy.hash` where that of all members is the same.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from liftpy_bucket.layout import slot_of
from liftpy_bucket.objects.joined_footer import JoinedFooter
from liftpy_bucket.objects.parquet import ROW_GROUPS_KEY, ParquetObject, write_footer
from liftpy_bucket.objects.pointers import SetMember, SetObjectPointer, member_order
from liftpy_bucket.objects.rows.schema import conform, row_schema
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.objects.tally import RowsTally
from liftpy_bucket.objects.write import FORMATS, PARTITION_FIELD, ROW_GROUP_BYTES, RowGroupCutter

if TYPE_CHECKING:
    from liftpy_bucket.objects.pointers import Extent
    from liftpy_bucket.objects.record_hash import RecordHash
    from liftpy_bucket.objects.setsum import Setsum
    from liftpy_bucket.objects.sinks import ByteSink

__all__ = ["SetWriter", "WrittenSet"]


class WrittenSet(NamedTuple):
    """A written stream-set object and its members.

    Attributes:
        extent: What must be known to read the object.
        members: Members whose records it holds, in the order in which they began.
    """

    extent: Extent
    members: tuple[SetMember, ...]

    def pointer(self, name: str, members: tuple[SetMember, ...] | None = None) -> SetObjectPointer:
        """What a manifest says of it.

        Args:
            name: Name of the object.
            members: Where these are to be told in other words.
        """
        size, footer, digest, _ = self.extent
        told = self.members if members is None else members
        return SetObjectPointer(name=name, size=size, footer=footer, digest=digest, members=told)


class _Member(NamedTuple):
    uuid: str
    partition: int
    tier_epoch: int
    base: int
    end: int
    parquet: ParquetObject
    cutter: RowGroupCutter
    tally: RowsTally


@cache
def _set_schema() -> pa.Schema:
    return pa.schema(
        [pa.field("stream", pa.string(), nullable=False), PARTITION_FIELD, *row_schema(keeps_replies=True)]
    )


class SetWriter:
    """Writes one stream-set object. It holds one row group of rows at most.

    Args:
        sink: What is written to; it stays open.
        node: Id of the node whose set it is for.
        nonce: Nonce of this attempt.
        row_group_bytes: About how large a row group is, before compression.
    """

    def __init__(self, sink: ByteSink, *, node: str, nonce: str, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        self._sink = sink
        self._node = node
        self._about = {"liftpy.nonce": nonce}
        self._hashes: set[RecordHash] = set()
        self._row_group_bytes = row_group_bytes
        self._size = 0
        self._digests: list[str] = []
        self._joined = JoinedFooter()
        self._members: list[SetMember] = []
        self._member: _Member | None = None

    def begin(
        self, uuid: str, partition: int, tier_epoch: int, base: int, end: int, *, record_hash: RecordHash
    ) -> None:
        """Begin with the next member; they come in the order of `member_order`, and none twice.

        Args:
            uuid: UUID of the stream, 32 hexadecimal digits.
            partition: Number of the partition.
            tier_epoch: Leader epoch of the leader that tiers it.
            base: The first offset that the member answers for.
            end: The offset after the last one.
            record_hash: Hash of the partition.

        Raises:
            ValueError: the member does not follow on the one before.
            OSError: the sink could not take what was left of the one before.
        """
        self._end_member()
        order = (slot_of(uuid, partition), uuid, partition, tier_epoch, base)
        if self._members and member_order(self._members[-1]) >= order:
            raise ValueError(f"partition {uuid}/{partition} is written out of order")
        parquet = ParquetObject(self._sink, _set_schema(), is_alike=False)
        cutter = RowGroupCutter(parquet, self._row_group_bytes)
        self._member = _Member(uuid, partition, tier_epoch, base, end, parquet, cutter, RowsTally(record_hash))
        self._hashes.add(record_hash)

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the next rows of the partition.

        Raises:
            ValueError: they do not follow on those before, or lie outside of the member's range.
            OSError: the sink could not take them.
        """
        member = self._member
        assert member is not None, "a partition begins before it has rows"
        if not rows.num_rows:
            return
        first, last = rows.column("offset")[0].as_py(), rows.column("offset")[-1].as_py()
        if first < member.base or last >= member.end:
            raise ValueError(f"offsets {first} to {last} lie outside of the range from {member.base} to {member.end}")
        rows = conform(rows, keeps_replies=True)
        member.tally.take(rows)
        stream = pa.repeat(pa.scalar(member.uuid, pa.string()), rows.num_rows)
        partition = pa.repeat(pa.scalar(member.partition, pa.int32()), rows.num_rows)
        member.cutter.take(pa.RecordBatch.from_arrays([stream, partition, *rows.columns], schema=_set_schema()))

    @property
    def setsum(self) -> Setsum:
        """Sum of the records of the member that was begun last, so far."""
        return NO_RECORDS if self._member is None else self._member.tally.setsum

    def finish(self) -> WrittenSet:
        """Write what is left, and the footer.

        Raises:
            OSError: the sink could not take it.
        """
        self._end_member()
        about = {
            **self._about,
            **_hashed(self._hashes),
            "liftpy.node": self._node,
            ROW_GROUPS_KEY: ",".join(self._digests),
        }
        extent = write_footer(self._sink, self._joined.finish(about), self._size)
        return WrittenSet(extent, tuple(self._members))

    def _end_member(self) -> None:
        member, self._member = self._member, None
        if member is None:
            return
        member.cutter.cut()
        tally = member.tally
        extent = member.parquet.finish(
            {
                **self._about,
                **_hashed({tally.record_hash}),
                "liftpy.uuid": member.uuid,
                "liftpy.partition": str(member.partition),
                "liftpy.setsum": tally.setsum.hex(),
            }
        )
        self._joined.add(member.parquet.footer, self._size)
        self._digests += member.parquet.digests
        self._members.append(
            SetMember(
                uuid=member.uuid,
                partition=member.partition,
                tier_epoch=member.tier_epoch,
                base=member.base,
                end=member.end,
                records=tally.records,
                extent=extent._replace(start=self._size),
                epochs=tally.epochs,
                first_timestamp=tally.first_timestamp,
                last_timestamp=tally.last_timestamp,
                setsum=tally.setsum,
            )
        )
        self._size += extent.size


def _hashed(hashes: set[RecordHash]) -> dict[str, str]:
    """What a footer says of the hashes of its records."""
    named = {"liftpy.hash": str(*hashes)} if len(hashes) == 1 else {}
    return {**named, "liftpy.format": str(max((FORMATS[each] for each in hashes), default=min(FORMATS.values())))}
