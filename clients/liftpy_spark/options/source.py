"""The options of `spark.read.format("liftpy")` and `spark.readStream.format("liftpy")`, checked once, on the driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from liftpy_envelope.errors import NameInvalidError, SubjectInvalidError
from liftpy_envelope.names import check_name
from liftpy_envelope.subject import check_patterns
from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.hints import NO_TABLE
from liftpy_spark.options.names import CONNECTION_ALIASES, SOURCE_OPTIONS
from liftpy_spark.options.offsets import EARLIEST, LATEST, parse_numbers, parse_partitions
from liftpy_spark.options.values import OptionError, Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from liftpy_spark.options.offsets import StreamOffsets

__all__ = ["Bound", "SourceOptions"]

_TASKS_MAX_DEFAULT: Final = 64
_TASKS_MAX: Final = 100_000
_POLL_MS_DEFAULT: Final = 500
_TIME_MS_MAX: Final = (2**63 - 1) // 10**6  # nodes count nanoseconds
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_AS_JSON: Final = 'offsets as JSON, such as {"orders": {"0": 23}}'
_SEPARATOR: Final = re.compile(r"[\s,]+")


class Bound(NamedTuple):
    """Where to begin or to end. One of the three says so.

    Attributes:
        offsets: Offsets by stream and partition; also `EARLIEST` and `LATEST`.
        times_ms: Times in milliseconds since the epoch.
        everywhere: `earliest`, `latest`, or a time for all partitions.
    """

    offsets: StreamOffsets | None = None
    times_ms: StreamOffsets | None = None
    everywhere: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, and how. Exactly one of `subscribe`, `subscribe_pattern` and `assign` is given.

    Attributes:
        connection: How NATS and the bucket are reached.
        subscribe: Names of streams.
        subscribe_pattern: Matches the whole name of the streams to read.
        assign: Partitions by name of the stream.
        starting: Where to begin.
        ending: Where to end; of a batch alone.
        late_is_latest: Where no record is as young as a starting time: begin at the end, rather than fail.
        include_headers: Whether there is a column `headers`.
        subject: NATS patterns; records with other subjects are left out. () takes all.
        key_equals: Records with other keys, or none, are left out; None takes all.
        min_partitions: How many tasks there are to be at least.
        max_tasks: How many tasks there may be.
        fail_on_data_loss: Whether records that are gone are an error, rather than a warning.
        max_offsets_per_trigger: Number of offsets that a micro-batch of a streaming query may have.
        max_bytes_per_trigger: Size that a micro-batch of a streaming query may have, about, bytes; only one of the two
            is given.
        max_poll_ms: Time for which a streaming query waits for new records before it looks again, ms.
        cold: Whether history is read from the bucket; otherwise all of it comes through the nodes.
    """

    connection: ConnectionOptions
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    starting: Bound
    ending: Bound | None = None
    late_is_latest: bool = False
    include_headers: bool = False
    subject: tuple[str, ...] = ()
    key_equals: bytes | None = None
    min_partitions: int = 1
    max_tasks: int = _TASKS_MAX_DEFAULT
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    max_poll_ms: int = _POLL_MS_DEFAULT
    cold: bool = True

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """From what a user gave.

        Args:
            given: Options, as Spark hands them over.
            streaming: Whether it is of a streaming query.

        Raises:
            OptionError: an option is unknown, or means nothing.
        """
        options = Options(given, SOURCE_OPTIONS, CONNECTION_ALIASES)
        min_partitions, max_tasks = _tasks(options)
        _check_limits(options)
        assign = options.json("assign")
        starting, ending = _starting(options, streaming=streaming), _ending(options, streaming=streaming)
        _check_order(starting, ending)
        return cls(
            connection=ConnectionOptions.read(options),
            subscribe=_subscribe(options),
            subscribe_pattern=_pattern(options),
            assign=None if assign is None else _named(parse_partitions("assign", assign)),
            starting=starting,
            ending=ending,
            late_is_latest=_strategy(options) == "latest",
            include_headers=options.boolean("includeHeaders", False),
            subject=_subjects(options),
            key_equals=_key(options),
            min_partitions=min_partitions,
            max_tasks=max_tasks,
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
            max_offsets_per_trigger=options.integer("maxOffsetsPerTrigger", None, 1),
            max_bytes_per_trigger=options.integer("maxBytesPerTrigger", None, 1),
            max_poll_ms=options.millis("maxPollMs", _POLL_MS_DEFAULT, 1),
            cold=options.boolean("cold", True),
        )


def _check_limits(options: Options) -> None:
    if "maxOffsetsPerTrigger" in options and "maxBytesPerTrigger" in options:
        raise OptionError("maxBytesPerTrigger", "Spark takes one limit: leave out maxOffsetsPerTrigger, or this one")
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if not ways:
        to_do = "name the stream to read, or give subscribePattern or assign instead"
        raise OptionError("subscribe", f"{to_do}. {NO_TABLE}")
    if len(ways) > 1:
        raise OptionError(ways[1], f"{ways[0]} is given, too; give one of them")


