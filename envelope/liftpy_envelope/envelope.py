"""The publisher envelope, for publishers that want metadata without NATS headers, or batches.

    cookie 4 bytes | version u8 | flags u8 | kind u8 | header_length u8 | [crc32c u32 when flagged] | body

`header_length` is where the body begins: 8, or 12 with a checksum, which is taken over version, flags, kind,
header_length and body. Kind 0 is one message, its body a msgpack map. Kind 1 is a batch: a msgpack map followed by
one Arrow IPC record batch with binary columns out of key, headers and value. Kind 2 is a batch that is not here: its
body is a msgpack map that says where its records are staged, in the bucket of the nodes or in a directory.

The cookie, and flags that agree with `header_length`, are what an envelope is known by: whatever begins so and can not
be read is a publisher's mistake and is refused, as its key and options would be lost if it were stored as it is. Any
other payload that begins with the cookie does so by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c
import msgpack
import pyarrow as pa

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.arrow_untrusted import read_binary_columns
from liftpy_envelope.columns import Column, columns_in
from liftpy_envelope.errors import EnvelopeError
from liftpy_envelope.headers import PublishOptions, encode_header_block
from liftpy_envelope.ipc import column_buffers, encode_message
from liftpy_envelope.limits import (
    ACK_INBOX_BYTES_MAX,
    CORRELATION_ID_BYTES_MAX,
    ENVELOPE_HEADERS_MAX,
    ENVELOPE_RECORDS_MAX,
    MESSAGE_ID_BYTES_MAX,
    NAME_LENGTH_MAX,
    NATS_PAYLOAD_BYTES_MAX,
)
from liftpy_envelope.unpacking import Bounds, UnpackError, unpack_first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "COOKIE",
    "BatchEnvelope",
    "MessageEnvelope",
    "StagedEnvelope",
    "StagedSection",
    "decode_envelope",
    "encode_batch",
    "encode_message_envelope",
    "encode_staged",
]

COOKIE: Final = b"\xc1LPY"  # 0xC1 begins neither UTF-8 text nor msgpack
VERSION: Final = 1
FLAG_CRC: Final = 1
KIND_MESSAGE: Final = 0
KIND_BATCH: Final = 1
KIND_STAGED: Final = 2

_FIXED: Final = 8
_WITH_CRC: Final = 12
_BATCH_FIELDS_BYTES_MAX: Final = 16 * 1024
_MESSAGE_BOUNDS: Final = Bounds(
    items=2 * ENVELOPE_HEADERS_MAX,
    length=ENVELOPE_HEADERS_MAX,
    text_bytes=NATS_PAYLOAD_BYTES_MAX,
    binary_bytes=NATS_PAYLOAD_BYTES_MAX,
    depth=3,
)
_BATCH_BOUNDS: Final = Bounds(items=64, length=32, text_bytes=1_024, binary_bytes=1_024, depth=1)
_STAGED_BOUNDS: Final = _BATCH_BOUNDS._replace(text_bytes=4_096)
_BATCH_COLUMNS: Final = Column.KEY | Column.HEADERS | Column.VALUE
_BOUNDS: Final = {KIND_MESSAGE: _MESSAGE_BOUNDS, KIND_BATCH: _BATCH_BOUNDS, KIND_STAGED: _STAGED_BOUNDS}
_STAGED_KEY_BYTES_MAX: Final = 512
_STAGED_DIRECTORY_BYTES_MAX: Final = 4_096
_TYPES: Final[dict[type, str]] = {bytes: "bin", dict: "map", list: "array"}
_COLUMN_BITS: Final = {"key": Column.KEY, "headers": Column.HEADERS, "value": Column.VALUE}


@dataclass(frozen=True, slots=True)
class MessageEnvelope:
    """Kind 0: one message."""

    value: bytes | None
    headers: bytes | None
    options: PublishOptions


@dataclass(frozen=True, slots=True)
class BatchEnvelope:
    """Kind 1: a batch of messages, stored and acknowledged as one.

    Attributes:
        columns: Bitmap of the columns given, `VALUE` always among them.
        arrays: Values of the columns, in the order of their bits.
        producer_id: 16 bytes, or None when the batch is not idempotent.
        producer_sequence: Number of the batch among its producer's.
        partition: The partition the publisher chose for all records, or None.
        producer_epoch: Above 0 for an ordered producer, of which a partition stores a batch only if its epoch and
            sequence are the greatest so far.
    """

    count: int
    columns: int
    arrays: tuple[pa.BinaryArray, ...]
    producer_id: bytes | None
    producer_sequence: int
    partition: int | None
    options: PublishOptions
    producer_epoch: int = 0


class StagedSection(NamedTuple):
    """Chunks of rows that stand together in an object of the bucket.

    Attributes:
        key: Key of the object.
        start: Where they begin in it, bytes.
        length: Length of all of them, bytes.
        chunks: How many there are.
        crc: CRC-32C of their bytes.
        directory: Directory that has a file in place of the object; None where it is in the bucket.
    """

    key: str
    start: int
    length: int
    chunks: int
    crc: int
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class StagedEnvelope:
    """Kind 2: a batch whose records the leader reads from where they are staged.

    Attributes:
        section: Where its records are.
        chunk: Which of the chunks there it is, from 0 on.
        producer_id: As in `BatchEnvelope`; there always is one.
        producer_sequence: As in `BatchEnvelope`.
        partition: As in `BatchEnvelope`.
    """

    section: StagedSection
    chunk: int
    producer_id: bytes
    producer_sequence: int
    partition: int | None
    options: PublishOptions


def encode_message_envelope(
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: Mapping[str, str | Sequence[str]] | None = None,
    ack_inbox: str | None = None,
    ack_policy: AckPolicy | None = None,
    correlation_id: str | None = None,
    msg_id: bytes | None = None,
    expected_offset: int | None = None,
) -> bytes:
    """Encode a kind 0 envelope. A `value` of None is a tombstone."""
    fields: dict[str, Any] = {
        "key": key,
        "value": value,
        "headers": None if headers is None else dict(headers),
        "msg_id": msg_id,
    }
    return _seal(KIND_MESSAGE, _pack(fields, ack_inbox, ack_policy, correlation_id, expected_offset))


def encode_batch(
    records: Mapping[str, pa.BinaryArray],
    *,
    producer_id: bytes | None = None,
    producer_sequence: int = -1,
    producer_epoch: int = 0,
    ack_inbox: str | None = None,
    ack_policy: AckPolicy | None = None,
    correlation_id: str | None = None,
    expected_offset: int | None = None,
    partition: int | None = None,
) -> bytes:
    """Encode a kind 1 envelope.

    Args:
        records: Binary arrays of one length by name, out of `key`, `headers` and `value`.
        producer_id: 16 bytes that make the batch idempotent together with `producer_sequence`.
        producer_sequence: Number of the batch among its producer's, from 0 on.
        producer_epoch: Above 0 for a batch of an ordered producer.
        ack_inbox: Subject for the ack.
        ack_policy: Overrides the stream's policy.
        correlation_id: Comes back in the ack.
        expected_offset: The offset that the first record must get.
        partition: The partition for all records, where the stream spreads by hash.

    Raises:
        EnvelopeError: the records are none that a node would take.
    """
    bitmap = sum([bit for name, bit in _COLUMN_BITS.items() if name in records])
    arrays = [records[name] for name in _COLUMN_BITS if name in records]
    if len(arrays) != len(records) or not bitmap & Column.VALUE:
        raise EnvelopeError(f"a batch has the columns value and, where wanted, key and headers, not {[*records]}")
    count = len(arrays[0])
    if not 0 < count <= ENVELOPE_RECORDS_MAX:
        raise EnvelopeError(f"a batch has between 1 and {ENVELOPE_RECORDS_MAX} records, not {count}")
    for name, array in records.items():
        if len(array) != count or not isinstance(array, pa.BinaryArray):
            found = f"a {type(array).__name__} of {len(array)}"
            raise EnvelopeError(f"column {name} of a batch is {found}, not a BinaryArray of {count} values")
    fields: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_sequence": None if producer_id is None else producer_sequence,
        "producer_epoch": producer_epoch or None,
        "count": count,
        "columns": bitmap,
        "partition": partition,
    }
    header = _pack(fields, ack_inbox, ack_policy, correlation_id, expected_offset)
    return _seal(KIND_BATCH, header, *encode_message(count, [column_buffers(array) for array in arrays]))


def encode_staged(
    section: StagedSection,
    chunk: int,
    *,
    stream: str,
    producer_id: bytes,
    producer_sequence: int,
    ack_inbox: str | None = None,
    ack_policy: AckPolicy | None = None,
    partition: int | None = None,
) -> bytes:
    """Encode a kind 2 envelope.

    Args:
        section: Where the records are.
        chunk: Which of the chunks there it is.
        stream: The only stream that is to store it.
        producer_id: As for `encode_batch`.
        producer_sequence: As for `encode_batch`.
        ack_inbox: As for `encode_batch`.
        ack_policy: As for `encode_batch`.
        partition: As for `encode_batch`.
    """
    fields = section._asdict() | {
        "chunk": chunk,
        "stream": stream,
        "producer_id": producer_id,
        "producer_sequence": producer_sequence,
        "partition": partition,
    }
    return _seal(KIND_STAGED, _pack(fields, ack_inbox, ack_policy, None, None))


def _pack(
    fields: dict[str, Any],
    ack_inbox: str | None,
    ack_policy: AckPolicy | None,
    correlation_id: str | None,
    expected_offset: int | None,
) -> bytes:
    fields |= {
        "ack_inbox": ack_inbox,
        "ack_policy": None if ack_policy is None else ack_policy.value,
        "correlation_id": correlation_id,
        "expected_offset": expected_offset,
    }
    return bytes(msgpack.packb({name: value for name, value in fields.items() if value is not None or name == "value"}))


def _seal(kind: int, *body: bytes | pa.Buffer) -> bytes:
    fixed = bytes((VERSION, FLAG_CRC, kind, _WITH_CRC))
    crc = google_crc32c.value(fixed)
    for part in body:
        crc = google_crc32c.extend(crc, part)
    return b"".join((COOKIE, fixed, crc.to_bytes(4, "little"), *body))


def decode_envelope(payload: bytes) -> MessageEnvelope | BatchEnvelope | StagedEnvelope | None:
    """Open an envelope.

    Args:
        payload: A NATS payload that begins with the cookie.

    Returns:
        The envelope, or None when the payload begins with the cookie by chance, as what follows begins no envelope.

    Raises:
        EnvelopeError: it is an envelope, and malformed; the error names the field.
        HeaderError: as above; one of its options carries a value that can not be accepted.
    """
    version, flags, kind, header_length = payload[4:_FIXED].ljust(4, b"\xff")
    if (flags, header_length) not in {(0, _FIXED), (FLAG_CRC, _WITH_CRC)}:
        return None
    if flags:
        crc = google_crc32c.extend(google_crc32c.value(payload[4:8]), pa.py_buffer(payload)[_WITH_CRC:])
        if crc != int.from_bytes(payload[_FIXED:_WITH_CRC], "little"):
            raise EnvelopeError("the envelope's checksum is not that of its bytes: it was damaged, or cut off")
    if version != VERSION:
        raise EnvelopeError(f"envelope version {version} is not known here; this liftpy reads version {VERSION}")
    return _decode_body(kind, payload, header_length)


def _decode_body(kind: int, payload: bytes, start: int) -> MessageEnvelope | BatchEnvelope | StagedEnvelope:
    # The unpacker copies what it is fed; the records of a batch need not go through it.
    view = memoryview(payload)[start : start + _BATCH_FIELDS_BYTES_MAX if kind == KIND_BATCH else None]
    try:
        fields, size = unpack_first(view, _BOUNDS.get(kind, _BATCH_BOUNDS))
    except UnpackError as error:
        raise EnvelopeError(f"the envelope's body can not be read: {error}") from error
    if not isinstance(fields, dict):
        raise EnvelopeError("the envelope's body is not a msgpack map")
    end = start + size
    if kind == KIND_BATCH:
        return _decode_batch(_Fields(fields), memoryview(payload)[end:])
    if kind not in {KIND_MESSAGE, KIND_STAGED}:
        raise EnvelopeError(f"envelope kind {kind} is not known here")
    if end != len(payload):
        raise EnvelopeError(f"{len(payload) - end} bytes follow the envelope's body")
    return _decode_message(_Fields(fields)) if kind == KIND_MESSAGE else _decode_staged(_Fields(fields))


def _told(kind: type) -> str:
    """The type as msgpack has it."""
    return _TYPES.get(kind, kind.__name__)


class _Fields:
    """The fields of a body, taken one by one with their type; what is left over at the end is unknown."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def take(self, name: str, kind: type | tuple[type, ...], bytes_max: int | None = None) -> Any:
        value = self._fields.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            found, wanted = _told(type(value)), " or ".join(map(_told, kind if isinstance(kind, tuple) else (kind,)))
            raise EnvelopeError(f"field {name} is of type {found}, where {wanted} is wanted")
        if bytes_max is not None and isinstance(value, (bytes, str)):
            size = len(value if isinstance(value, bytes) else value.encode())
            if size > bytes_max:
                raise EnvelopeError(f"field {name} of {size} bytes is over the limit of {bytes_max}")
        return value

    def options(self) -> PublishOptions:
        policy = self.take("ack_policy", str, 16)
        expected = self.take("expected_offset", int)
        inbox = self.take("ack_inbox", str, ACK_INBOX_BYTES_MAX)
        if expected is not None and not 0 <= expected < 2**63 - 1:
            raise EnvelopeError(f"expected_offset {expected} is not an offset (a whole number from 0 on)")
        if policy is not None and policy not in {"leader", "all", "none"}:
            raise EnvelopeError(f"ack_policy {policy!r} is not one of leader, all, none")
        if inbox is not None and (not inbox.isprintable() or set(inbox) & set(" *>") or ".." in f".{inbox}."):
            raise EnvelopeError(f"ack_inbox {inbox!r:.80} is not a subject that can be published to")
        return PublishOptions(
            ack_inbox=None if inbox is None else inbox.encode(),
            ack_policy=None if policy is None else AckPolicy(policy),
            correlation_id=self.take("correlation_id", str, CORRELATION_ID_BYTES_MAX),
            expected_offset=expected,
        )

    def producer(self) -> tuple[bytes | None, int | None]:
        producer_id = self.take("producer_id", bytes, 16)
        sequence = self.take("producer_sequence", int)
        if producer_id is not None and (len(producer_id) != 16 or producer_id == bytes(16)):
            raise EnvelopeError("producer_id is 16 bytes that are not all zero")
        if (producer_id is None) != (sequence is None) or (sequence is not None and not 0 <= sequence < 2**63):
            raise EnvelopeError("an idempotent batch has a producer_id and a producer_sequence from 0 on")
        return producer_id, sequence

    def partition(self) -> int | None:
        partition: int | None = self.take("partition", int)
        if partition is not None and partition < 0:
            raise EnvelopeError(f"partition {partition} is not a partition (a whole number from 0 on)")
        return partition

    def number(self, name: str, below: int) -> int:
        number = self.take(name, int)
        if number is None or not 0 <= number < below:
            raise EnvelopeError(f"field {name} is a whole number from 0 on below {below}, not {number}")
        return int(number)

    def text(self, name: str, bytes_max: int) -> str:
        text = self.take(name, str, bytes_max)
        if not text:
            raise EnvelopeError(f"field {name} is missing")
        return str(text)

    def end(self) -> None:
        if self._fields:
            raise EnvelopeError(f"unknown fields: {', '.join(sorted(map(repr, self._fields)))[:200]}")


