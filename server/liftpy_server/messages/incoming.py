"""A message with options: its headers and envelope are read, and checked, before any partition sees it."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.columns import Column
from liftpy_envelope.envelope import COOKIE, BatchEnvelope, StagedEnvelope, decode_envelope
from liftpy_envelope.errors import AckErrorCode, EnvelopeError, HeaderError
from liftpy_envelope.headers import PublishOptions, read_publish_options, unsupported_error
from liftpy_envelope.limits import KEY_BYTES_MAX
from liftpy_envelope.partitioner import partition_of
from liftpy_envelope.stream_config import AckMode
from liftpy_log.errors import StorageFullError

if TYPE_CHECKING:
    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_log.errors import PartitionOfflineError
    from liftpy_server.messages.runs import Message

__all__ = ["Incoming", "Refusal", "read_message", "refusal_of", "with_batch"]

_NO_OPTIONS = PublishOptions()

_OF_THE_PROCESS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class Refusal(NamedTuple):
    """Why a message is not stored."""

    code: AckErrorCode
    description: str


class Incoming(NamedTuple):
    """A message as far as it can be understood without its partition.

    Attributes:
        destination: Where its ack goes; empty when it wants none.
        batch: The envelope's, when it is a batch; then `value` is empty.
        staged: Where its batch is to be read first; then `value` is empty, too.
        is_lookalike: Whether it begins with the cookie by chance.
        refusal: Why it can not be stored, if so.
    """

    subject: bytes
    headers: bytes | None
    value: bytes | None
    reply: bytes
    destination: bytes
    options: PublishOptions
    batch: BatchEnvelope | None = None
    is_lookalike: bool = False
    refusal: Refusal | None = None
    staged: StagedEnvelope | None = None

    def partition(self, partition_count: int) -> int:
        """The partition it belongs to in a stream that is spread by hash."""
        envelope = self.batch or self.staged
        if envelope is not None and envelope.partition is not None:
            return envelope.partition % partition_count
        key = self.options.key
        return partition_of(self.subject if key is None else key, partition_count)


def read_message(message: Message, config: StreamConfig, skip: int) -> Incoming:
    """Read a message's options.

    Args:
        message: Message as it came.
        config: Settings of its stream.
        skip: Size of the subject's prefix, which is not stored.
    """
    subject = message.subject[skip:]
    try:
        incoming = _with_tombstone(_read(message, subject))
    except (HeaderError, EnvelopeError) as error:
        code = error.code if isinstance(error, HeaderError) else AckErrorCode.MALFORMED
        destination = message.reply if config.acks is AckMode.REPLY else b""
        refusal = Refusal(code, str(error))
        return Incoming(
            subject, message.headers, message.value, message.reply, destination, _NO_OPTIONS, refusal=refusal
        )
    destination = _destination(incoming, config)
    return incoming._replace(destination=destination, refusal=_refusal(incoming, destination, config))


def with_batch(message: Incoming, batch: BatchEnvelope, config: StreamConfig) -> Incoming:
    """A message whose batch was read from where it is staged: from here on as if it had come with it."""
    staged = message.staged
    assert staged is not None, "its batch is staged"
    batch = replace(batch, producer_id=staged.producer_id, producer_sequence=staged.producer_sequence)
    whole = message._replace(batch=batch, staged=None)
    return whole._replace(refusal=_refusal(whole, message.destination, config))


def _read(message: Message, subject: bytes) -> Incoming:
    headers, value = message.headers, message.value
    options = _NO_OPTIONS
    if headers is not None and (b"\r\nNats-" in headers or b"\r\nLift-" in headers):
        options = read_publish_options(headers)
    if value[:4] != COOKIE:
        return Incoming(subject, headers, value, message.reply, b"", options)
    envelope = decode_envelope(value)
    if envelope is None:
        return Incoming(subject, headers, value, message.reply, b"", options, is_lookalike=True)
    options = _merge(options, envelope.options)
    if isinstance(envelope, BatchEnvelope | StagedEnvelope):
        if options.message_id is not None:
            raise EnvelopeError("a batch is made idempotent by producer_id and producer_sequence, not by a message id")
        incoming = Incoming(subject, headers, b"", message.reply, b"", options)
        if isinstance(envelope, BatchEnvelope):
            return incoming._replace(batch=envelope)
        return incoming._replace(staged=envelope)
    if envelope.headers is not None:
        headers = envelope.headers
    return Incoming(subject, headers, envelope.value, message.reply, b"", options)


def _with_tombstone(incoming: Incoming) -> Incoming:
    """A message that deletes its key has no value; an empty payload alone is a value."""
    if not incoming.options.tombstone:
        return incoming
    if incoming.batch is not None or incoming.staged is not None or incoming.value:
        raise HeaderError("Lift-Tombstone: a message that deletes its key has an empty payload")
    if incoming.options.key is None:
        raise HeaderError("Lift-Tombstone: there is no key to delete; name it with Lift-Key")
    return incoming._replace(value=None)


def _merge(outer: PublishOptions, inner: PublishOptions) -> PublishOptions:
    """What the envelope says, and what it leaves open from the NATS headers."""
    merged = PublishOptions()
    for name in PublishOptions.__slots__:
        value = getattr(inner, name)
        setattr(merged, name, getattr(outer, name) if value is None else value)
    return merged


def _destination(incoming: Incoming, config: StreamConfig) -> bytes:
    options = incoming.options
    if config.acks is AckMode.OFF or (options.ack_policy or config.ack_policy) is AckPolicy.NONE:
        return b""
    if options.ack_inbox is not None:
        return options.ack_inbox
    return incoming.reply if config.acks is AckMode.REPLY else b""


def _refusal(incoming: Incoming, destination: bytes, config: StreamConfig) -> Refusal | None:
    options = incoming.options
    size = len(incoming.value or b"") + len(incoming.headers or b"")
    if size > config.message_bytes_max:
        return Refusal(
            AckErrorCode.TOO_LARGE,
            f"message of {size} bytes, headers included, is over the stream's limit of {config.message_bytes_max}",
        )
    key_size = _key_size(incoming)
    if key_size > KEY_BYTES_MAX:
        return Refusal(AckErrorCode.TOO_LARGE, f"key of {key_size} bytes is over the limit of {KEY_BYTES_MAX}")
    if options.expected_stream is not None and options.expected_stream != config.name.encode():
        return Refusal(AckErrorCode.WRONG_STREAM, f"expected stream does not match: this is {config.name}")
    # Whoever can not be told that a wish is not granted asked for no answer, and keeps the message.
    if options.unsupported is not None and (destination or incoming.reply):
        return Refusal(AckErrorCode.UNSUPPORTED, str(unsupported_error(options.unsupported)))
    return None


def _key_size(incoming: Incoming) -> int:
    """Bytes of its key, or of the longest one of a batch."""
    batch = incoming.batch
    if batch is None:
        return len(incoming.options.key or b"")
    if not batch.columns & Column.KEY:
        return 0
    keys = batch.arrays[0]  # they come in the order of their bits, and no other is before that of the keys
    if keys.nbytes <= KEY_BYTES_MAX:
        return 0
    return pc.max(pc.binary_length(keys)).as_py() or 0


def refusal_of(error: StorageFullError | PartitionOfflineError) -> Refusal:
    """The refusal that answers a message which this error kept from being stored."""
    if isinstance(error, StorageFullError):
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _OF_THE_PROCESS:
            return Refusal(AckErrorCode.STORAGE_FULL, f"the node can not store it now: {cause.strerror}")
        return Refusal(AckErrorCode.STORAGE_FULL, "the node's disk is full")
    return Refusal(AckErrorCode.PARTITION_OFFLINE, "the partition is offline; the node's log says why")
