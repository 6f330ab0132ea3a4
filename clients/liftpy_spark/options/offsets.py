"""Offsets by stream and partition: as the user writes them in JSON, and as Spark keeps them in a checkpoint.

A checkpoint has, beside the offsets of a stream, the stream's uuid: under the same name there may be another stream by
the time that a query goes on, whose offsets mean other records. And it has the epochs of the leaders that said what was
committed: by these it is noticed that a partition took another way before an offset, as after a restore.

    {"version": 1, "streams": {"orders": {"uuid": "9365d83a...", "offsets": {"0": 17153}, "epochs": {"0": 3}}}}
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import LiftError
from liftpy_spark.options.values import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EARLIEST",
    "LATEST",
    "CheckpointError",
    "QueryCheckpoint",
    "StreamOffsets",
    "StreamReplacedError",
    "check_same_streams",
    "decode",
    "encode",
    "parse_numbers",
    "parse_partitions",
]

StreamOffsets = dict[str, dict[int, int]]
"""The next offset, by name of the stream and number of the partition."""

EARLIEST: Final = -2
"""Instead of an offset: the first one there is. As in Kafka's connector."""
LATEST: Final = -1
"""Instead of an offset: the one after the last committed one."""

_VERSION: Final = 1
_OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


class CheckpointError(LiftError):
    """What stands in a checkpoint can not be understood."""


class StreamReplacedError(LiftError):
    """Under the name of a stream there is another one by now.

    Args:
        stream: Name of the stream.
        was: UUID of the one that was read.
        found: UUID of the one that is there; None when there is none.
    """

    def __init__(self, stream: str, was: str, found: str | None) -> None:
        became = "deleted" if found is None else f"deleted and created again (it was {was}, and is {found} now)"
        super().__init__(
            f"stream {stream} was {became}: the offsets that were planned or checkpointed mean nothing any more; begin "
            "with a new checkpoint, or set failOnDataLoss to false to go on with what is there"
        )
        self.stream = stream


class QueryCheckpoint(NamedTuple):
    """Where a query is.

    Attributes:
        offsets: The next ones.
        uuids: UUIDs of the streams that these are of.
        epochs: No record before an offset has a later leader epoch; of partitions where that is known.
    """

    offsets: StreamOffsets
    uuids: dict[str, str]
    epochs: Mapping[str, Mapping[int, int]] = MappingProxyType({})

    def is_at(self, other: QueryCheckpoint) -> bool:
        """Whether a query that is at the other one has read the same."""
        return (self.offsets, self.uuids) == (other.offsets, other.uuids)


def encode(checkpoint: QueryCheckpoint) -> dict[str, Any]:
    """A document for Spark's checkpoint; the same one always looks the same."""
    streams = {}
    for stream, of in sorted(checkpoint.offsets.items()):
        streams[stream] = {"uuid": checkpoint.uuids[stream], "offsets": _sorted(of)}
        epochs = checkpoint.epochs.get(stream)
        if epochs:
            streams[stream]["epochs"] = _sorted(epochs)
    return {"version": _VERSION, "streams": streams}


def _sorted(of: Mapping[int, int]) -> dict[str, int]:
    return {str(number): of[number] for number in sorted(of)}


def decode(document: object) -> QueryCheckpoint:
    """Decode offsets that `encode` wrote.

    Raises:
        CheckpointError: it was not made by it, or by that of a newer liftpy.
    """
    try:
        assert isinstance(document, dict)
        if document["version"] > _VERSION:
            raise CheckpointError(
                f"the checkpoint has version {document['version']}, and this liftpy reads version {_VERSION}; use the "
                "liftpy that wrote it"
            )
        streams = document["streams"]
        offsets = {name: _numbers(each["offsets"], 0) for name, each in streams.items()}
        uuids = {name: each["uuid"] for name, each in streams.items()}
        assert all(isinstance(uuid, str) for uuid in uuids.values())
        epochs = {name: _numbers(each["epochs"], 0) for name, each in streams.items() if "epochs" in each}
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(
            f"the checkpoint holds {document!r:.200}, which is not of liftpy: was another source read with it?"
        ) from None
    return QueryCheckpoint(offsets, uuids, epochs)


def check_same_streams(checkpoint: QueryCheckpoint, uuids: Mapping[str, str]) -> None:
    """Check that the streams of a checkpoint are those that exist.

    Args:
        checkpoint: Where a query is.
        uuids: UUIDs of the streams that are there, by name.

    Raises:
        StreamReplacedError: one is another by now, or gone.
    """
    for stream, uuid in checkpoint.uuids.items():
        found = uuids.get(stream)
        if found != uuid:
            raise StreamReplacedError(stream, uuid, found)


def parse_numbers(option: str, document: object, least: int) -> StreamOffsets:
    """Numbers by stream and partition, as users write them: `{"orders": {"0": 23, "1": -2}}`.

    Args:
        option: Where it stands.
        document: What its JSON says.
        least: The least number that means something.

    Raises:
        OptionError: it is not like that.
    """
    if isinstance(document, dict) and document:
        try:
            return {stream: _numbers(of, least) for stream, of in document.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise OptionError(option, f"{document!r:.200}: {error}; {_WANTED}") from None
    raise OptionError(option, f"{document!r:.200} names no stream; {_WANTED}")


_WANTED: Final = 'it looks like {"orders": {"0": 23, "1": 42}}: stream, partition, and the number for it'


def parse_partitions(option: str, document: object) -> dict[str, tuple[int, ...]]:
    """Partitions by stream, as users write them: `{"orders": [0, 1]}`.

    Raises:
        OptionError: it is not like that.
    """
    wanted = 'it looks like {"orders": [0, 1]}: stream, and its partitions'
    if not isinstance(document, dict) or not document:
        raise OptionError(option, f"{document!r:.200} names no stream; {wanted}")
    for stream, numbers in document.items():
        is_list = isinstance(numbers, list) and bool(numbers)
        if not is_list or not all(_is_integer(number) and 0 <= number <= _PARTITION_MAX for number in numbers):
            raise OptionError(option, f"{numbers!r:.200} of stream {stream!r:.80} are not partitions; {wanted}")
        if len(set(numbers)) < len(numbers):
            raise OptionError(option, f"{numbers!r:.200} of stream {stream!r:.80} names a partition twice")
    return {stream: tuple(sorted(numbers)) for stream, numbers in document.items()}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers(of: Any, least: int) -> dict[int, int]:
    if not isinstance(of, dict) or not of:
        raise TypeError(f"{of!r:.80} are not numbers by partition")
    found: dict[int, int] = {}
    for partition, number in of.items():
        if not (isinstance(partition, str) and partition.isascii() and partition.isdigit()):
            raise ValueError(f"{partition!r:.80} is not a partition")
        if not _is_integer(number) or not least <= number <= _OFFSET_MAX:
            raise ValueError(f"{number!r:.80} of partition {partition} is not a number from {least} on")
        if not int(partition) <= _PARTITION_MAX or int(partition) in found:
            raise ValueError(f"{partition!r:.80} is not a partition, or stands there twice")
        found[int(partition)] = number
    return found
