"""Envelopes as publishers make them, and as they should not."""

from __future__ import annotations

from typing import Any

import google_crc32c
import msgpack
import pyarrow as pa

from liftpy_envelope.envelope import COOKIE, encode_batch, encode_message_envelope

PRODUCER = bytes(range(1, 17))


def envelope(value: bytes | None, **options: Any) -> bytes:
    """A kind 0 envelope."""
    return encode_message_envelope(value, **options)


def batch(values: list[bytes | None], *, keys: list[bytes | None] | None = None, **options: Any) -> bytes:
    """A kind 1 envelope."""
    records = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        records["key"] = pa.array(keys, pa.binary())
    return encode_batch(records, **options)


def idempotent(values: list[bytes | None], sequence: int, **options: Any) -> bytes:
    """A kind 1 envelope that is stored once."""
    return batch(values, producer_id=PRODUCER, producer_sequence=sequence, **options)


def sealed(body: bytes, *, version: int = 1, kind: int = 0) -> bytes:
    """Any body in an envelope whose checksum is right: beyond doubt one of ours."""
    fixed = bytes((version, 1, kind, 12))
    crc = google_crc32c.extend(google_crc32c.value(fixed), body)
    return COOKIE + fixed + crc.to_bytes(4, "little") + body


def sealed_fields(kind: int = 0, **fields: Any) -> bytes:
    """As `sealed`, around a msgpack map."""
    return sealed(msgpack.packb(fields), kind=kind)


MALFORMED = {
    "unknown version": sealed(b"\x80", version=9),
    "unknown kind": sealed(b"\x80", kind=7),
    "no msgpack": sealed(b"\xc1"),
    "no map": sealed(b"\x01"),
    "unknown field": sealed_fields(value=b"v", colour="red"),
    "wrong type": sealed_fields(value=5),
    "offset below zero": sealed_fields(value=b"v", expected_offset=-5),
    "unknown policy": sealed_fields(value=b"v", ack_policy="some"),
    "inbox with a wildcard": sealed_fields(value=b"v", ack_inbox="a.>"),
    "bytes behind it": sealed(msgpack.packb({"value": b"v"}) + b"more"),
    "batch of nothing": sealed_fields(1, count=0),
    "batch without records": sealed_fields(1, count=3),
    "producer without a sequence": sealed_fields(1, count=1, producer_id=PRODUCER),
    "wrong checksum": envelope(b"v")[:-1] + b"x",
    "cut off": envelope(b"v")[:10],
    "no checksum, no map": COOKIE + bytes((1, 0, 0, 8)) + b"\xff",
    "no checksum, wrong type": COOKIE + bytes((1, 0, 0, 8)) + msgpack.packb({"value": b"v", "correlation_id": b"c"}),
    "no checksum, headers without text": COOKIE
    + bytes((1, 0, 0, 8))
    + msgpack.packb({"value": b"v", "headers": {"a": {"b": 1}}}),
}
"""Envelopes, and wrong."""

CHANCE = {
    "cookie alone": COOKIE,
    "cookie and text": COOKIE + b" is a strange word",
    "unknown flags": COOKIE + bytes((1, 6, 0, 8)) + b"\x80",
    "another length of the head": COOKIE + bytes((1, 0, 0, 12)) + b"\x80",
}
"""Values that begin with the cookie and may do so by chance."""
