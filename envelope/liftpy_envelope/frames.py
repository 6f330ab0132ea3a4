"""Framing of the pull protocol.

    request:   length u32 | msgpack [correlation_id, api, version, body]
    response:  header_length u32 | body_length u64 | msgpack [correlation_id, error, message, result] | body

All little-endian. A response's body is raw record batches, so that a node can `sendfile` it from a segment. Both
readers are pure: bytes go in, frames come out, at whatever positions the bytes are split. Sizes are capped before
memory is taken for them.
"""

import struct
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from liftpy_envelope.bodies import Number, pack_body, unpack_body
from liftpy_envelope.errors import ErrorCode, FrameTooLargeError
from liftpy_envelope.limits import (
    REQUEST_FRAME_BYTES_MAX,
    RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX,
    STRANGER_FRAME_BYTES_MAX,
)

__all__ = [
    "Request",
    "RequestReader",
    "Response",
    "ResponseHeader",
    "ResponseReader",
    "encode_request",
    "encode_response",
]

_LENGTH: Final = struct.Struct("<I")
_LENGTHS: Final = struct.Struct("<IQ")
_SCRATCH_BYTES: Final = 16 * 1024  # a copy of so much is cheaper than another system call
_NO_BODY: Final = pa.py_buffer(b"")


class Request(NamedTuple):
    """One request as it arrived; its body is not yet decoded."""

    correlation_id: Number
    api: Number
    version: Number
    body: msgspec.Raw


class ResponseHeader(NamedTuple):
    """What a response says before its body."""

    correlation_id: Number
    error: ErrorCode
    message: str
    result: msgspec.Raw


class Response(NamedTuple):
    """One response as it arrived; its result is not yet decoded."""

    correlation_id: int
    error: ErrorCode
    message: str
    result: msgspec.Raw
    body: pa.Buffer


def encode_request(correlation_id: int, api: int, version: int, body: Any) -> bytes:
    """One whole request frame."""
    packed = pack_body((correlation_id, api, version, body))
    if len(packed) > REQUEST_FRAME_BYTES_MAX:
        raise FrameTooLargeError(f"a request of {len(packed)} bytes is over the limit of {REQUEST_FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(packed)) + packed


def encode_response(
    correlation_id: int,
    result: Any = None,
    *,
    error: ErrorCode = ErrorCode.NONE,
    message: str = "",
    body_length: int = 0,
) -> bytes:
    """A response frame up to where its body begins."""
    packed = pack_body((correlation_id, error, message, result))
    return _LENGTHS.pack(len(packed), body_length) + packed


class RequestReader:
    """Cuts a stream of bytes into requests; small ones alone, until its peer is admitted."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._frame_bytes_max = STRANGER_FRAME_BYTES_MAX

    def admit(self) -> None:
        """From now on take all that a peer may ask."""
        self._frame_bytes_max = REQUEST_FRAME_BYTES_MAX

    def feed(self, data: bytes) -> list[Request]:
        """Take the next bytes from the peer.

        Returns:
            The requests that are complete now.

        Raises:
            FrameError: the bytes are not the pull protocol; the connection can not be used further.
        """
        size = len(data) - _LENGTH.size
        if not self._pending and 0 <= size <= self._frame_bytes_max and size == _LENGTH.unpack_from(data)[0]:
            return [unpack_body(Request, data[_LENGTH.size :])]  # one whole request, as they mostly come
        self._pending += data
        requests = []
        position = 0
        while len(self._pending) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, position)
            if length > self._frame_bytes_max:
                raise FrameTooLargeError(f"a request of {length} bytes is over {self._frame_bytes_max}")
            end = position + _LENGTH.size + length
            if len(self._pending) < end:
                break
            requests.append(unpack_body(Request, bytes(self._pending[position + _LENGTH.size : end])))
            position = end
        del self._pending[:position]
        return requests


class ResponseReader:
    """Cuts a stream of bytes into responses.

    The caller receives into `buffer()` and reports how much came with `filled()`. Small responses come whole, with one
    call; most of a large body is received straight into the memory that its response hands on.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._view = self._scratch  # of which `_position` bytes are filled; larger where a header is
        self._position = 0
        self._header: ResponseHeader | None = None
        self._body: pa.Buffer | None = None  # is filled after what came of it with its header
        self._body_view = memoryview(b"")

    def buffer(self) -> memoryview:
        """Where the next bytes from the peer belong; never empty."""
        return (self._view if self._body is None else self._body_view)[self._position :]

    def filled(self, size: int) -> list[Response]:
        """Report that `size` bytes were received into `buffer()`.

        Returns:
            The responses that this completed.

        Raises:
            FrameError: the bytes are not the pull protocol; the connection can not be used further.
        """
        self._position += size
        if self._body is None:
            return self._cut()
        if self._position < len(self._body_view):
            return []
        assert self._header is not None, "a body comes after its header"
        response = Response(*self._header, self._body)
        self._header = self._body = None
        self._body_view, self._position = memoryview(b""), 0
        return [response]

    def _cut(self) -> list[Response]:
        """Take all whole responses, and begin to fill the body of one that is not."""
        responses: list[Response] = []
        view, start, end = self._view, 0, self._position
        while end - start >= _LENGTHS.size:
            header_length, body_length = _lengths(view, start)
            body_at = start + _LENGTHS.size + header_length
            if body_at > end:
                self._make_room(body_at - start)
                break
            header = unpack_body(ResponseHeader, bytes(view[start + _LENGTHS.size : body_at]))
            body = pa.allocate_buffer(body_length) if body_length else _NO_BODY
            start = min(end, body_at + body_length)
            if body_length:
                target = memoryview(body).cast("B")
                target[: start - body_at] = view[body_at:start]
                if start - body_at < body_length:
                    self._header, self._body, self._body_view = header, body, target
                    self._view, self._position = self._scratch, start - body_at
                    return responses
            responses.append(Response(*header, body))
        self._keep(view[start:end])
        return responses

    def _make_room(self, size: int) -> None:
        if size > len(self._view):
            self._view = memoryview(bytearray(size))

    def _keep(self, rest: memoryview) -> None:
        """Move the beginning of the next response to the front."""
        if len(rest) < _LENGTHS.size:
            self._view = self._scratch
        self._view[: len(rest)] = rest
        self._position = len(rest)


def _lengths(view: memoryview, position: int) -> tuple[int, int]:
    header_length, body_length = _LENGTHS.unpack_from(view, position)
    if not 0 < header_length <= RESPONSE_HEADER_BYTES_MAX:
        raise FrameTooLargeError(f"a response header of {header_length} bytes is not 1 to {RESPONSE_HEADER_BYTES_MAX}")
    if body_length > RESPONSE_BODY_BYTES_MAX:
        raise FrameTooLargeError(f"a response body of {body_length} bytes is over {RESPONSE_BODY_BYTES_MAX}")
    return header_length, body_length
