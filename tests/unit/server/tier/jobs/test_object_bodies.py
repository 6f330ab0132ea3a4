"""What objects are written into and sent from: memory that is given back, and files of which few are mapped at once."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile

import pytest

from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.jobs.parts.file_body import body_of
from liftpy_server.tier.jobs.parts.object_buffer import KEPT_BYTES, ObjectBuffers
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, check_whole

MIB = 1 << 20


@pytest.mark.parametrize("expected_bytes", [0, 1, 3 * MIB, 64 * MIB, 65 * MIB])
def test_a_buffer_holds_what_was_written_however_large_it_was_expected_to_be(expected_bytes):
    pieces = [bytes([number]) * size for number, size in enumerate([0, 1, 4_095, MIB, 3 * MIB + 7, 5, MIB])]
    with ObjectBuffers().lend(expected_bytes) as buffer:
        for piece in pieces:
            assert buffer.write(piece) == len(piece)
        with buffer.body() as body:
            assert bytes(body) == b"".join(pieces)


def test_a_buffer_grows_beyond_what_is_kept():
    piece = bytes(range(256)) * 4096
    count = KEPT_BYTES // len(piece) + 2
    buffers = ObjectBuffers()
    with buffers.lend(1) as buffer:
        for _ in range(count):
            buffer.write(piece)
        with buffer.body() as body:
            assert len(body) == count * len(piece)
            assert all(body[at : at + len(piece)] == piece for at in range(0, len(body), len(piece)))
        grown = buffer.memory
    assert grown.closed
    with buffers.lend(1) as buffer, buffer.body() as body:
        assert len(body) == 0


def test_the_next_object_is_written_into_the_memory_of_the_last_one_and_shows_nothing_of_it():
    buffers = ObjectBuffers()
    with buffers.lend(2 * MIB) as buffer:
        buffer.write(b"what the first one holds")
        memory = buffer.memory
    with buffers.lend(KEPT_BYTES) as buffer:
        assert buffer.memory is memory
        buffer.write(b"the second")
        with buffer.body() as body:
            assert bytes(body) == b"the second"


def test_objects_at_the_same_time_have_memory_of_their_own_and_little_of_it_is_kept():
    buffers = ObjectBuffers(kept_max=2)
    with ExitStack() as stack:
        lent = [stack.enter_context(buffers.lend(size)) for size in (2 * MIB, 3 * MIB, 4 * MIB, KEPT_BYTES + 1)]
        for number, buffer in enumerate(lent):
            buffer.write(bytes([number]) * 1_000)
        for number, buffer in enumerate(lent):
            with buffer.body() as body:
                assert bytes(body) == bytes([number]) * 1_000
    # Contexts end in reverse: the large one goes at once, and of the three others the last one that comes back.
    assert [buffer.memory.closed for buffer in lent] == [True, False, False, True]


def test_memory_that_is_still_in_use_is_not_given_to_anybody_else():
    buffers = ObjectBuffers()
    with ExitStack() as stack:
        buffer = stack.enter_context(buffers.lend(2 * MIB))
        buffer.write(b"x")
        with buffer.body() as body:
            view = body[:1]
        with pytest.raises(BufferError):
            stack.close()
    assert bytes(view) == b"x"
    with buffers.lend(2 * MIB) as other:
        assert other.memory is not buffer.memory
    view.release()


def test_the_body_of_a_file_is_what_was_written_to_it():
    with TemporaryFile() as file:
        file.write(b"some of it, ")
        file.write(b"and the rest")
        with body_of(Worker(MemoryStore()).context, file) as body:
            assert bytes(body) == b"some of it, and the rest"


class Budget:
    """Notes what is held of it."""

    def __init__(self):
        self.held = 0

    @contextmanager
    def hold(self, size, _waiting):
        self.held += size
        yield
        self.held -= size


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
        assert held > size
    assert worker.call("merge", **PATH._asdict(), epoch=0)["merged"] == 4
    ((size, held, mapped_bytes),) = store.written
    assert mapped_bytes == size
    assert held
    assert (memory.held, mapped.held) == (0, 0)
    check_whole(store, 1_000)
