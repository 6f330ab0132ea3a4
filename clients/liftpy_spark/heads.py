"""What streams there are, and where their partitions begin and end."""

from __future__ import annotations

import difflib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError, NoStreamError
from liftpy_envelope.errors import ErrorCode
from liftpy_spark.connections import nats_failure
from liftpy_spark.errors import NatsSilentError, NoSuchStreamError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from liftpy_client.admin.details import StreamDetails
    from liftpy_client.sync.client import SyncLift
    from liftpy_spark.options.source import SourceOptions

__all__ = [
    "PartitionHead",
    "StreamHeads",
    "find_streams",
    "heads",
    "heads_now",
    "is_wanted",
    "no_leader",
    "offsets_at_time",
]

_PATIENCE_S: Final = 15.0  # a leader may have to be found, and to find out what is committed
_PAUSE_S: Final = 0.2
_FEW: Final = 8
_SHOWN_MAX: Final = 10
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PartitionHead(NamedTuple):
    """What can be read of a partition.

    Attributes:
        start: The first offset there is.
        end: The offset after the last committed one.
        epoch: Epoch of the leader that says so; -1 for unknown.
    """

    start: int
    end: int
    epoch: int = -1


class StreamHeads(NamedTuple):
    """Log starts and high watermarks of a stream's partitions.

    Attributes:
        stream: Name of the stream.
        uuid: 32 hexadecimal digits.
        partitions: Partitions by number; those that nobody knows of at the moment are missing.
    """

    stream: str
    uuid: str
    partitions: dict[int, PartitionHead]


def find_streams(lift: SyncLift, options: SourceOptions) -> list[str]:
    """Names of the streams to read, in their order. Those that are named need not exist.

    Raises:
        NatsError: nobody answers.
    """
    if options.subscribe_pattern is None:
        return sorted(options.assign or options.subscribe)
    return sorted(each.name for each in _all(lift) if is_wanted(options, each.name))


def is_wanted(options: SourceOptions, stream: str) -> bool:
    """Whether a stream is one of those to read, if it exists."""
    if options.subscribe_pattern is None:
        return stream in (options.assign or options.subscribe)
    return re.fullmatch(options.subscribe_pattern, stream) is not None


def heads(lift: SyncLift, names: Sequence[str]) -> list[StreamHeads]:
    """All partitions of some streams, in the order of their names.

    Raises:
        NoSuchStreamError: there is no such stream.
        NatsError: nobody answers, or the leader of a partition does not.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        details = _details(lift, names)
        missing = [name for name in names if name not in details]
        if missing:
            raise _no_stream(lift, missing[0])
        found = [_heads_of(details[name]) for name in sorted(names)]
        silent = [(each, details[each.stream].config.partitions) for each in found]
        unknown = [f"{each.stream}/{n}" for each, count in silent for n in range(count) if n not in each.partitions]
        if not unknown:
            return found
        if time.monotonic() >= until_s:
            raise no_leader(unknown)
        time.sleep(_PAUSE_S)


def heads_now(lift: SyncLift, names: Sequence[str]) -> list[StreamHeads]:
    """What is known at once: streams that do not exist are missing, and so are partitions whose leader is silent.

    Raises:
        NatsError: nobody answers at all.
    """
    details = _details(lift, names)
    return [_heads_of(details[name]) for name in sorted(details)]


def no_leader(partitions: Sequence[str]) -> NatsSilentError:
    """What to tell of partitions, as `stream/partition`, when nobody says where they end."""
    return NatsSilentError(
        f"nobody says where {', '.join(partitions[:_SHOWN_MAX])} ends: the leader does not answer, or there is none; "
        "`liftpy status` shows the nodes"
    )


def offsets_at_time(lift: SyncLift, head: StreamHeads, times_ms: Mapping[int, int]) -> dict[int, int | None]:
    """Return by partition the first offset that is not older than a time; None where all are older.

    Args:
        lift: Connection to NATS.
        head: Head of the stream.
        times_ms: Times in milliseconds since the epoch, by partition.

    Raises:
        NatsError: nobody answers.
    """
    found: dict[int, int | None] = {}
    for time_ms in sorted(set(times_ms.values())):
        numbers = sorted(number for number, wanted in times_ms.items() if wanted == time_ms)
        when = _EPOCH + timedelta(milliseconds=time_ms)
        consumer = lift.consume_batches(head.stream, start=when, partitions=numbers)
        consumer.pause()  # it is only to find out where it would begin
        try:
            with consumer:
                at = {number: consumer.position(number) for number in numbers}
        except NoStreamError:
            raise _no_stream(lift, head.stream) from None
        except (NodeUnavailableError, DisconnectedError) as error:
            raise nats_failure(error) from None
        found |= {number: offset if offset < head.partitions[number].end else None for number, offset in at.items()}
    return found


def _details(lift: SyncLift, names: Sequence[str]) -> dict[str, StreamDetails]:
    if len(names) > _FEW:
        wanted = set(names)
        return {each.name: each for each in _all(lift) if each.name in wanted}
    found = {}
    for name in names:
        try:
            found[name] = lift.stream_info(name)
        except AdminError as error:
            if error.code is not ErrorCode.UNKNOWN_STREAM:
                raise
        except (NodeUnavailableError, DisconnectedError) as error:
            raise nats_failure(error) from None
    return found


def _all(lift: SyncLift) -> list[StreamDetails]:
    try:
        return lift.streams()
    except (NodeUnavailableError, DisconnectedError) as error:
        raise nats_failure(error) from None


def _heads_of(details: StreamDetails) -> StreamHeads:
    partitions = {
        each.partition: PartitionHead(each.log_start, max(each.log_start, each.high_watermark), each.leader_epoch)
        for each in details.partitions
        if each.log_start is not None and each.high_watermark is not None
    }
    return StreamHeads(details.name, details.uuid.replace("-", ""), partitions)


def _no_stream(lift: SyncLift, name: str) -> NoSuchStreamError:
    names = [each.name for each in _all(lift)]
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif names:
        more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        hint = f"there are {', '.join(names[:_SHOWN_MAX])}{more}"
    else:
        hint = "there is none yet; `liftpy stream add` makes one"
    return NoSuchStreamError(f"there is no stream {name!r}; {hint}")