def _tasks(options: Options) -> tuple[int, int]:
    max_tasks = options.integer("maxTasks", _TASKS_MAX_DEFAULT, 1, _TASKS_MAX)
    min_partitions = options.integer("minPartitions", 1, 1, _TASKS_MAX)
    if min_partitions > max_tasks:
        raise OptionError("minPartitions", f"{min_partitions} is more than maxTasks, which is {max_tasks}")
    return min_partitions, max_tasks


def _key(options: Options) -> bytes | None:
    text, digits = options.exact("keyEquals"), options.text("keyEqualsHex")
    if digits is None:
        return None if text is None else text.encode()
    if text is not None:
        raise OptionError("keyEqualsHex", "keyEquals is given, too; give one of them")
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise OptionError(
            "keyEqualsHex", f"{digits!r:.80} is not a key in hexadecimal digits, such as 00ff3a"
        ) from None


def _subscribe(options: Options) -> tuple[str, ...]:
    text = options.text("subscribe")
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names):
        raise OptionError("subscribe", f"{text!r:.200} names a stream twice")
    try:
        return tuple(check_name(name) for name in names)
    except NameInvalidError as error:
        raise OptionError("subscribe", f"{error}; several are divided by commas") from None


def _pattern(options: Options) -> str | None:
    text = options.text("subscribePattern")
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError("subscribePattern", f"{text!r:.200} is not a regular expression: {error}") from None
    return text


def _named(assign: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    try:
        return {check_name(stream): numbers for stream, numbers in assign.items()}
    except NameInvalidError as error:
        raise OptionError("assign", str(error)) from None


def _starting(options: Options, *, streaming: bool) -> Bound:
    default = "latest" if streaming else "earliest"
    found = _bound(options, "starting", default)
    if found.everywhere == "latest" and not streaming:
        raise OptionError("startingOffsets", "a batch that begins at the latest offset has nothing to read")
    return found


def _ending(options: Options, *, streaming: bool) -> Bound | None:
    if streaming:
        for name in _ENDING:
            if name in options:
                raise OptionError(name, "a streaming query has no end; leave it out, or read with spark.read")
        return None
    found = _bound(options, "ending", "latest")
    says_earliest = any(EARLIEST in of.values() for of in (found.offsets or {}).values())
    if found.everywhere == "earliest" or says_earliest:
        raise OptionError("endingOffsets", "a batch that ends at the earliest offset has nothing to read")
    return found


def _bound(options: Options, side: str, default: str) -> Bound:
    by_offsets, by_times, by_time = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
    given = [name for name in (by_offsets, by_times, by_time) if name in options]
    if len(given) > 1:
        raise OptionError(given[1], f"{given[0]} is given, too; give one of them")
    if by_times in options:
        times = parse_numbers(by_times, options.json(by_times), 0)
        for of in times.values():
            _check_times(by_times, of.values())
        return Bound(times_ms=times)
    if by_time in options:
        time_ms = options.millis(by_time, 0, since=" since 1970-01-01 in UTC")
        _check_times(by_time, [time_ms])
        return Bound(everywhere=time_ms)
    text = options.text(by_offsets, default)
    if text.lower() in {"earliest", "latest"}:
        return Bound(everywhere=text.lower())
    if not text.startswith("{"):
        raise OptionError(by_offsets, f"{text!r:.200} is neither earliest nor latest, nor {_AS_JSON}")
    return Bound(offsets=parse_numbers(by_offsets, options.json(by_offsets), EARLIEST))


def _check_order(starting: Bound, ending: Bound | None) -> None:
    """Refuse what begins behind where it ends, as far as the options alone say so: it would read nothing."""
    if ending is None:
        return
    if isinstance(starting.everywhere, int) and isinstance(ending.everywhere, int):
        if starting.everywhere > ending.everywhere:
            raise OptionError(
                "startingTimestamp", f"{starting.everywhere} is after endingTimestamp, which is {ending.everywhere}"
            )
        return
    by_times = starting.times_ms is not None
    begins, ends = (starting.times_ms, ending.times_ms) if by_times else (starting.offsets, ending.offsets)
    suffix = "OffsetsByTimestamp" if by_times else "Offsets"
    for stream, of in (begins or {}).items():
        said = (ends or {}).get(stream, {})
        for number, start in of.items():
            end = said.get(number, LATEST)
            if end != LATEST and start > end:
                raise OptionError(
                    f"starting{suffix}",
                    f"{start} of stream {stream} partition {number} is after ending{suffix}, which is {end} there",
                )


def _check_times(option: str, times_ms: Iterable[int]) -> None:
    for time_ms in times_ms:
        if time_ms > _TIME_MS_MAX:
            raise OptionError(option, f"{time_ms} is after the year 2262; it is in milliseconds since 1970")


def _strategy(options: Options) -> str:
    name = "startingOffsetsByTimestampStrategy"
    strategy = options.text(name, "error").lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(name, f"{strategy!r:.80} is neither error nor latest")
    return strategy


def _subjects(options: Options) -> tuple[str, ...]:
    text = options.text("subject")
    if text is None:
        return ()
    try:
        return check_patterns([pattern for pattern in _SEPARATOR.split(text) if pattern])
    except SubjectInvalidError as error:
        raise OptionError("subject", f"{text!r:.200}: {error}; several are divided by commas") from None
