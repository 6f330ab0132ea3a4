"""A Parquet file whose every byte is covered by a checksum, for any reader of Parquet to read.

    "PAR1" | row groups | "LFTC" | crc32c u32 (of all that follows) | footer | length u32 of it | "PAR1"

Little-endian. The eight bytes before the footer belong to nothing that Parquet knows, so other readers pass them over.
The footer has, under the key `liftpy.row_groups`, the SHA-256 of every row group's bytes, 64 hexadecimal digits each,
divided by commas. Manifests have the SHA-256 of the footer. So a reader knows that bytes are those that were written
before it decodes them, also where somebody else can write into the bucket.

Every column has the field id of `FIELD_IDS`, for ever: readers that go by ids, as those of Iceberg, need no names.

zstd at level 1: for flights as JSON (337 B each, with message ids) 0.119 bytes a byte of payload at 350 MiB/s on one
core; level 3 0.122 at 300, level 6 0.103 at 78, level 9 0.094 at 67. Offsets and times are delta-encoded (1.6 % of the
whole). Prefixes that headers and message ids have in common are not (0.4 to 2.7 %): see `liftpy_bucket.objects.pages`.
A dictionary of subjects saves 4 %. Row groups of 4 MiB cost 1.5 % against those of 8, and those of 1 MiB 2.6 % more.

Values that do not compress, because they are encrypted or compressed already, are not compressed: to try costs 0.3 ms a
MiB with 1 KiB each, and 1.4 ms with 128 B. Samples of the first row group tell.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from liftpy_bucket.objects.pointers import Extent
from liftpy_bucket.objects.sinks import target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_bucket.objects.sinks import ByteSink

__all__ = [
    "FIELD_IDS",
    "FOOTER_GUARD",
    "FOOTER_GUARD_BYTES",
    "FOOTER_TAIL_BYTES",
    "ROW_GROUPS_KEY",
    "ParquetObject",
    "write_footer",
]

FIELD_IDS: Final = {
    "stream": 1,
    "partition": 2,
    "offset": 3,
    "timestamp": 4,
    "timestamp_ns": 5,
    "subject": 6,
    "key": 7,
    "headers": 8,
    "value": 9,
    "message_id": 10,
    "reply": 11,
    "leader_epoch": 12,
    "producer_id": 13,
    "producer_sequence": 14,
}
"""A number is never given to another column."""
FOOTER_GUARD: Final = b"LFTC"
FOOTER_GUARD_BYTES: Final = 8
FOOTER_TAIL_BYTES: Final = 8  # length and magic, behind the footer proper
ROW_GROUPS_KEY: Final = "liftpy.row_groups"
_ZSTD_LEVEL: Final = 1
_PAGE_BYTES: Final = 1024 * 1024
_SAMPLES: Final = 8
_SAMPLE_BYTES: Final = 16 * 1024
_WORTH_SAVING: Final = 0.05
_WITH_STATISTICS: Final = ("stream", "partition", "offset", "timestamp", "timestamp_ns", "subject", "key")
_WITH_DICTIONARY: Final = ("stream", "partition", "subject", "leader_epoch", "producer_id")
_ENCODINGS: Final = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "timestamp_ns": "DELTA_BINARY_PACKED",
    "producer_sequence": "DELTA_BINARY_PACKED",
}


class ParquetObject:
    """Writes one such file.

    Args:
        sink: What is written to, from its present position on; it stays open.
        schema: Schema of the file.
        is_alike: What the first row group is like, the others are: its values tell whether all are compressed.

    Attributes:
        digests: SHA-256 of the row groups that were written, hexadecimal.
        footer: Footer without the length and the magic behind it; b"" while there is none.
    """

    def __init__(self, sink: ByteSink, schema: pa.Schema, *, is_alike: bool) -> None:
        self._sink = sink
        self._target = target_of(sink)
        self._schema = pa.schema(
            [field.with_metadata({"PARQUET:field_id": str(FIELD_IDS[field.name])}) for field in schema]
        )
        self._is_alike = is_alike
        self._opened: pq.ParquetWriter | None = None
        self.digests: list[str] = []
        self.footer = b""

    def write_group(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write one row group.

        Raises:
            OSError: the sink could not take it.
        """
        table = pa.Table.from_batches(batches, self._schema)
        writer = self._opened or self._open(compresses=not self._is_alike or _pays(table.column("value")))
        with self._target.passing():
            writer.write_table(table, row_group_size=table.num_rows)
        self.digests.append(self._target.digest)

    def finish(self, metadata: Mapping[str, str]) -> Extent:
        """Write the footer.

        Args:
            metadata: What stands in it besides.

        Returns:
            What must be known to read it.

        Raises:
            OSError: the sink could not take it.
        """
        writer = self._opened or self._open(compresses=True)
        writer.add_key_value_metadata({**metadata, ROW_GROUPS_KEY: ",".join(self.digests)})
        start, footer = self._target.keep(writer.close)
        del writer
        self._opened = None
        self._target.close()
        length = int.from_bytes(footer[-FOOTER_TAIL_BYTES:-4], "little")
        assert len(footer) == length + FOOTER_TAIL_BYTES, "nothing but the footer is written at the end"
        self.footer = footer[:-FOOTER_TAIL_BYTES]
        return write_footer(self._sink, footer, start)

    def _open(self, *, compresses: bool) -> pq.ParquetWriter:
        names = self._schema.names
        compressed = [name for name in names if compresses or name != "value"]
        with self._target.passing():
            self._opened = pq.ParquetWriter(
                self._target.file,
                self._schema,
                compression={name: "zstd" if name in compressed else "none" for name in names},
                compression_level=dict.fromkeys(compressed, _ZSTD_LEVEL),
                use_dictionary=[name for name in _WITH_DICTIONARY if name in names],
                column_encoding={name: encoding for name, encoding in _ENCODINGS.items() if name in names},
                write_statistics=[name for name in _WITH_STATISTICS if name in names],
                write_page_checksum=True,  # for who reads single columns of a row group
                data_page_size=_PAGE_BYTES,
                store_schema=False,  # the types are Parquet's own
            )
        return self._opened


def write_footer(sink: ByteSink, footer: bytes, at: int) -> Extent:
    """Write a footer and the checksum in front of it.

    Args:
        sink: What is written to.
        footer: Footer with the length and the magic.
        at: How many bytes of the file were written.

    Returns:
        What must be known to read the file.

    Raises:
        OSError: the sink could not take it.
    """
    crc: int = google_crc32c.value(footer)
    sink.write(FOOTER_GUARD + crc.to_bytes(4, "little") + footer)
    footer_at = at + FOOTER_GUARD_BYTES
    return Extent(footer_at + len(footer), footer_at, sha256(footer).hexdigest())


def _pays(values: pa.ChunkedArray) -> bool:
    """Whether compressing values saves something worth the time, by samples of them; a few bytes say nothing."""
    codec = pa.Codec("zstd", _ZSTD_LEVEL)
    before = after = 0
    for chunk in values.chunks:
        first, last = np.frombuffer(chunk.buffers()[1], "<i4")[[chunk.offset, chunk.offset + len(chunk)]].tolist()
        if last - first < _SAMPLE_BYTES:
            continue
        content = memoryview(chunk.buffers()[2])
        for at in np.linspace(first, last - _SAMPLE_BYTES, -(-_SAMPLES // values.num_chunks), dtype=int).tolist():
            before += _SAMPLE_BYTES
            after += len(codec.compress(content[at : at + _SAMPLE_BYTES]))
    return before == 0 or after < before * (1 - _WORTH_SAVING)
