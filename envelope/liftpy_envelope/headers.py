r"""NATS header blocks, and the headers in them that liftpy acts on.

A block is `NATS/1.0[ status]\r\n`, then `Name: value\r\n` lines, then `\r\n`. Names are matched exactly, as
nats-server does. Blocks are stored as they came; only what stands in the tables below is ever interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_envelope.ack import AckPolicy
from liftpy_envelope.errors import AckErrorCode, HeaderError
from liftpy_envelope.limits import CORRELATION_ID_BYTES_MAX, MESSAGE_ID_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Headers",
    "PublishOptions",
    "check_record_headers",
    "encode_header_block",
    "parse_header_lines",
    "read_publish_options",
    "unsupported_error",
    "with_all_values",
]

_FIRST_LINE: Final = b"NATS/1.0"
_OURS: Final = re.compile(rb"\r\n((?:Lift|Nats)-[^:\r\n]*):[ \t]*([^\r\n]*)")
_LINE: Final = re.compile(rb"\r\n([^:\r\n]+):[ \t]*([^\r\n]*)")
_SURROGATES: Final = "\\ud800-\\udfff"  # UTF-8 spells none of them
_EDGE: Final = rf"[^ \t\r\n{_SURROGATES}]"
_WRITABLE: Final = re.compile(rf"[^\s:{_SURROGATES}]+: (?:{_EDGE}(?:[^\r\n{_SURROGATES}]*{_EDGE})?)?")
_UNSUPPORTED: Final = (
    b"Nats-Rollup",
    b"Nats-TTL",
    b"Nats-Incr",
    b"Nats-Batch-",
    b"Nats-Schedule",
    b"Nats-Expected-",
    b"Nats-Required-Api-Level",
    b"Lift-",
)
_OFFSET_MAX: Final = 2**63 - 2


@dataclass(slots=True)
class PublishOptions:
    """What a publisher asked for beside storing the value.

    Attributes:
        key: Key of the record.
        message_id: Id for deduplication.
        ack_policy: Overrides the stream's policy.
        correlation_id: Comes back in the ack.
        expected_offset: The offset that the message must get, or it is refused.
        expected_stream: The stream the publisher believes to be writing to.
        ack_inbox: Where the ack goes instead of the reply subject.
        unsupported: Name of a header that asks for what liftpy does not do.
        tombstone: The message deletes its key: the record's value is null.
    """

    key: bytes | None = None
    message_id: bytes | None = None
    ack_policy: AckPolicy | None = None
    correlation_id: str | None = None
    expected_offset: int | None = None
    expected_stream: bytes | None = None
    ack_inbox: bytes | None = None
    unsupported: str | None = None
    tombstone: bool | None = None


def read_publish_options(block: bytes) -> PublishOptions:
    """Read the headers that liftpy acts on.

    Raises:
        HeaderError: one of them carries a value that can not be accepted.
    """
    options = PublishOptions()
    for name, value in reversed(_OURS.findall(block)):  # of a name that stands twice the first value counts
        reader = _READERS.get(name)
        if reader is not None:
            reader(options, value.rstrip(b" \t"))
        elif name.startswith(_UNSUPPORTED):
            options.unsupported = name.decode("utf-8", "replace")
    return options


def check_record_headers(block: bytes) -> None:
    """Refuse headers that a record of a batch cannot have, because they ask for something: a batch asks for itself.

    Raises:
        HeaderError: there is one.
    """
    for name, _ in _OURS.findall(block):
        if name in _READERS or name.startswith(_UNSUPPORTED):
            hint = {b"Lift-Key": "; pass key", b"Lift-Tombstone": "; pass None as the value"}.get(name, "")
            raise HeaderError(
                f"{name.decode('utf-8', 'replace')[:80]}: a message in a batch cannot have this header, which asks the "
                f"node for something{hint or '; publish the message alone, with `Lift.publish`'}"
            )


def _read_key(options: PublishOptions, value: bytes) -> None:
    options.key = value


def _read_tombstone(options: PublishOptions, value: bytes) -> None:
    if value != b"true":
        raise HeaderError(f"Lift-Tombstone: {value!r:.40} is not true; leave the header away to store the payload")
    options.tombstone = True


def _read_message_id(options: PublishOptions, value: bytes) -> None:
    if len(value) > MESSAGE_ID_BYTES_MAX:
        raise HeaderError(f"Nats-Msg-Id of {len(value)} bytes is over the limit of {MESSAGE_ID_BYTES_MAX}")
    options.message_id = value or None


def _read_ack_policy(options: PublishOptions, value: bytes) -> None:
    try:
        options.ack_policy = AckPolicy(value.decode("ascii"))
    except ValueError:
        raise HeaderError(f"Lift-Ack: {value!r:.40} is not one of leader, all, none") from None


def _read_correlation_id(options: PublishOptions, value: bytes) -> None:
    if len(value) > CORRELATION_ID_BYTES_MAX:
        raise HeaderError(f"Lift-Correlation-Id of {len(value)} bytes is over {CORRELATION_ID_BYTES_MAX}")
    options.correlation_id = value.decode("utf-8", "replace")


def _read_expected_offset(options: PublishOptions, value: bytes) -> None:
    options.expected_offset = _offset(b"Lift-Expected-Offset", value)


def _read_expected_last_sequence(options: PublishOptions, value: bytes) -> None:
    # JetStream counts from one: after a last sequence of n comes the offset n.
    options.expected_offset = _offset(b"Nats-Expected-Last-Sequence", value)


def _read_expected_stream(options: PublishOptions, value: bytes) -> None:
    options.expected_stream = value


def _offset(name: bytes, value: bytes) -> int:
    if value.isdigit() and len(value) < 20 and int(value) <= _OFFSET_MAX:
        return int(value)
    raise HeaderError(f"{name.decode()}: {value!r:.40} is not an offset (a whole number from 0 on)")


_READERS: Final[Mapping[bytes, Callable[[PublishOptions, bytes], None]]] = {
    b"Lift-Key": _read_key,
    b"Lift-Tombstone": _read_tombstone,
    b"Lift-Ack": _read_ack_policy,
    b"Lift-Correlation-Id": _read_correlation_id,
    b"Lift-Expected-Offset": _read_expected_offset,
    b"Nats-Msg-Id": _read_message_id,
    b"Nats-Expected-Last-Sequence": _read_expected_last_sequence,
    b"Nats-Expected-Stream": _read_expected_stream,
}


class Headers(dict[str, str]):
    """The headers of a message: of a name that stands several times the first value, as NATS clients have it.

    `all_values` and `get_all` have the others, too. Publishing such headers publishes all values. Nothing is refused:
    what is not a header line is passed over, since the block is the publisher's own.

    Args:
        block: A NATS header block, as in the `headers` column of record batches. None has no headers.
    """

    __slots__ = ("_repeated",)

    def __init__(self, block: bytes | None = None) -> None:
        super().__init__()
        self._repeated: dict[str, list[str]] = {}
        for name, value in parse_header_lines(block or b""):
            if name in self:
                self._repeated.setdefault(name, [self[name]]).append(value)
            else:
                self[name] = value

    def get_all(self, name: str) -> list[str]:
        """Return all values of a header, in their order."""
        first = self.get(name)
        if first is None:
            return []
        values = self._repeated.get(name, [])
        return list(values) if values[:1] == [first] else [first]  # the first may have been replaced

    def all_values(self) -> dict[str, str | list[str]]:
        """Return a dict as `publish` takes it: a header with several values has a list."""
        return {name: values if len(values := self.get_all(name)) > 1 else value for name, value in self.items()}


def with_all_values(headers: Mapping[str, str | Sequence[str]]) -> Mapping[str, str | Sequence[str]]:
    """Headers to publish, those of a message that came with all of their values."""
    return headers.all_values() if isinstance(headers, Headers) else headers


def parse_header_lines(block: bytes) -> list[tuple[str, str]]:
    """Every header of a block by name and value, in order; a name that stands several times is there as often.

    Never raises, as `Headers`.
    """
    return [
        (name.decode("utf-8", "replace"), value.rstrip(b" \t").decode("utf-8", "replace"))
        for name, value in _LINE.findall(block)
    ]


def encode_header_block(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """A NATS header block.

    Raises:
        HeaderError: a name or value could not be read back from the block as it is.
    """
    lines = [_FIRST_LINE]
    for name, given in with_all_values(headers).items():
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            lines.append(_encode_line(name, given))
        else:
            lines += [_encode_line(name, value) for value in given]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _encode_line(name: object, value: object) -> bytes:
    if isinstance(name, str) and isinstance(value, str) and ":" not in name:
        line = f"{name}: {value}"
        if _WRITABLE.fullmatch(line):
            return line.encode()
    raise HeaderError(
        f"header {name!r:.40}: {value!r:.40} can not stand in a NATS header block: a name is text without white space "
        "and colons, a value is one line of text without white space at its ends"
    )


def unsupported_error(name: str) -> HeaderError:
    """The refusal of a header that asks for what liftpy does not do."""
    return HeaderError(f"header {name} asks for what liftpy does not do", AckErrorCode.UNSUPPORTED)
