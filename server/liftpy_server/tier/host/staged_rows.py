"""Batches that the sink of Spark staged: messages say where they are, and the leader reads them.

    message taken     its section is asked for, if it is not here: one job of the worker writes all of it to a file
    section here      each message of it is appended with its batch, as if it had come with it
    all appended      the file goes; so it does after a while in which nobody asked for more

Who publishes them waits for acks and sends again, as with any batch: what is given up here is not lost. Who may publish
to a subject is for NATS to decide. So a message brings only what was staged for its own stream, under its own subject.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from prometheus_client.core import CounterMetricFamily

from liftpy_bucket.staging.section import SECTION_BYTES_MAX, STAGING, is_staged_key
from liftpy_envelope.envelope import BatchEnvelope, decode_envelope
from liftpy_envelope.errors import AckErrorCode, EnvelopeError
from liftpy_server.messages.incoming import Refusal, with_batch
from liftpy_server.partition.acks import AckItem
from liftpy_server.partition.partition import StagedReader
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.requests import ReadStagedJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from liftpy_envelope.envelope import StagedSection
    from liftpy_log.clock import Clock
    from liftpy_log.storage.disk import Disk, File
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.requests import StagedBatch
    from liftpy_server.tier.worker.port import Worker

__all__ = ["StagedRows", "staged_metrics"]

logger = logging.getLogger(__name__)

_SECTIONS_MAX: Final = 3  # at a time: what reads the bucket does one job more
_WAITING_MAX: Final = 4_096  # messages
_APPENDED_BYTES: Final = 4 * 1024 * 1024  # at once, and the batch that goes beyond
_IDLE_S: Final = 2.0
_WAIT_S_MAX: Final = 30.0
_SHARE_OF_WINDOW: Final = 0.1  # of the time for which ids are known; publishers leave as much of it


class _Waiting(NamedTuple):
    """A message whose batch is not here yet, and when it came, by the clock of elapsed time."""

    partition: Partition
    message: Incoming
    came_s: float


class _Section:
    """A section that messages were taken for.

    Attributes:
        waiting: Messages whose batch is not appended yet, by their chunk and where their ack goes.
        served: Chunks that were appended, or refused.
        asked: Set when there are messages.
    """

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, bytes], _Waiting] = {}
        self.served: set[int] = set()
        self.asked = asyncio.Event()


class StagedRows(StagedReader):
    """Reads staged batches of the partitions that this node leads. To be used in the event loop.

    Args:
        worker: Reads the bucket.
        disk: Disk of the node.
        executor: Reads from the disk.
        directory: Directory for sections, with nothing else in it; what was is deleted by `start`.
        clock: Clock of the node.
        flush: Sends the acks that are due.
        staging: Directory that rows are read from as well; None for none.

    Attributes:
        sections: How many sections were read.
        bytes: Bytes that they have where they are staged.
        failures: Sections that could not be read.
    """

    def __init__(
        self,
        worker: Worker,
        disk: Disk,
        executor: Executor,
        directory: Path,
        clock: Clock,
        flush: Callable[[], None],
        staging: str | None = None,
    ) -> None:
        self._worker = worker
        self._disk = disk
        self._executor = executor
        self._directory = directory
        self._clock = clock
        self._flush = flush
        self._staging = staging
        self._places = asyncio.Semaphore(_SECTIONS_MAX)
        self._sections: dict[tuple[bytes, StagedSection], _Section] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._warnings = RepeatedWarnings(logger)
        self.sections = self.bytes = self.failures = 0

    def start(self) -> None:
        """Begin with an empty directory. Waits for the disk.

        Raises:
            OSError: it can not be made, or emptied.
        """
        self._disk.make_directory(self._directory, durable=False)
        for name in self._disk.names(self._directory):
            self._disk.remove(self._directory / name)

    async def stop(self) -> None:
        """End; messages that wait are published again elsewhere."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def take(self, partition: Partition, message: Incoming) -> Refusal | None:
        """See `StagedReader.take`."""
        staged = message.staged
        assert staged is not None, "its batch is staged"
        refusal = _refusal(partition, message, staged.section, self._staging)
        if refusal is not None:
            return refusal
        if self._waiting >= _WAITING_MAX:
            return _unreadable(f"busy: {_WAITING_MAX} batches wait to be read from the bucket")
        name = (partition.key.uuid, staged.section)
        section = self._sections.get(name)
        if section is None:
            section = self._sections[name] = _Section()
            task = asyncio.create_task(self._serve(name, section), name="read a staged section")
            self._tasks.add(task)
            task.add_done_callback(self._done)
        copy = (staged.chunk, message.destination)
        if copy not in section.waiting:  # else it was sent again, as it has to wait
            section.waiting[copy] = _Waiting(partition, message, self._clock.elapsed())
            section.asked.set()
            self._waiting += 1
        return None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("rows that Spark staged could not be appended; who publishes them asks again", exc_info=error)

    async def _serve(self, name: tuple[bytes, StagedSection], section: _Section) -> None:
        """Read a section, and append what is asked for of it."""
        path = self._directory / f"{uuid4().hex}.rows"
        try:
            async with self._places:
                try:
                    batches = await self._read(name[1], path)
                    file = self._disk.open(path)
                except (TierWorkError, OSError) as error:
                    self.failures += 1
                    self._refuse_all(section, f"what is staged can not be read: {error}")
                    return
                try:
                    await self._append_all(batches, file, section)
                finally:
                    file.close()
        finally:
            del self._sections[name]  # whoever asks from here on begins anew
            self._waiting -= len(section.waiting)
            self._disk.remove(path)

    async def _read(self, place: StagedSection, path: Path) -> tuple[StagedBatch, ...]:
        result = await self._worker.call(ReadStagedJob(**place._asdict(), path=str(path)))
        self.sections += 1
        self.bytes += place.length
        return result.batches

    async def _append_all(self, batches: tuple[StagedBatch, ...], file: File, section: _Section) -> None:
        while True:
            while section.waiting:
                await self._append(self._taken(section, batches), file)
            if len(section.served) == len(batches):
                return
            section.asked.clear()
            try:
                async with asyncio.timeout(_IDLE_S):
                    await section.asked.wait()
            except TimeoutError:
                if not section.waiting:
                    return

    def _taken(self, section: _Section, batches: tuple[StagedBatch, ...]) -> list[tuple[_Waiting, StagedBatch]]:
        """Messages whose batches are appended at once, in the order in which they came."""
        taken: list[tuple[_Waiting, StagedBatch]] = []
        size = 0
        while section.waiting and size < _APPENDED_BYTES:
            waiting = section.waiting.pop(next(iter(section.waiting)))
            assert waiting.message.staged is not None, "its batch is staged"
            chunk = waiting.message.staged.chunk
            section.served.add(chunk)
            taken.append((waiting, batches[chunk]))
            size += batches[chunk].length
        self._waiting -= len(taken)
        return taken

    async def _append(self, taken: list[tuple[_Waiting, StagedBatch]], file: File) -> None:
        """Append batches, or refuse them, if this node still leads; if not, the next leader gets the messages."""

        def read() -> list[bytes]:
            return [file.read(batch.position, batch.length) for _, batch in taken]

        payloads = await asyncio.get_running_loop().run_in_executor(self._executor, read)
        messages: dict[Partition, list[Incoming]] = {}
        for (waiting, batch), payload in zip(taken, payloads, strict=True):
            found = self._message(waiting, batch, payload)
            if isinstance(found, Refusal):
                self._refuse(waiting, found)
            elif _is_led(waiting.partition):
                messages.setdefault(waiting.partition, []).append(found)
        for partition, those in messages.items():
            partition.append_incoming(those, self._clock.now_ns())
            partition.end_pass()
        self._flush()

    def _message(self, waiting: _Waiting, batch: StagedBatch, payload: bytes) -> Incoming | Refusal:
        """A message with its batch, or why it is not stored."""
        partition, message, came_s = waiting
        config = partition.stream.config
        try:
            envelope = decode_envelope(payload)
        except EnvelopeError as error:
            return _unreadable(f"what was read of the bucket is no batch: {error}")
        if not isinstance(envelope, BatchEnvelope):
            return _unreadable("what was read of the bucket is no batch")
        if batch.subject.encode() != message.subject:
            text = f"these records are staged for subject {batch.subject!r:.200}: they come by messages to that alone"
            return Refusal(AckErrorCode.MALFORMED, text)
        if self._clock.elapsed() - came_s > _wait_s_max(config.dedupe_window_s):
            return _unreadable("it took too long to read them from the bucket")
        return with_batch(message, envelope, config)

    def _refuse_all(self, section: _Section, text: str) -> None:
        self._warnings.tell(
            "reading", f"rows that Spark staged: {text}; who publishes them is told", self._clock.monotonic()
        )
        while section.waiting:
            self._refuse(section.waiting.pop(next(iter(section.waiting))), _unreadable(text))
            self._waiting -= 1
        self._flush()

    def _refuse(self, waiting: _Waiting, refusal: Refusal) -> None:
        message = waiting.message
        if _is_led(waiting.partition):
            item = AckItem(message.destination, -1, correlation_id=message.options.correlation_id)
            waiting.partition.refuse(item, refusal)


