"""What a chunk from the NATS socket costs a node, from its bytes to its acks, without socket, threads and fsync."""

from __future__ import annotations

import time
from contextlib import contextmanager

from bench.row import Row
from liftpy_envelope.pull import PartitionKey
from liftpy_envelope.stream_config import StreamConfig
from liftpy_log.clock import SystemClock
from liftpy_log.ids.dedupe import DedupeWindow
from liftpy_log.partition_log import LogConfig, PartitionLog
from liftpy_log.storage.disk import OsDisk
from liftpy_log.storage.files import FileCache
from liftpy_server.ingest.binding import Binding
from liftpy_server.ingest.ingest import Ingest
from liftpy_server.metadata.state import StreamInfo
from liftpy_server.partition.outbox import Outbox
from liftpy_server.partition.partition import Load, Partition
from liftpy_server.partition.stream_state import StreamState

__all__ = ["chunk"]

_COUNTS = (1, 2, 4, 8, 16, 64, 256, 1_000)
_UUID = bytes(16)
_SETTINGS = {"name": "chunks", "subject": "chunks.>", "sync": "interval"}


class _NoGaps:
    """Who keeps gaps where there are none."""

    def new_id(self):
        return "none"

    def changed(self, gaps, delay_s):
        """Nothing is written down."""

    begun = ended = changed


@contextmanager
def _ingest(directory):
    """An ingest with one stream on one partition; and the bytes of acks that it wrote, in a list."""
    config, clock, sizes = StreamConfig.from_plain(_SETTINGS), SystemClock(), [0]

    def write(frames):
        sizes[0] += len(frames)
        return True

    files = FileCache(OsDisk(), 8)
    outbox = Outbox(write)
    info = StreamInfo(uuid=_UUID.hex(), config=config, created_ns=0)
    stream = StreamState(info, clock, _NoGaps())
    log = PartitionLog.open(OsDisk(), files, directory, LogConfig(keep_unsynced=False))
    dedupe = DedupeWindow(10**9, 1)
    key = PartitionKey(_UUID, 0)
    partition = Partition(key, stream, log, dedupe, 1, outbox, Load(), lambda _: None, clock)
    ingest = Ingest(clock, outbox, sizes.append, lambda *_: None, sizes.append)
    ingest.bindings[1] = Binding(stream, config.subject, {0: partition})
    try:
        yield ingest, sizes
    finally:
        files.close()


def chunk(rig, plan):
    """Microseconds of CPU a message, by how many of them a chunk has."""
    for count in _COUNTS:
        row = Row(
            f"a message in chunks of {count:,}, 128 B", "interval", "us", is_absolute=True, smaller_is_better=True
        )
        frame = b"MSG chunks.new 1 _INBOX.load.%07d 128\r\n" + bytes(128) + b"\r\n"
        data = b"".join(frame % number for number in range(count))
        chunks = max(20, plan.chunked // count)
        with _ingest(rig.home / f"chunks-{count}") as (ingest, sizes):
            for run in range(-1, plan.runs):  # one that does not count
                started = time.process_time()
                for _ in range(chunks):
                    ingest.receive(data)
                if run >= 0:
                    row.add("liftpy", (time.process_time() - started) / (chunks * count) * 1e6)
            assert len(sizes) == 1, "everything was understood"
            assert sizes[0] > (plan.runs + 1) * chunks * count * 100, "everything was acknowledged"
        yield row
