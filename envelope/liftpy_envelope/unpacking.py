"""Decodes msgpack and JSON that have no class (see `bodies`): bounded before memory and time are spent on it.

A megabyte of empty arrays is a million objects, and ten bytes can announce an array of four billion values. So every
kind of message has `Bounds`, and decoding ends as soon as one of them is passed. Nothing else in the packages calls
msgpack's decoder; a test holds them to it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import msgpack

from liftpy_envelope.errors import LiftError

__all__ = ["OWN_FILE", "Bounds", "UnpackError", "read_json", "unpack", "unpack_first"]

_Malformed: Final = (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException)


class UnpackError(LiftError, ValueError):
    """The bytes are not msgpack, or not JSON, or hold more than a message of their kind may."""


class Bounds(NamedTuple):
    """What one kind of message may hold.

    Attributes:
        items: Arrays, maps and the values in them, all together.
        length: Values in one array, and in one map.
        text_bytes: Size of one string, bytes.
        binary_bytes: Size of one binary value, bytes.
        depth: Arrays and maps within each other; None where the form of a message is checked in full afterwards, and
            messages are too many to look through twice. More than about a thousand are never decoded.
    """

    items: int
    length: int
    text_bytes: int
    binary_bytes: int
    depth: int | None


OWN_FILE: Final = Bounds(items=2**31, length=2**31 - 1, text_bytes=2**31 - 1, binary_bytes=2**31 - 1, depth=None)
"""What this node wrote itself, and has found whole by its checksum."""


def unpack(data: bytes | memoryview, bounds: Bounds, *, int_keys: bool = False) -> Any:
    """The value of a msgpack message.

    Args:
        data: All of the message.
        bounds: Bounds of this kind of message.
        int_keys: Maps may have keys that are no strings.

    Raises:
        UnpackError: it is not one whole msgpack value within the bounds.
    """
    count = _Counter(bounds.items)
    try:
        value = msgpack.unpackb(
            data, strict_map_key=not int_keys, list_hook=count, object_hook=count, **_maxima(bounds)
        )
    except _Malformed as error:
        raise _error(error) from None
    _check_depth(value, bounds.depth)
    return value


def unpack_first(data: bytes | memoryview, bounds: Bounds) -> tuple[Any, int]:
    """The msgpack value that stands at the beginning, and how many bytes it takes.

    Raises:
        UnpackError: there is none within the bounds.
    """
    count = _Counter(bounds.items)
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(1, len(data)), list_hook=count, object_hook=count, **_maxima(bounds)
    )
    unpacker.feed(data)
    try:
        value = unpacker.unpack()
    except _Malformed as error:
        raise _error(error) from None
    _check_depth(value, bounds.depth)
    return value, unpacker.tell()


def read_json(data: bytes, *, items_max: int, depth_max: int = 32) -> Any:
    """The value of a JSON text.

    Args:
        data: UTF-8.
        items_max: Values in it, at most; a comma or bracket within a string counts as well.
        depth_max: Arrays and objects within each other.

    Raises:
        UnpackError: it is not JSON within the bounds.
    """
    items = data.count(b",") + data.count(b"[") + data.count(b"{")
    if items > items_max:
        raise UnpackError(f"about {items} values, and no more than {items_max} are read")
    try:
        value = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _error(error) from None
    _check_depth(value, depth_max)
    return value


class _Counter:
    """Called by msgpack with every array and map when it is complete, the inner ones first."""

    __slots__ = ("left",)

    def __init__(self, items_max: int) -> None:
        self.left = items_max

    def __call__(self, container: Any) -> Any:
        self.left -= len(container) + 1
        if self.left < 0:
            raise ValueError("more values than a message of its kind may hold")
        return container


def _maxima(bounds: Bounds) -> dict[str, int]:
    return {
        "max_array_len": bounds.length,
        "max_map_len": bounds.length,
        "max_str_len": bounds.text_bytes,
        "max_bin_len": bounds.binary_bytes,
        "max_ext_len": 0,
    }


def _check_depth(value: Any, depth_max: int | None) -> None:
    if depth_max is None:
        return
    level = [value] if type(value) in (list, dict) else []
    for _ in range(depth_max):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (list, dict)
        ]
        if not level:
            return
    raise UnpackError(f"arrays and maps within each other more than {depth_max} deep")


def _error(error: Exception) -> UnpackError:
    return UnpackError(f"{str(error) or type(error).__name__:.200}")
