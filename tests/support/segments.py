"""What is in a data directory, and how to damage it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.batch import BatchHeader, read_header
from liftpy_envelope.events import EVENTS_STREAM

if TYPE_CHECKING:
    from pathlib import Path


class Batch(NamedTuple):
    """A record batch in a segment file."""

    position: int
    header: BatchHeader


def stream_directory(data: Path, stream: str) -> Path:
    """The directory of a stream."""
    (found,) = (data / "streams").glob(f"{stream}.*")
    return found


def partition_directory(data: Path, stream: str, partition: int = 0) -> Path:
    """The directory of a partition."""
    return stream_directory(data, stream) / str(partition)


def segment_files(data: Path, stream: str, partition: int = 0) -> list[Path]:
    """The segment files of a partition, oldest first."""
    return sorted(partition_directory(data, stream, partition).glob("*.log"))


def batches(path: Path) -> list[Batch]:
    """The batches of a segment file."""
    data = path.read_bytes()
    found = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        found.append(Batch(position, header))
        position += header.length
    return found


def flip_bit(path: Path, position: int, bit: int = 3) -> None:
    """Turn one bit of a file, in place."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes((byte ^ (1 << bit),)))


def damage_middle(path: Path) -> Batch:
    """Turn a bit in the body of the batch in the middle of a segment; the batch."""
    found = batches(path)
    batch = found[len(found) // 2]
    flip_bit(path, batch.position + batch.header.length - 20)
    return batch


def fingerprint(directory: Path) -> dict[str, str]:
    """A checksum of every segment file below a directory, but for those of the events, which come at any time."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*.log"))
        if not any(part.startswith(f"{EVENTS_STREAM}.") for part in path.relative_to(directory).parts)
    }
