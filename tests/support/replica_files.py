"""What the replicas of a partition have on their disks, compared after a clean stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_log.checkpoint import load_checkpoint
from liftpy_log.storage.disk import OsDisk
from support.history import Violation
from support.segments import batches, segment_files, stream_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def check_replicas(data: Mapping[str, Path], stream: str, partition_count: int) -> Iterator[Violation]:
    """Where replicas differ below the smallest high watermark, or say that they have less than was committed.

    Args:
        data: the data directories of the nodes that have replicas, by node.
        stream: name of the stream.
        partition_count: how many partitions it has.
    """
    for partition in range(partition_count):
        marks = {node: high_watermark(root, stream, partition) for node, root in data.items()}
        committed = min(marks.values())
        found = {node: committed_bytes(root, stream, partition, committed) for node, root in data.items()}
        first, *others = found
        for other in others:
            if found[first] != found[other]:
                at = next(
                    (at for at, pair in enumerate(zip(found[first], found[other], strict=False)) if pair[0] != pair[1]),
                    min(len(found[first]), len(found[other])),
                )
                text = f"{stream}[{partition}] below offset {committed}: {first} has {len(found[first])} bytes of whole"
                text += f" batches, {other} {len(found[other])}; they differ from byte {at} on (marks {marks})"
                yield Violation("replicas differ", text, ())


def high_watermark(data: Path, stream: str, partition: int) -> int:
    """What a node's checkpoint says was committed; 0 when it says nothing."""
    checkpoint = load_checkpoint(OsDisk(), data / "checkpoint")
    uuid = bytes.fromhex(stream_directory(data, stream).name.rpartition(".")[2])
    return 0 if checkpoint is None else checkpoint.high_watermarks.get((uuid, partition), 0)


def committed_bytes(data: Path, stream: str, partition: int, end: int) -> bytes:
    """The batches of a replica that end at or below an offset, one after the other."""
    parts = []
    for path in segment_files(data, stream, partition):
        content = path.read_bytes()
        for position, header in batches(path):
            if header.next_offset > end:
                return b"".join(parts)
            parts.append(content[position : position + header.length])
    return b"".join(parts)
