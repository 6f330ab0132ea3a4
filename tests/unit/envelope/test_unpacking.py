"""Decoding ends at its bounds, before time and memory are spent."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import google_crc32c
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.envelope import COOKIE, decode_envelope
from liftpy_envelope.errors import EnvelopeError, FrameError
from liftpy_envelope.frames import RequestReader
from liftpy_envelope.pull import HelloRequest
from liftpy_envelope.unpacking import OWN_FILE, Bounds, UnpackError, read_json, unpack, unpack_first

SMALL = Bounds(items=20, length=8, text_bytes=10, binary_bytes=5, depth=3)
MILLION = 1_000_000
MANY_EMPTY = b"\xdd" + struct.pack(">I", MILLION) + b"\x90" * MILLION
NESTED = b"\x91" * 900 + b"\x90"
PROMISES = (b"\xdd\x7f\xff\xff\xff") * 900
"""Arrays within each other that announce two billion values each."""
HOSTILE = {
    "many empty": MANY_EMPTY,
    "nested": NESTED,
    "promises": PROMISES,
    "grid": b"\xdc\x03\xe8" * 3 + b"\x90" * 10**6,
}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0] * 9, "max_array_len"),
        ({str(number): 0 for number in range(9)}, "max_map_len"),
        ("x" * 11, "max_str_len"),
        (b"x" * 6, "max_bin_len"),
        (msgpack.ExtType(1, b"x"), "max_ext_len"),
        (msgpack.Timestamp(1), "max_ext_len"),
        ([[0] * 7] * 3, "more values"),
        ([[[[]]]], "3 deep"),
        ({"a": {"b": {"c": {}}}}, "3 deep"),
    ],
)
def test_every_bound(value, words):
    packed = msgpack.packb(value)
    for read in (unpack, unpack_first):
        with pytest.raises(UnpackError, match=words):
            read(packed, SMALL)


def test_within_the_bounds():
    value = {"a": [1, [2, "x" * 10], b"x" * 5], "b": None}
    packed = msgpack.packb(value)
    assert unpack(packed, SMALL) == value
    assert unpack_first(memoryview(packed + b"more"), SMALL) == (value, len(packed))


@given(st.binary(max_size=200))
def test_anything(data):
    for read in (unpack, unpack_first):
        with contextlib.suppress(UnpackError):
            read(data, SMALL)


@given(st.recursive(st.integers(-(2**63), 2**63) | st.text() | st.binary() | st.none(), st.lists, max_leaves=20))
def test_an_own_file_is_read_as_it_is(value):
    assert unpack(msgpack.packb(value), OWN_FILE) == value


def test_keys_that_are_no_strings():
    with pytest.raises(UnpackError):
        unpack(msgpack.packb({1: 2}), SMALL)
    assert unpack(msgpack.packb({1: 2}), SMALL, int_keys=True) == {1: 2}


@pytest.mark.parametrize("text", [b"[" * 40 + b"]" * 40, b"[" * 100_000, b"[" + b"[]," * 1_000 + b"0]", b"{", b"\xff"])
def test_json(text):
    with pytest.raises(UnpackError):
        read_json(text, items_max=500)


def test_json_within_the_bounds():
    assert read_json(b'{"a": [1, 2, {"b": null}]}', items_max=10, depth_max=3) == {"a": [1, 2, {"b": None}]}


def envelope(body):
    head = bytes((1, 1, 0, 12))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return COOKIE + head + struct.pack("<I", crc) + body


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_envelope_costs_next_to_nothing(body):
    """Before, 1 MB of empty arrays took 0.3 s, and several times that in a node with much memory to look through."""
    payloads = [envelope(b"\x81\xa7headers" + body), envelope(b"\x81\xa7headers\x81\xa1a" + body), envelope(body)]

    def refuse():
        for payload in payloads:
            with pytest.raises(EnvelopeError):
                decode_envelope(payload)

    assert peak_bytes(refuse) < 16 * 1024 * 1024


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_hello_costs_next_to_nothing(body):
    frame = b"\x94\x01\x00\x01" + body[: 4 * 1024]

    def read():
        return [
            unpack_body(HelloRequest, request.body)
            for request in RequestReader().feed(struct.pack("<I", len(frame)) + frame)
        ]

    def refuse():
        with pytest.raises(FrameError):
            read()

    assert peak_bytes(refuse) < 1024 * 1024


def peak_bytes(work):
    """What a piece of work allocates at most: what is built costs time, and the time of a busy machine says nothing."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
