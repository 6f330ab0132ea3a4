"""What is staged, and where: chunks of rows, and sections of them. Their bytes: `section_format`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SECTION_BYTES_MAX", "STAGING", "SUBJECTS_MAX", "RowChunk", "Section", "is_staged_key"]

STAGING: Final = "spark/staging/"
SECTION_BYTES_MAX: Final = 64 * 1024 * 1024
"""How large a section may be that a leader reads."""
SUBJECTS_MAX: Final = 16 * 1024
"""Of how many chunks a section tells the subjects."""
_KEY: Final = re.compile(
    rf"{STAGING}[0-9a-f]{{32}}/[A-Za-z0-9][A-Za-z0-9_.-]{{0,127}}/[0-9]{{20}}/[0-9]{{5,10}}-[0-9a-f]{{32}}\.arrows"
)


def is_staged_key(key: str) -> bool:
    """Whether tasks stage under such keys: `spark/staging/<stream uuid>/<application>/<batch>/<task>-<nonce>.arrows`.

    Raises:
        TypeError: it is no text.
    """
    return _KEY.fullmatch(key) is not None


class RowChunk(NamedTuple):
    """Records of one partition and subject: columns `value` and, where a record has one, `key` and `headers`."""

    partition: int
    subject: str
    records: pa.RecordBatch


class Section(NamedTuple):
    """The chunks of one partition in a staged object.

    Attributes:
        key: Key of the object, or of the file in its place.
        partition: Partition of the stream.
        start: Where the section begins in the object.
        length: Length in bytes.
        rows: How many records it has.
        chunks: Number of chunks in it.
        crc: CRC-32C of its bytes.
        subjects: Subject of each chunk; () where that is not told, as chunks are small or a decision is old.
    """

    key: str
    partition: int
    start: int
    length: int
    rows: int
    chunks: int
    crc: int
    subjects: tuple[str, ...] = ()
