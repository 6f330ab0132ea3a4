"""A partition's history in a bucket in memory, appended fragment by fragment."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.objects.setsum import NO_RECORDS
from liftpy_bucket.store.memory import MemoryStore
from support.tier_rows import UUID, rows_from, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.manifest.root.format import Root
    from support.tier_rows import Record

PATH = PartitionPath(UUID, 0)
_IDS = count(1)


def new_id() -> str:
    return f"{next(_IDS):032x}"


class TierHistory:
    """See the module.

    Args:
        store: where; by default one of its own.
        start: the first offset.
    """

    def __init__(self, store: Any = None, start: int = 0) -> None:
        self.store = store or MemoryStore()
        self.file = RootFile(self.store, PATH, new_id=new_id)
        self.loaded = self.file.commit(
            None, root_changes.create(PATH, epoch=0, node="n1", start=start, record_hash=RecordHash.XXH3)
        )

    @property
    def root(self) -> Root:
        return self.loaded.root

    def commit(self, change: root_changes.Change) -> None:
        self.loaded = self.file.commit(self.loaded, change)

    def claim(self, epoch: int) -> None:
        self.commit(root_changes.claim(self.root, epoch=epoch, node="n1", start=self.root.end))

    def fragment(self, records: Sequence[Record], base: int, end: int, **options: Any) -> StreamObjectPointer:
        """Put an object that no root names yet.

        Args:
            records: what is in it.
            base: its first offset.
            end: the offset after its last one.
            options: of the writer; and `producers`, of each record (id, sequence), or None.
        """
        nonce = new_id()
        producers = options.pop("producers", None)
        keeps_replies = options.get("keeps_replies", False)
        rows = [rows_from(records, keeps_replies=keeps_replies)] if records else []
        if producers is not None:
            rows = [_with_producers(rows[0], producers)]
        options.setdefault("record_hash", self.root.record_hash)
        body, result = written(rows, nonce=nonce, **options)
        name = f"{base:020d}-0-{nonce}.parquet"
        self.store.create(PATH.fragment(name), body, nonce)
        return result.pointer(name, base=base, end=end)

    def append(
        self,
        records: Sequence[Record],
        end: int | None = None,
        epochs: Sequence[tuple[int, int]] = ((0, 0),),
        **options: Any,
    ) -> StreamObjectPointer:
        """Append a fragment that answers for everything up to `end`."""
        end = records[-1].offset + 1 if end is None else end
        pointer = self.fragment(records, self.root.end, end, **options)
        self._append(pointer, epochs)
        return pointer

    def append_blank(self, fragments: int, offsets: int) -> None:
        """Append fragments of so many offsets each whose objects are not there."""
        for _ in range(fragments):
            base, nonce = self.root.end, new_id()
            self._append(
                StreamObjectPointer(
                    name=f"{base:020d}-0-{nonce}.parquet",
                    base=base,
                    end=base + offsets,
                    records=offsets,
                    size=64 << 20,
                    footer=(64 << 20) - 1_000,
                    digest="ab" * 32,
                    first_timestamp=base,
                    last_timestamp=base + offsets - 1,
                    setsum=NO_RECORDS,
                ),
                ((0, 0),),
            )

    def _append(self, pointer: StreamObjectPointer, epochs: Sequence[tuple[int, int]]) -> None:
        self.commit(root_changes.append(self.root, pointer, epoch=self.root.claims[-1].epoch, epochs=epochs))


def _with_producers(rows: pa.RecordBatch, producers: Sequence[tuple[bytes, int] | None]) -> pa.RecordBatch:
    pairs = [each or (None, None) for each in producers]
    for place, name in enumerate(("producer_id", "producer_sequence")):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(
            at, rows.schema.field(at), pa.array([pair[place] for pair in pairs], rows.schema.types[at])
        )
    return rows
