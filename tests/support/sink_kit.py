"""A stream in memory for the sink: it keeps ids for a while, and takes chunks as badly as a cluster may.

world = SinkWorld(partitions=2)
await world.execute(rows, tasks=3)              # stages rows in another distribution each time, and commits
world.at = {5: world.crash}                     # what happens before the fifth effect: a request or a publication
world = SinkWorld(directory=tmp_path)           # rows are staged in a directory, where all but writing is an effect
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.section import STAGING
from liftpy_bucket.staging.source import load_section
from liftpy_bucket.store.memory import MemoryStore
from liftpy_client.errors import PublishTimeoutError
from liftpy_spark.sink.commit import StagedRows, commit
from liftpy_spark.sink.contents import RowTally
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.directory import DirectoryPlace
from liftpy_spark.sink.place import BucketPlace
from liftpy_spark.sink.rows import Layout, flushes
from liftpy_spark.sink.staging import exists, place_of, stage
from liftpy_spark.sink.target import ChunkRange, ChunkScan
from support.fault_store import Crash, FaultStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from liftpy_bucket.staging.section import Section
    from liftpy_bucket.store.object_store import Entry
    from liftpy_spark.sink.place import StagingPlace

__all__ = ["SinkWorld", "Target", "batch_of", "layout_of", "lose_ack"]

WINDOW_S = 100.0


def layout_of(partitions: int = 1, **changes) -> Layout:
    usual = {"stream": "s", "pattern": "s.>", "partitions": partitions, "subject": "s.x", "record_bytes_max": 1_000_000}
    return Layout(**usual | changes)


def batch_of(number: int = 0, application: str = "app") -> SinkBatch:
    return SinkBatch(stream="s", uuid="ab" * 16, application=application, number=number)


class SinkWorld:
    """See the module.

    Args:
        partitions: of the stream.
        record_bytes_max: what makes chunks small: each holds a few records.
        directory: where rows are staged; None: in the bucket.
        leaders_read: whether leaders read what is staged.

    Attributes:
        at: by number of an effect, what happens before it.
        after_publication: by number of a publication, what happens when the node has it.
        after: likewise, when it has been done, before its answer.
        unread: by number, references that leaders do not follow.
        read_unheard: by number, references that leaders follow, and nobody hears of it.
        late: publications that are on their way, and arrive when somebody lets them.
    """

    def __init__(
        self,
        partitions: int = 2,
        record_bytes_max: int = 200,
        directory: Path | None = None,
        *,
        leaders_read: bool = False,
    ) -> None:
        self.directory = directory
        self.layout = layout_of(partitions, record_bytes_max=record_bytes_max)
        self.memory = MemoryStore()
        self.now_s = 1_000.0
        self.logs: list[list[tuple[bytes, int, list[bytes]]]] = [[] for _ in range(partitions)]
        self.epochs = [[0] for _ in range(partitions)]  # where each leader epoch begins, from epoch 1 on
        self.known: dict[tuple[int, bytes, int], tuple[float, ChunkRange]] = {}
        self.at: dict[int, Callable[[], None]] = {}
        self.after: dict[int, Callable[[], None]] = {}
        self.after_publication: dict[int, Callable[[], None]] = {}
        self.late: deque[Callable[[], object]] = deque()
        self.effects = 0
        self.looks = 0
        self.publications = 0
        self.doubt = ""
        self.strict = True
        self.leaders_read = leaders_read
        self.references = 0
        self.unread: set[int] = set()
        self.read_unheard: set[int] = set()
        self._nonces = count()

    def clock(self) -> float:
        return self.now_s

    @staticmethod
    def crash() -> None:
        raise Crash("told to")

    def step(self) -> int:
        self.effects += 1
        self.at.get(self.effects, lambda: None)()
        return self.effects

    def done(self, number: int) -> None:
        self.after.get(number, lambda: None)()

    def store(self) -> FaultStore:
        numbers: dict[int, int] = {}

        def before(request):
            numbers[request.number] = self.step()

        return FaultStore(self.memory, before=before, after=lambda request: self.done(numbers[request.number]))

    async def execute(self, rows: Sequence[tuple[bytes | None, bytes]], tasks: int, batch: SinkBatch | None = None):
        """Stage keys and values as so many tasks do, and commit."""
        batch = batch or batch_of()
        return await self.commit(batch, self.stage(batch, rows, tasks), self.store(), Target(self))

    async def commit(self, batch: SinkBatch, staged: StagedRows, store: FaultStore, target: Target):
        """Commit what was staged, as a driver that is told apart from others."""
        place = BucketPlace(store) if self.directory is None else _SteppedDirectory(self, str(self.directory))
        return await commit(
            batch, staged, store, place, target, f"d{next(self._nonces)}", self.clock, strict=self.strict
        )

    def place(self) -> StagingPlace:
        """Where rows are staged, behind the back of what counts effects."""
        return place_of(self.memory, None if self.directory is None else str(self.directory))

    def staged(self) -> list[str]:
        """The keys of what is staged."""
        return [entry.key for entry in self.place().entries(STAGING)]

    def stage(self, batch: SinkBatch, rows: Sequence[tuple[bytes | None, bytes]], tasks: int) -> StagedRows:
        """Stage keys and values as so many tasks do."""
        sections: list[Section] = []
        tally = RowTally(self.layout.subject)
        for task, share in ((task, rows[task::tasks]) for task in range(tasks)):
            keys, values = (pa.array([row[column] for row in share], pa.binary()) for column in (0, 1))
            table = pa.record_batch({"key": keys, "value": values})
            for chunks in flushes([table], self.layout, 1 << 20, task, tally):
                nonce = f"{next(self._nonces):032x}"
                key = f"{batch.staging_prefix}{task:05d}-{nonce}.arrows"
                sections += stage(self.place(), key, chunks, nonce)
        return StagedRows(tuple(sections), tally.total)

    def memory_has(self, key: str) -> bool:
        return exists(self.memory, key)

    def cut(self, partition: int, keep: int) -> None:
        """A restore: of a partition only the first chunks are there, and nobody knows ids."""
        del self.logs[partition][keep:]
        self.known.clear()
        self.new_leader(partition)

    def end(self, partition: int) -> int:
        """Where a log ends."""
        return sum(len(values) for _, _, values in self.logs[partition])

    def new_leader(self, partition: int) -> None:
        """A leader epoch begins."""
        end = self.end(partition)
        self.epochs[partition] = [*(min(start, end) for start in self.epochs[partition]), end]

    def arrive(self) -> None:
        """All that is late arrives."""
        while self.late:
            self.late.popleft()()

    def take(self, chunk, producer_id: bytes, sequence: int) -> ChunkRange:
        """What a node does with a chunk."""
        log = self.logs[chunk.partition]
        key = (chunk.partition, producer_id, sequence)
        known = self.known.get(key)
        if known is not None and self.now_s - known[0] <= WINDOW_S:
            return known[1]
        start = self.end(chunk.partition)
        values = chunk.records.column("value").to_pylist()
        log.append((producer_id, sequence, values))
        place = ChunkRange(start, start + len(values), len(self.epochs[chunk.partition]))
        self.known[key] = (self.now_s, place)
        return place

    def values(self) -> Counter[bytes]:
        return Counter(value for log in self.logs for _, _, values in log for value in values)


class _SteppedDirectory(DirectoryPlace):
    """A directory as one driver sees it: what it does there is an effect."""

    def __init__(self, world: SinkWorld, directory: str) -> None:
        super().__init__(directory)
        self._world = world

    def read(self, key: str, start: int, length: int) -> bytes:
        number = self._world.step()
        body = super().read(key, start, length)
        self._world.done(number)
        return body

    def entries(self, prefix: str) -> Iterator[Entry]:
        number = self._world.step()
        found = list(super().entries(prefix))
        self._world.done(number)
        return iter(found)

    def delete(self, keys: Sequence[str]) -> None:
        number = self._world.step()
        super().delete(keys)
        self._world.done(number)


class Target:
    """The stream, as one driver sees it."""

    def __init__(self, world: SinkWorld) -> None:
        self.world = world
        self.look_age_max_s = WINDOW_S * 0.4
        self.settle_s = 0.0

    async def ends(self):
        return [self.world.end(partition) for partition in range(len(self.world.logs))]

    async def epoch_ends(self, epochs):
        starts = self.world.epochs
        left = {partition: epoch for partition, epoch in epochs.items() if epoch < len(starts[partition])}
        return {partition: starts[partition][epoch] for partition, epoch in left.items()}

    async def publish(self, chunk, producer_id, sequence):
        self.world.publications += 1
        number = self.world.step()
        nth = self.world.publications
        place = self.world.take(chunk, producer_id, sequence)
        self.world.after_publication.get(nth, lambda: None)()
        await asyncio.sleep(0)
        self.world.done(number)
        return place

    def suits(self, section):
        return self.world.leaders_read

    async def refers(self, section, chunk):
        return self.suits(section)

    async def refer(self, section, directory, chunk, producer_id, sequence):
        self.world.references += 1
        nth = self.world.references
        if nth in self.world.unread:
            return None
        try:
            found = list(load_section(place_of(self.world.memory, directory), section))
        except StagingDamagedError:
            return None
        place = await self.publish(found[chunk], producer_id, sequence)
        return None if nth in self.world.read_unheard else place

    async def look(self, partition, start, producer_id, stop=None):
        self.world.looks += 1
        at, found = 0, set()
        for producer, sequence, values in self.world.logs[partition]:
            if start <= at and (stop is None or at < stop) and producer == producer_id:
                found.add(sequence)
            at += len(values)
        return ChunkScan(at, frozenset(found), self.world.doubt)


def lose_ack() -> None:
    """The ack of a chunk does not come."""
    raise PublishTimeoutError("told to")
