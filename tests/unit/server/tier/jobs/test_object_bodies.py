"""What objects are written into and sent from: memory that is given back, and files of which few are mapped at once."""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from tempfile import TemporaryFile

import pytest

from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.jobs.parts.file_body import body_of
from liftpy_server.tier.jobs.parts.memory_budget import MemoryBudget
from liftpy_server.tier.jobs.parts.object_buffer import KEPT_BYTES, ObjectBuffers
from support.tier_rows import plain_records, rows_from, write_rows, written
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole

MIB = 1 << 20


def kept_by(pieces):
    """Writes pieces."""

    def write(buffer):
        assert [buffer.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
        return len(pieces)

    return write


@pytest.mark.parametrize("expected_bytes", [0, 1, 3 * MIB, 64 * MIB, 65 * MIB])
def test_a_buffer_holds_what_was_written_however_large_it_was_expected_to_be(expected_bytes):
    pieces = [bytes([number]) * size for number, size in enumerate([0, 1, 4_095, MIB, 3 * MIB + 7, 5, MIB])]
    with ObjectBuffers().filled(expected_bytes, kept_by(pieces)) as (buffer, written):
        assert written == len(pieces)
        with buffer.body() as body:
            assert bytes(body) == b"".join(pieces)


def test_what_has_no_room_is_written_once_more_into_memory_that_is_not_kept():
    piece = bytes(range(256)) * 4096
    count = KEPT_BYTES // len(piece) + 2
    buffers, tries = ObjectBuffers(), []

    def write(buffer):
        tries.append(len(buffer.memory))
        kept_by([piece] * count)(buffer)

    with buffers.filled(1, write) as (buffer, _):
        with buffer.body() as body:
            assert len(body) == count * len(piece)
            assert all(body[at : at + len(piece)] == piece for at in range(0, len(body), len(piece)))
        grown = buffer.memory
    assert tries == [KEPT_BYTES, 4 * KEPT_BYTES]
    assert grown.closed
    with buffers.filled(1, kept_by([])) as (buffer, _), buffer.body() as body:
        assert len(body) == 0


def test_parquet_that_has_no_room_is_written_once_more():
    rows = [rows_from(plain_records(1_000, base=base)) for base in range(0, 10_000, 1_000)]
    body, alone = written(rows, row_group_bytes=MIB // 4)
    for size in (2, 100, len(body) // 2, len(body) - 100, len(body) - 1, len(body)):
        buffers, tries = ObjectBuffers(), []
        buffers._kept = [mmap.mmap(-1, size)]  # as if they were smaller

        def write(buffer, tries=tries):
            tries.append(len(buffer.memory))
            return write_rows(buffer, rows, row_group_bytes=MIB // 4)

        with buffers.filled(1, write) as (buffer, result), buffer.body() as found:
            assert bytes(found) == body
            assert result == alone
        assert tries == ([size, KEPT_BYTES] if size < len(body) else [size])


def test_the_next_object_is_written_into_the_memory_of_the_last_one_and_shows_nothing_of_it():
    buffers = ObjectBuffers()
    with buffers.filled(2 * MIB, kept_by([b"what the first one holds"])) as (buffer, _):
        memory = buffer.memory
    with buffers.filled(KEPT_BYTES // 2, kept_by([b"the second"])) as (buffer, _):
        assert buffer.memory is memory
        with buffer.body() as body:
            assert bytes(body) == b"the second"


def test_objects_at_the_same_time_have_memory_of_their_own_and_little_of_it_is_kept():
    buffers = ObjectBuffers(kept_max=2)
    with ExitStack() as stack:
        lent = [
            stack.enter_context(buffers.filled(size, kept_by([bytes([number]) * 1_000])))[0]
            for number, size in enumerate((2 * MIB, 3 * MIB, 4 * MIB, KEPT_BYTES + 1))
        ]
        for number, buffer in enumerate(lent):
            with buffer.body() as body:
                assert bytes(body) == bytes([number]) * 1_000
    # Contexts end in reverse: the large one goes at once, and of the three others the last one that comes back.
    assert [buffer.memory.closed for buffer in lent] == [True, False, False, True]


def test_memory_that_is_still_in_use_is_not_given_to_anybody_else():
    buffers = ObjectBuffers()
    with ExitStack() as stack:
        buffer, _ = stack.enter_context(buffers.filled(2 * MIB, kept_by([b"x"])))
        with buffer.body() as body:
            view = body[:1]
        with pytest.raises(BufferError):
            stack.close()
    assert bytes(view) == b"x"
    with buffers.filled(2 * MIB, kept_by([])) as (other, _):
        assert other.memory is not buffer.memory
    view.release()


def test_memory_that_writing_failed_in_is_not_given_to_anybody_else():
    buffers = ObjectBuffers()
    with buffers.filled(1, kept_by([])) as (buffer, _):
        kept = buffer.memory

    def write(buffer):
        assert buffer.memory is kept
        raise ValueError("the rows make no sense")

    with pytest.raises(ValueError, match="make no sense"), buffers.filled(1, write):
        pass
    with buffers.filled(1, kept_by([])) as (buffer, _):
        assert buffer.memory is not kept


def test_uploads_are_written_into_the_same_memory(tmp_path):
    worker = Worker(MemoryStore())
    log = LogFile(tmp_path / "0.log")
    log.append(1_000)
    worker.claim()
    kept = []
    for base in range(0, 1_000, 250):
        worker.upload(log, base, base + 250)
        kept.append(worker.context.buffers._kept[:])  # nothing else shows it
    assert len(kept[0]) == 1
    assert kept == [kept[0]] * 4


def test_the_body_of_a_file_is_what_was_written_to_it():
    with TemporaryFile() as file:
        file.write(b"some of it, ")
        file.write(b"and the rest")
        with body_of(Worker(MemoryStore()).context, file) as body:
            assert bytes(body) == b"some of it, and the rest"


class Budget(MemoryBudget):
    """Tells what is held of it."""

    def __init__(self):
        super().__init__(1 << 30)

    @property
    def held(self):
        return self.bytes_max - self._left


class Store(MemoryStore):
    """Notes of every stream object that is written how large it is, and what was held then."""

    def __init__(self, *budgets):
        super().__init__()
        self.budgets = budgets
        self.written = []

    def create(self, key, body, nonce):
        if "/fragments/" in key:
            self.written.append((len(body), *(budget.held for budget in self.budgets)))
        return super().create(key, body, nonce)


def test_what_a_merge_maps_and_what_an_upload_makes_is_counted_while_it_is_sent(tmp_path):
    memory, mapped = Budget(), Budget()
    store = Store(memory, mapped)
    worker = Worker(store)
    worker.context.memory, worker.context.mapped = memory, mapped
    log = LogFile(tmp_path / "0.log")
    log.append(1_000)
    worker.claim()
    for base in range(0, 1_000, 250):
        worker.upload(log, base, base + 250)
        size, held, _ = store.written.pop()
        assert held == size
    assert worker.call("merge", **PATH._asdict(), epoch=0)["merged"] == 4
    ((size, held, mapped_bytes),) = store.written
    assert mapped_bytes == size
    assert held
    assert (memory.held, mapped.held) == (0, 0)
    check_whole(store, 1_000)
