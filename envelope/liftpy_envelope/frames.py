"""Framing of the pull protocol.

    request:   length u32 | msgpack [correlation_id, api, version, body]
    response:  header_length u32 | body_length u64 | msgpack [correlation_id, error, message, result] | body

All little-endian. A response's body is raw record batches, so that a node can `sendfile` it from a segment. Both
readers are pure: bytes go in, frames come out, at whatever positions the bytes are split. Sizes are capped before
memory is taken for them.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgpack
import pyarrow as pa

from liftpy_envelope.errors import ErrorCode, FrameError, FrameTooLargeError
from liftpy_envelope.limits import REQUEST_FRAME_BYTES_MAX, RESPONSE_BODY_BYTES_MAX, RESPONSE_HEADER_BYTES_MAX

__all__ = ["Request", "RequestReader", "Response", "ResponseReader", "encode_request", "encode_response"]

_LENGTH: Final = struct.Struct("<I")
_LENGTHS: Final = struct.Struct("<IQ")


class Request(NamedTuple):
    """One request as it arrived; its body is not yet checked."""

    correlation_id: int
    api: int
    version: int
    body: Any


class Response(NamedTuple):
    """One response as it arrived; its result is not yet checked."""

    correlation_id: int
    error: int
    message: str
    result: Any
    body: pa.Buffer


def encode_request(correlation_id: int, api: int, version: int, body: Any) -> bytes:
    """One whole request frame."""
    packed = bytes(msgpack.packb([correlation_id, api, version, body]))
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
    packed = bytes(msgpack.packb([correlation_id, int(error), message, result]))
    return _LENGTHS.pack(len(packed), body_length) + packed


def _unpack(packed: bytes | memoryview, size: int, what: str) -> list[Any]:
    try:
        fields = msgpack.unpackb(packed)
    except (
        ValueError,
        TypeError,
        UnicodeDecodeError,
        msgpack.exceptions.UnpackException,
        RecursionError,
    ) as error:
        raise FrameError(f"the {what} is not msgpack: {error}") from error
    if not isinstance(fields, list) or len(fields) != size:
        raise FrameError(f"the {what} is not a msgpack array of {size}")
    return fields


class RequestReader:
    """Cuts a stream of bytes into requests."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Request]:
        """Take the next bytes from the peer.

        Returns:
            The requests that are complete now.

        Raises:
            FrameError: the bytes are not the pull protocol; the connection can not be used further.
        """
        self._pending += data
        requests = []
        position = 0
        while len(self._pending) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, position)
            if length > REQUEST_FRAME_BYTES_MAX:
                raise FrameTooLargeError(f"a request of {length} bytes is over {REQUEST_FRAME_BYTES_MAX}")
            end = position + _LENGTH.size + length
            if len(self._pending) < end:
                break
            requests.append(_request(bytes(self._pending[position + _LENGTH.size : end])))
            position = end
        del self._pending[:position]
        return requests


def _request(packed: bytes) -> Request:
    correlation_id, api, version, body = _unpack(packed, 4, "request")
    if not all(type(number) is int and 0 <= number < 2**63 for number in (correlation_id, api, version)):
        raise FrameError("correlation id, api and version of a request are whole numbers")
    return Request(correlation_id, api, version, body)


class ResponseReader:
    """Cuts a stream of bytes into responses without copying their bodies.

    The caller receives into `buffer()` and reports how much came with `filled()`. A body is received straight into
    the memory that the response hands on.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._state = "lengths"
        self._header: list[Any] = []
        self._body_length = 0
        self._expect(bytearray(_LENGTHS.size))

    def _expect(self, target: bytearray | pa.Buffer) -> None:
        self._target = target
        self._view = memoryview(target)
        self._position = 0

    def buffer(self) -> memoryview:
        """Where the next bytes from the peer belong; never empty."""
        return self._view[self._position :]

    def filled(self, size: int) -> Response | None:
        """Report that `size` bytes were received into `buffer()`.

        Returns:
            The response that this completed, if it did.

        Raises:
            FrameError: the bytes are not the pull protocol; the connection can not be used further.
        """
        self._position += size
        if self._position < len(self._view):
            return None
        if self._state == "lengths":
            self._begin_header()
            return None
        if self._state == "header":
            self._header = _unpack(bytes(self._view), 4, "response")
            if self._body_length:
                self._state = "body"
                self._expect(pa.allocate_buffer(self._body_length))
                return None
            body = pa.py_buffer(b"")
        else:
            assert isinstance(self._target, pa.Buffer)
            body = self._target
        correlation_id, error, message, result = self._header
        if type(correlation_id) is not int or type(error) is not int or not isinstance(message, str):
            raise FrameError("a response begins with its correlation id, error and message")
        self._start()
        return Response(correlation_id, error, message, result, body)

    def _begin_header(self) -> None:
        header_length, self._body_length = _LENGTHS.unpack(self._view)
        if not 0 < header_length <= RESPONSE_HEADER_BYTES_MAX:
            raise FrameTooLargeError(
                f"a response header of {header_length} bytes is not 1 to {RESPONSE_HEADER_BYTES_MAX}"
            )
        if self._body_length > RESPONSE_BODY_BYTES_MAX:
            raise FrameTooLargeError(f"a response body of {self._body_length} bytes is over {RESPONSE_BODY_BYTES_MAX}")
        self._state = "header"
        self._expect(bytearray(header_length))
