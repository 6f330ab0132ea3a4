"""The options of `df.write.format("liftpy")` and `df.writeStream.format("liftpy")`, checked once, on the driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from liftpy_bucket.staging.directory import check_path
from liftpy_envelope.errors import NameInvalidError, SubjectInvalidError
from liftpy_envelope.names import check_name
from liftpy_envelope.subject import check_literal
from liftpy_spark.options.connection import ConnectionOptions
from liftpy_spark.options.names import CONNECTION_ALIASES, SINK_OPTIONS
from liftpy_spark.options.values import OptionError, Options

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Delivery", "SinkOptions"]

_OF_SPARK: Final = ("checkpointLocation", "queryName", "truncate", "numRows")
"""What Spark hands over of its own."""
_APPLICATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_LEADER: Final = "leader"
_DRIVER: Final = "driver"
_STAGING_BYTES: Final = 32 * 1024 * 1024
_STAGING_BYTES_MIN: Final = 64 * 1024
_STAGING_BYTES_MAX: Final = 1024 * 1024 * 1024


class Delivery(StrEnum):
    """How often a record is in the stream when something fails on the way."""

    EXACTLY_ONCE = "exactly-once"  # by way of the bucket
    AT_LEAST_ONCE = "at-least-once"  # from the tasks to NATS


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What to write to, and how.

    Attributes:
        connection: How NATS and the bucket are reached.
        stream: Name of the stream.
        subject: Subject of rows that say none; None takes the stream's, where that is no wildcard.
        delivery: Exactly once, or at least once.
        application: Name of who writes, for batches that may be written again; None: a streaming query's id, or
            nobody's.
        version: Number of the batch among the application's; of a batch alone.
        staging_bytes: About how many bytes of rows a task holds, and stages in one object.
        staging_directory: Where driver and tasks stage rows, an absolute path; None for the bucket.
        leaders_read: Whether leaders read rows from the bucket where they can, and the driver publishes the rest only.
        fail_on_mismatch: Whether it is an error that a batch, or what was written of it, is not what it was before.
    """

    connection: ConnectionOptions
    stream: str
    subject: str | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    application: str | None = None
    version: int | None = None
    staging_bytes: int = _STAGING_BYTES
    staging_directory: str | None = None
    leaders_read: bool = True
    fail_on_mismatch: bool = True

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool) -> Self:
        """From what a user gave.

        Args:
            given: Options, as Spark hands them over.
            streaming: Whether it is of a streaming query.

        Raises:
            OptionError: an option is unknown, or means nothing.
        """
        known = SINK_OPTIONS + _OF_SPARK if streaming else SINK_OPTIONS
        options = Options(given, known, CONNECTION_ALIASES)
        delivery = _delivery(options)
        application, version = _transaction(options, delivery, streaming=streaming)
        return cls(
            connection=ConnectionOptions.read(options),
            stream=_stream(options),
            subject=_subject(options),
            delivery=delivery,
            application=application,
            version=version,
            staging_bytes=options.integer("stagingBytes", _STAGING_BYTES, _STAGING_BYTES_MIN, _STAGING_BYTES_MAX),
            staging_directory=_staging_directory(options, delivery),
            leaders_read=_leaders_read(options),
            fail_on_mismatch=options.boolean("failOnMismatch", True),
        )


def _stream(options: Options) -> str:
    name = options.text("stream")
    if name is None:
        raise OptionError("stream", "say which stream to write to")
    try:
        return check_name(name)
    except NameInvalidError as error:
        raise OptionError("stream", str(error)) from None


def _subject(options: Options) -> str | None:
    subject = options.text("subject")
    try:
        return None if subject is None else check_literal(subject)
    except SubjectInvalidError as error:
        raise OptionError("subject", str(error)) from None


def _delivery(options: Options) -> Delivery:
    text = options.text("delivery", Delivery.EXACTLY_ONCE)
    try:
        return Delivery(text.lower())
    except ValueError:
        raise OptionError("delivery", f"{text!r:.80} is neither exactly-once nor at-least-once") from None


def _leaders_read(options: Options) -> bool:
    text = options.text("stagedReader", _LEADER)
    if text not in {_LEADER, _DRIVER}:
        raise OptionError("stagedReader", f"{text!r:.80} is neither {_LEADER} nor {_DRIVER}")
    return text == _LEADER


def _staging_directory(options: Options, delivery: Delivery) -> str | None:
    path = options.text("stagingDirectory")
    if path is None:
        return None
    if delivery is Delivery.AT_LEAST_ONCE:
        raise OptionError("stagingDirectory", "delivery is at-least-once, which stages nothing; leave one of them out")
    try:
        return check_path(path)
    except ValueError as error:
        raise OptionError("stagingDirectory", str(error)) from None


def _transaction(options: Options, delivery: Delivery, *, streaming: bool) -> tuple[str | None, int | None]:
    """Who writes, and which of its batches this is."""
    application, version = options.text("txnAppId"), options.integer("txnVersion")
    for name in ("txnAppId", "txnVersion"):
        if name in options and delivery is Delivery.AT_LEAST_ONCE:
            raise OptionError(
                name, "delivery is at-least-once, which keeps no account of batches; leave one of them out"
            )
        if name in options and streaming:
            raise OptionError(
                name, "a streaming query has an id and numbers of its own; leave it out, or write in foreachBatch"
            )
    if (application is None) != (version is None):
        missing, other = ("txnAppId", "txnVersion") if application is None else ("txnVersion", "txnAppId")
        raise OptionError(missing, f"{other} alone does not say which batch this is; give both, or none")
    if application is not None and not _APPLICATION.fullmatch(application):
        raise OptionError(
            "txnAppId", f"{application!r:.150} is not 1 to 128 letters, digits, '_', '.' or '-', the first no '_.-'"
        )
    return application, version