def _decode_message(fields: _Fields) -> MessageEnvelope:
    options = fields.options()
    options.key = fields.take("key", bytes)
    message_id = fields.take("msg_id", (bytes, str), MESSAGE_ID_BYTES_MAX)
    # As in the NATS header, an empty one is none: else all messages with an empty one were duplicates of each other.
    options.message_id = (message_id.encode() if isinstance(message_id, str) else message_id) or None
    headers = fields.take("headers", dict)
    value = fields.take("value", bytes)
    fields.end()
    return MessageEnvelope(value, None if headers is None else _header_block(headers), options)


def _header_block(headers: dict[Any, Any]) -> bytes:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, (str, list)):
            raise EnvelopeError("field headers is a map of strings to strings, or to lists of strings")
    return encode_header_block(headers)


def _decode_batch(fields: _Fields, message: memoryview) -> BatchEnvelope:
    options = fields.options()
    producer_id, sequence = fields.producer()
    epoch = fields.take("producer_epoch", int)
    count = fields.take("count", int)
    bitmap = fields.take("columns", int)
    partition = fields.partition()
    fields.end()
    if epoch is not None and (producer_id is None or not 0 < epoch < 2**31):
        raise EnvelopeError("an ordered producer has a producer_id and a producer_epoch from 1 on, below 2^31")
    if count is None or not 0 < count <= ENVELOPE_RECORDS_MAX:
        raise EnvelopeError(f"count is between 1 and {ENVELOPE_RECORDS_MAX}, not {count}")
    columns = _BATCH_COLUMNS if bitmap is None else bitmap
    if columns & ~_BATCH_COLUMNS or not columns & Column.VALUE:
        raise EnvelopeError("a batch has the columns value and, where wanted, key and headers; no others")
    arrays = read_binary_columns(message, len(columns_in(columns)), count)
    return BatchEnvelope(
        count,
        columns,
        tuple(arrays),
        producer_id,
        -1 if sequence is None else sequence,
        partition,
        options,
        epoch or 0,
    )


def _decode_staged(fields: _Fields) -> StagedEnvelope:
    options = fields.options()
    options.expected_stream = fields.text("stream", NAME_LENGTH_MAX).encode()
    section = StagedSection(
        fields.text("key", _STAGED_KEY_BYTES_MAX),
        fields.number("start", 2**63),
        fields.number("length", 2**63),
        fields.number("chunks", 2**31),
        fields.number("crc", 2**32),
        fields.take("directory", str, _STAGED_DIRECTORY_BYTES_MAX),
    )
    chunk = fields.number("chunk", section.chunks)
    producer_id, sequence = fields.producer()
    partition = fields.partition()
    fields.end()
    if producer_id is None or sequence is None:
        raise EnvelopeError("a batch that is staged has a producer_id and a producer_sequence")
    return StagedEnvelope(section, chunk, producer_id, sequence, partition, options)
