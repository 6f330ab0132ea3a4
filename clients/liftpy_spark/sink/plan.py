"""What the writing of a DataFrame is planned with, found out once on the driver before any task runs."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.stream_config import INTERNAL_PREFIX, AckMode
from liftpy_envelope.subject import is_literal, matches
from liftpy_spark.connections import bucket, lift, nats_failure
from liftpy_spark.errors import NoSuchStreamError
from liftpy_spark.options.values import OptionError
from liftpy_spark.sink.directory import prepare
from liftpy_spark.sink.errors import SinkModeError
from liftpy_spark.sink.link import open_link
from liftpy_spark.sink.options import Delivery, SinkOptions
from liftpy_spark.sink.rows import Layout
from liftpy_spark.sink.schema import check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from liftpy_client.admin.details import StreamDetails

__all__ = ["SinkPlan", "make_plan"]

_ENVELOPE_BYTES: Final = 4_096  # room for everything in a payload that is not records
_WINDOW_S_MIN: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """How a DataFrame is written; it goes to the tasks.

    Attributes:
        options: Options, as the user gave them.
        uuid: UUID of the stream, in hexadecimal.
        window_s: Time for which nodes know the ids of the stream's batches, seconds; 0 where they keep none.
        layout: What rows are laid out by.
        marker: Name by which tasks know the directory that rows are staged in; "" where that is the bucket.
        driver: The machine of the driver, for messages.
    """

    options: SinkOptions
    uuid: str
    window_s: float
    layout: Layout
    marker: str = ""
    driver: str = ""


def make_plan(options: SinkOptions, schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Look whether a DataFrame can be written, and how.

    Raises:
        SinkSchemaError: its columns are not those of records.
        SinkModeError: the stream, or the cluster, can not do what is asked for.
        OptionError: an option does not fit the stream, or names a directory that can not be used.
        NoSuchStreamError: there is no such stream.
        NatsError, BucketError: something can not be reached.
    """
    if overwrite:
        raise SinkModeError(
            f"a stream is a log, and can not be overwritten: write to {options.stream} with mode('append'), or "
            "outputMode('append') of a streaming query"
        )
    columns = check_columns(schema)
    details = _details(options)
    config = details.config
    if options.stream.startswith(INTERNAL_PREFIX) or config.acks is AckMode.OFF:
        raise SinkModeError(f"stream {options.stream} sends no acks (acks = off), so nothing can be written safely")
    _check_open(details)
    keeps_ids = config.dedupe_ids_max > 0
    window_s = config.dedupe_window_s if keeps_ids else 0.0
    if options.delivery is Delivery.EXACTLY_ONCE:
        _check_exactly_once(options, window_s)
    marker = "" if options.staging_directory is None else prepare(options.staging_directory)
    with open_link(options.connection) as link:
        payload_bytes_max = link.payload_bytes_max
    layout = Layout(
        stream=options.stream,
        pattern=config.subject,
        partitions=config.partitions,
        subject=_subject(options, config.subject, columns),
        record_bytes_max=min(payload_bytes_max - _ENVELOPE_BYTES, config.message_bytes_max),
    )
    return SinkPlan(
        options=options,
        uuid=details.uuid,
        window_s=window_s,
        layout=layout,
        marker=marker,
        driver=socket.gethostname(),
    )


def _details(options: SinkOptions) -> StreamDetails:
    try:
        return lift(options.connection).stream_info(options.stream)
    except AdminError as error:
        if error.code is ErrorCode.UNKNOWN_STREAM:
            raise NoSuchStreamError(
                f"there is no stream {options.stream!r} to write to; create it first: liftpy stream add "
                f"{options.stream} --subject ..."
            ) from None
        raise
    except (NodeUnavailableError, DisconnectedError) as error:
        raise nats_failure(error) from None


def _check_open(details: StreamDetails) -> None:
    """See that the stream takes records, before rows are computed and staged that nodes would refuse."""
    name = details.config.name
    for is_shut, state, command in (
        (details.paused, "paused", f"liftpy stream resume {name}"),
        (details.read_only, "read-only", f"liftpy stream readonly {name} --off"),
    ):
        if is_shut:
            raise SinkModeError(f"stream {name} is {state}, and takes nothing until somebody says: {command}")


def _check_exactly_once(options: SinkOptions, window_s: float) -> None:
    if window_s < _WINDOW_S_MIN:
        raise SinkModeError(
            f"stream {options.stream} knows the ids of batches for {window_s:g} s; writing exactly once needs "
            f"{_WINDOW_S_MIN:g} s or more: liftpy stream edit {options.stream} --dedupe-window {_WINDOW_S_MIN:g}s, or "
            "write with the option delivery at-least-once"
        )
    if bucket(options.connection) is None:
        raise SinkModeError(
            "writing exactly once goes by way of a bucket, and the nodes have none, nor does the option 'bucket' name "
            "one; give the nodes a bucket (see docs/operate/bucket.md), or write with the option delivery at-least-once"
        )


def _subject(options: SinkOptions, pattern: str, columns: frozenset[str]) -> str | None:
    """The subject of rows that say none."""
    if options.subject is not None:
        if not matches(pattern, options.subject):
            raise OptionError(
                "subject", f"stream {options.stream} does not store {options.subject!r}; it stores {pattern!r}"
            )
        return options.subject
    if is_literal(pattern):
        return pattern
    if "subject" in columns:
        return None
    raise OptionError(
        "subject", f"stream {options.stream} stores {pattern!r}: say which subject, here or in a column subject"
    )
