"""Where the chunks of one partition are in a staged object, and what they come to. Their bytes: `section_format`."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Section"]


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
    """

    key: str
    partition: int
    start: int
    length: int
    rows: int
    chunks: int
    crc: int
