"""Memory as a file: what is read, and that nothing is read twice or copied as a whole."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from liftpy_bucket.store.memory_reader import MemoryPieces, MemoryReader

BODY = bytes(range(256)) * 40


def test_it_reads_as_any_file():
    file, like = MemoryReader(memoryview(BODY)), io.BytesIO(BODY)
    for size in (1, 100, 8_192, 0, 5_000, 10):
        assert file.read(size) == like.read(size)
        assert file.tell() == like.tell()
    for place in ((0, io.SEEK_SET), (-300, io.SEEK_END), (-20, io.SEEK_CUR), (99_999, io.SEEK_SET)):
        assert file.seek(*place) == like.seek(*place)
        assert file.read(200) == like.read(200)
    file.seek(0)
    assert file.read() == BODY
    assert file.readable()
    assert file.seekable()


@pytest.mark.parametrize("place", [(-1, io.SEEK_SET), (-10_241, io.SEEK_END), (0, 9)])
def test_places_that_are_not_there(place):
    with pytest.raises(ValueError, match="no position"):
        MemoryReader(memoryview(BODY)).seek(*place)


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 1 << 20])
def test_pieces_are_the_memory_itself_as_often_as_they_are_asked_for(size):
    body = bytearray(bytes(range(256)) * 4_096)[:size]
    reader = MemoryReader(memoryview(body))
    pieces = MemoryPieces(reader)
    for _ in range(2):
        assert b"".join(pieces) == body
        assert all(0 < len(piece) <= 256 << 10 and piece.obj is body for piece in pieces)
    assert pieces.seek(size // 2) == size // 2
    assert b"".join(pieces) == body[size // 2 :]
    assert pieces.seek(0) == 0
    assert b"".join(pieces) == body


def test_it_is_never_in_memory_twice():
    body = memoryview(bytearray(64 << 20))
    file = MemoryReader(body)
    tracemalloc.start()
    try:
        while file.read(16_384):
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
