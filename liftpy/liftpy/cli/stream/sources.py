"""What `liftpy publish` publishes: lines of text, with or without keys, or JSON lines of `liftpy consume --json`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    Headers = dict[str, str | list[str]]

__all__ = ["Draft", "json_messages", "read_lines", "text_messages"]

_CHUNK_BYTES: Final = 256 * 1024
_LINE_BYTES_MAX: Final = 128 * 1024 * 1024  # NATS takes at most 64 MiB; as JSON that is more
_OF_A_NODE: Final = ("Nats-", "Lift-")


class Draft(NamedTuple):
    """A message to publish.

    Attributes:
        subject: NATS subject.
        value: Payload. None is a tombstone.
        key: Key of the record.
        headers: Headers; one with several values has a list.
    """

    subject: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None


async def text_messages(
    lines: AsyncIterator[bytes], subject: str, key: bytes | None, separator: bytes | None, headers: Headers | None
) -> AsyncIterator[Draft]:
    """Make a message of every line.

    Args:
        lines: Lines, without line ends.
        subject: Subject of all messages.
        key: Key of all messages, or None.
        separator: What stands between key and value in each line; None if lines have no key.
        headers: Headers of all messages.

    Raises:
        UsageError: a line has no separator.
    """
    number = 0
    async for line in lines:
        number += 1
        if separator is None:
            yield Draft(subject, line, key, headers)
            continue
        found, middle, value = line.partition(separator)
        if not middle:
            raise UsageError(f"line {number}: there is no key separator {separator.decode(errors='replace')!r} in it")
        yield Draft(subject, value, found, headers)


async def json_messages(lines: AsyncIterator[bytes], subject: str | None) -> AsyncIterator[Draft]:
    """Make a message of every JSON line, as `liftpy consume --json` prints them.

    Headers that begin with Nats- or Lift- are left out: they were for the node that stored the message. The id among
    them would have a node take the message for one that it has.

    Args:
        lines: Lines, without line ends.
        subject: Takes the place of what the lines say.

    Raises:
        UsageError: a line is no such object; the message names line and field.
    """
    number = 0
    async for line in lines:
        number += 1
        if line.strip():
            try:
                yield _draft(json.loads(line), subject)
            except (UsageError, ValueError, RecursionError) as error:
                raise UsageError(f"line {number}: {error}") from None


def _draft(found: Any, subject: str | None) -> Draft:
    if not isinstance(found, dict):
        raise UsageError(f"{found!r:.40} is not a JSON object")
    name = subject or found.get("subject")
    if not isinstance(name, str):
        raise UsageError("subject: missing; name one for all before --from-json")
    if "value" not in found and "value_base64" not in found:
        raise UsageError("value: missing; null is a tombstone")
    headers = found.get("headers") or {}
    if not isinstance(headers, dict) or not all(map(_is_header, headers.values())):
        raise UsageError("headers: not an object of texts, or lists of texts")
    kept = {header: value for header, value in headers.items() if not header.startswith(_OF_A_NODE)}
    return Draft(name, _bytes(found, "value"), _bytes(found, "key"), kept or None)


def _is_header(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    text, encoded = found.get(name), found.get(f"{name}_base64")
    for given in (text, encoded):
        if given is not None and not isinstance(given, str):
            raise UsageError(f"{name}: {given!r:.40} is not text")
    if encoded is None:
        return None if text is None else text.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise UsageError(f"{name}_base64: {error}") from None


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """Read every line of an open file, without its line end; the last one need not have any.

    Raises:
        UsageError: a line is longer than any message.
    """
    rest = bytearray()
    async for chunk in _chunks(descriptor):
        first, *lines = chunk.split(b"\n")
        rest += first
        if len(rest) > _LINE_BYTES_MAX:
            raise UsageError(f"a line is longer than {_LINE_BYTES_MAX >> 20} MiB, and NATS takes no such message")
        for line in lines:
            yield bytes(rest).removesuffix(b"\r")
            rest = bytearray(line)
    if rest:
        yield bytes(rest)


async def _chunks(descriptor: int) -> AsyncGenerator[bytes, None]:
    """What there is to read, as it comes: a pipe or terminal is waited for, a file never blocks for long."""
    try:
        while True:
            await _readable(descriptor)
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
    except PermissionError:  # the selector takes no files
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            yield chunk
            await asyncio.sleep(0)


async def _readable(descriptor: int) -> None:
    """Wait until a read would not block."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
