"""Messages that say where a chunk is staged: the leader of its partition reads it by itself.

So the rows of a batch take neither the way through the driver nor that through NATS. It is done where it pays and where
nobody else listens: for sections of some size, and streams that alone store their subject. The first leader that does
not read what it is told has the driver publish the rest of the batch as it always could.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.staging.section import SECTION_BYTES_MAX
from liftpy_client.errors import PublishTimeoutError
from liftpy_client.publisher.ack_inbox import AckInbox
from liftpy_client.publisher.delivery import RETRIABLE
from liftpy_envelope.ack import PublishRefusedError
from liftpy_envelope.envelope import StagedSection, encode_staged
from liftpy_envelope.errors import AckErrorCode

if TYPE_CHECKING:
    from liftpy_bucket.staging.section import Section
    from liftpy_client.publisher.options import PublisherOptions
    from liftpy_client.publisher.resender import Resender
    from liftpy_client.publisher.routes import Route
    from liftpy_envelope.ack import Ack, AckPolicy

__all__ = ["Referring"]

logger = logging.getLogger(__name__)

_SECTION_BYTES_MIN: Final = 256 * 1024  # smaller ones are read by the driver, many with one request
_UNREAD: Final = frozenset(
    {
        AckErrorCode.STAGED_UNREADABLE,
        AckErrorCode.UNSUPPORTED,  # it has no bucket, or not this directory
        AckErrorCode.MALFORMED,  # it is older, or the rows have another subject
        AckErrorCode.WRONG_STREAM,
    }
)


class Referring:
    """Publishes where chunks are staged, for one batch.

    Args:
        resender: Sends messages.
        options: Options of the publisher.
        stream: Name of the stream.
        is_on: Whether leaders are to read anything.

    Attributes:
        is_on: Leaders read what they are told, as far as is known.
    """

    def __init__(self, resender: Resender, options: PublisherOptions, stream: str, *, is_on: bool) -> None:
        self.is_on = is_on
        self._resender = resender
        self._options = options
        self._stream = stream

    def suits(self, section: Section) -> bool:
        """Whether a leader is to read a section, whose chunks it gets by messages on their subjects."""
        return self.is_on and bool(section.subjects) and _SECTION_BYTES_MIN <= section.length <= SECTION_BYTES_MAX

    async def deliver(
        self, route: Route, section: Section, directory: str | None, chunk: int, producer_id: bytes, sequence: int
    ) -> Ack | None:
        """Have the leader append a chunk, and wait for the ack; None where it does not, or nobody knows.

        Raises:
            LiftError: nothing can be published.
        """
        parcel = _StagedParcel(route, section, directory, chunk, producer_id, sequence, self._options.ack_policy)
        try:
            return await self._resender.deliver(
                parcel,
                self._stream,
                retry_after_s=self._options.delivery_timeout_s,
                timeout_s=self._options.delivery_timeout_s,
                retriable=RETRIABLE - _UNREAD,
            )
        except PublishRefusedError as error:
            if error.code not in _UNREAD:
                raise
            level = logging.INFO if error.code is AckErrorCode.UNSUPPORTED else logging.WARNING
            self.give_up(f"a leader does not read it: {error}", level)
        except PublishTimeoutError as error:
            self.give_up(f"a leader does not read it: {error}")
        return None

    def give_up(self, reason: str, level: int = logging.WARNING) -> None:
        """Leave the rest of the batch to the driver.

        Args:
            reason: Reason, which is logged the first time.
            level: Level that it is logged with.
        """
        if self.is_on:
            logger.log(level, "the driver publishes what is staged for %s: %s", self._stream, reason)
        self.is_on = False


class _StagedParcel:
    """A chunk that is staged."""

    def __init__(
        self,
        route: Route,
        section: Section,
        directory: str | None,
        chunk: int,
        producer_id: bytes,
        sequence: int,
        policy: AckPolicy | None,
    ) -> None:
        self.route = route
        self.partition = None if route.config.partitions == 1 else section.partition
        self._section = StagedSection(
            section.key, section.start, section.length, section.chunks, section.crc, directory
        )
        self._chunk = chunk
        self._producer_id = producer_id
        self._sequence = sequence
        self._policy = policy

    def wrap(self, reply: str) -> tuple[str, bytes, dict[str, Any]]:
        """See `Parcel`."""
        payload = encode_staged(
            self._section,
            self._chunk,
            stream=self.route.config.name,
            producer_id=self._producer_id,
            producer_sequence=self._sequence,
            ack_inbox=reply,
            ack_policy=self._policy,
            partition=self.partition,
        )
        return self.route.nats_subject(self.partition), payload, {"reply": AckInbox.no_responders(reply)}

    def __str__(self) -> str:
        return f"chunk {self._chunk} of {self._section.key} for {self.route.subject!r}"
