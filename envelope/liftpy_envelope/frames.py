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
from liftpy_envelope.limits import (
    FETCH_PARTITIONS_MAX,
    REQUEST_FRAME_BYTES_MAX,
    RESPONSE_BODY_BYTES_MAX,
    RESPONSE_HEADER_BYTES_MAX,
    STRANGER_FRAME_BYTES_MAX,
)
from liftpy_envelope.unpacking import Bounds, UnpackError, unpack

__all__ = ["Request", "RequestReader", "Response", "ResponseReader", "encode_request", "encode_response"]

_LENGTH: Final = struct.Struct("<I")
_LENGTHS: Final = struct.Struct("<IQ")
_SCRATCH_BYTES: Final = 16 * 1024  # a copy of so much is cheaper than another system call
_NO_BODY: Final = pa.py_buffer(b"")
_STRANGER_BOUNDS: Final = Bounds(items=32, length=8, text_bytes=1_024, binary_bytes=1_024, depth=3)
_REQUEST_BOUNDS: Final = Bounds(
    items=12 * FETCH_PARTITIONS_MAX,  # a follower's rows are the longest
    length=2 * FETCH_PARTITIONS_MAX,  # a few too many are refused by the request that they stand in
    text_bytes=REQUEST_FRAME_BYTES_MAX,
    binary_bytes=REQUEST_FRAME_BYTES_MAX,
    depth=None,
)
_RESPONSE_BOUNDS: Final = Bounds(
    items=RESPONSE_HEADER_BYTES_MAX // 4,
    length=RESPONSE_HEADER_BYTES_MAX // 16,
    text_bytes=RESPONSE_HEADER_BYTES_MAX,
    binary_bytes=RESPONSE_HEADER_BYTES_MAX,
    depth=None,
)


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


def _unpack(packed: bytes | memoryview, bounds: Bounds, size: int, what: str) -> list[Any]:
    try:
        fields = unpack(packed, bounds)
    except UnpackError as error:
        raise FrameError(f"the {what} can not be read: {error}") from error
    if not isinstance(fields, list) or len(fields) != size:
        raise FrameError(f"the {what} is not a msgpack array of {size}")
    return fields


class RequestReader:
    """Cuts a stream of bytes into requests; small ones alone, until its peer is admitted."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._bounds = _STRANGER_BOUNDS
        self._frame_bytes_max = STRANGER_FRAME_BYTES_MAX

    def admit(self) -> None:
        """From now on take all that a peer may ask."""
        self._bounds = _REQUEST_BOUNDS
        self._frame_bytes_max = REQUEST_FRAME_BYTES_MAX

    def feed(self, data: bytes) -> list[Request]:
        """Take the next bytes from the peer.

        Returns:
            The requests that are complete now.

        Raises:
            FrameError: the bytes are not the pull protocol; the connection can not be used further.
        """
        if not self._pending and len(data) >= _LENGTH.size and len(data) == _LENGTH.size + _LENGTH.unpack_from(data)[0]:
            return [self._request(data[_LENGTH.size :])]  # one whole request, as they mostly come
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
            requests.append(self._request(bytes(self._pending[position + _LENGTH.size : end])))
            position = end
        del self._pending[:position]
        return requests

    def _request(self, packed: bytes) -> Request:
        correlation_id, api, version, body = _unpack(packed, self._bounds, 4, "request")
        if not all(type(number) is int and 0 <= number < 2**63 for number in (correlation_id, api, version)):
            raise FrameError("correlation id, api and version of a request are whole numbers")
        return Request(correlation_id, api, version, body)


class ResponseReader:
    """Cuts a stream of bytes into responses.

    The caller receives into `buffer()` and reports how much came with `filled()`. Small responses come whole, with one
    call; most of a large body is received straight into the memory that its response hands on.
    """

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._view = self._scratch  # of which `_position` bytes are filled; larger where a header is
        self._position = 0
        self._header: list[Any] = []
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
        response = _response(self._header, self._body)
        self._body, self._body_view, self._position = None, memoryview(b""), 0
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
            header = _unpack(bytes(view[start + _LENGTHS.size : body_at]), _RESPONSE_BOUNDS, 4, "response")
            body = pa.allocate_buffer(body_length) if body_length else _NO_BODY
            start = min(end, body_at + body_length)
            if body_length:
                target = memoryview(body).cast("B")
                target[: start - body_at] = view[body_at:start]
                if start - body_at < body_length:
                    self._header, self._body, self._body_view = header, body, target
                    self._view, self._position = self._scratch, start - body_at
                    return responses
            responses.append(_response(header, body))
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


def _response(header: list[Any], body: pa.Buffer) -> Response:
    correlation_id, error, message, result = header
    if type(correlation_id) is not int or type(error) is not int or not isinstance(message, str):
        raise FrameError("a response begins with its correlation id, error and message")
    return Response(correlation_id, error, message, result, body)