_COUNTERS: Final = (
    ("sections", "sections of rows that the sink of Spark staged and this node read"),
    ("bytes", "bytes that they have where they are staged"),
    ("failures", "sections that could not be read; the driver publishes them"),
)


def staged_metrics(rows: StagedRows) -> Iterator[Metric]:
    """What a node has read of staged rows, as metrics."""
    for name, text in _COUNTERS:
        yield CounterMetricFamily(f"liftpy_staged_{name}", text, value=float(getattr(rows, name)))


def _refusal(partition: Partition, message: Incoming, section: StagedSection, staging: str | None) -> Refusal | None:
    """Why it is not even looked up what a message is about."""
    if not message.destination:
        text = "a batch that is staged asks for an ack: without one, nobody would notice that it can not be read"
        return Refusal(AckErrorCode.MALFORMED, text)
    prefix = f"{STAGING}{partition.key.uuid.hex()}/"
    if not is_staged_key(section.key) or not section.key.startswith(prefix):
        text = f"{section.key!r:.200} is nothing that is staged for stream {partition.stream.name}"
        return Refusal(AckErrorCode.MALFORMED, text)
    if section.directory not in {None, staging}:
        text = f"this node reads nothing from the directory {section.directory!r:.200}, see tier.staging_directory"
        return Refusal(AckErrorCode.UNSUPPORTED, text)
    if section.length > SECTION_BYTES_MAX:
        return _unreadable(f"{section.length} bytes are staged in one piece, and {SECTION_BYTES_MAX} are read as one")
    return None


def _is_led(partition: Partition) -> bool:
    """Whether this node leads a partition still, and has not closed it: another one may have its files by now."""
    return partition.is_leading and partition.gone is None


def _unreadable(text: str) -> Refusal:
    return Refusal(AckErrorCode.STAGED_UNREADABLE, f"{text} (nothing is stored: publish the records themselves)")


def _wait_s_max(window_s: float) -> float:
    """How long a message may wait, so that a copy of it that comes another way is still known by its id."""
    return min(_WAIT_S_MAX, window_s * _SHARE_OF_WINDOW) if window_s else _WAIT_S_MAX
