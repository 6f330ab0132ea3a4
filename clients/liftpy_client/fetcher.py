"""Fetches a stream's partitions into a prefetch buffer, and goes on after whatever happens.

One reader for each node. A connection that breaks, a node that falls silent, a leader that moves, a batch that arrives
damaged: the partitions concerned are looked up and read from where they are now, and the others do not notice. The
positions only ever move past what is in the buffer, so nothing is handed out twice and nothing is left out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from liftpy_client.choosing import ReplicaChoice
from liftpy_client.cluster import is_passing
from liftpy_client.errors import (
    AdminError,
    CorruptRecordsError,
    DisconnectedError,
    NodeUnavailableError,
    NoStreamError,
    OffsetLostError,
    PullError,
    StreamGoneError,
)
from liftpy_client.reading import AgainError, NodeReader
from liftpy_envelope.errors import ErrorCode, FrameError

if TYPE_CHECKING:
    from liftpy_client.cluster import StreamPlace
    from liftpy_client.consumer import ConsumeOptions
    from liftpy_client.positions import Position
    from liftpy_client.prefetch import PrefetchBuffer
    from liftpy_client.session import Session
    from liftpy_envelope.pull import FetchResult

__all__ = ["Fetcher"]

logger = logging.getLogger(__name__)

_PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_PAUSES_PER_TROUBLE: Final = 20  # after two seconds of trouble a pause is a tenth of a second, after twenty a second
_STALL_REPORT_S: Final = 10.0
_REVIEW_S: Final = 10.0
_UNKNOWN_STREAM_S: Final = 1.0  # a node may hear of a new stream a moment later than others
_OFFLINE_S: Final = 30.0


class Fetcher:
    """See the module.

    Args:
        session: connections and the cluster's metadata.
        place: the stream, as it was when consuming began.
        positions: by partition; moved by the fetcher.
        buffer: takes what is fetched.
        options: of the consumer.
    """

    def __init__(
        self,
        session: Session,
        place: StreamPlace,
        positions: dict[int, Position],
        buffer: PrefetchBuffer,
        options: ConsumeOptions,
    ) -> None:
        self.session = session
        self.place = place
        self.positions = positions
        self.buffer = buffer
        self.options = options
        self.verify = False
        self._choice = ReplicaChoice(session.cluster, options)
        self._readers: dict[str, tuple[NodeReader, asyncio.Task[None]]] = {}
        self._homeless = {number: "" for number, position in positions.items() if not position.is_done}
        self._troubled_s: dict[int, float] = {}  # since when
        self._changed = asyncio.Event()
        self._reported_s = 0.0

    async def run(self) -> None:
        """Fetch until every partition has reached its stop, or something can not be mended."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - it is raised again where the consumer waits
            self.buffer.finish(error)
        else:
            self.buffer.finish()

    async def _run(self) -> None:
        self._reported_s = asyncio.get_running_loop().time()
        try:
            while True:
                await self._assign()
                if all(position.is_done for position in self.positions.values()):
                    return
                await self._wait()
                self._reap()
                if self._homeless:
                    await asyncio.sleep(self._pause_s())
                    await self.look_up()
        finally:
            for node_id in list(self._readers):
                await self._end(node_id)

    async def _wait(self) -> None:
        """Wait until a partition is lost, or a reader has ended, or it is time to look for better places."""
        if self._homeless:
            return
        try:
            async with asyncio.timeout(None if self.options.read_from == "leader" else _REVIEW_S):
                await self._changed.wait()
        except TimeoutError:
            await self._review()
        self._changed.clear()

    async def _assign(self) -> None:
        """Have every partition read that has none to read it."""
        wanted: dict[str, set[int]] = {}
        for number in list(self._homeless):
            node_id = self._choice.node(self.place, number)
            if node_id is not None:
                wanted.setdefault(node_id, set()).add(number)
            else:
                self._homeless[number] = f"partition {number} has no leader at the moment"
                self._note_trouble(number)
        for node_id, numbers in wanted.items():
            known = self._readers.get(node_id)
            if known is not None:
                await self._end(node_id)
            for number in numbers:
                self._homeless.pop(number, None)
            together = numbers | (set() if known is None else known[0].left)
            self._begin(node_id, [number for number in together if not self.positions[number].is_done])

    def _begin(self, node_id: str, numbers: list[int]) -> None:
        reader = NodeReader(self, node_id, numbers)
        task = asyncio.create_task(reader.run(), name=f"read {self.place.name} from {node_id}")
        task.add_done_callback(lambda _: self._changed.set())
        self._readers[node_id] = reader, task

    async def _end(self, node_id: str) -> None:
        """End a reader; what it read is in the buffer, and the positions say how far that is."""
        _, task = self._readers.pop(node_id)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, Exception) and not _is_passing(result):
            raise result

    def _reap(self) -> None:
        """See which readers have ended by themselves.

        Raises:
            LiftError: one of them met something that nobody can mend.
        """
        for node_id, (reader, task) in list(self._readers.items()):
            if not task.done():
                continue
            del self._readers[node_id]
            error = None if task.cancelled() else task.exception()
            if error is not None and not _is_passing(error):
                raise error
            for number in reader.left:
                self.lost(number, f"{error}" or type(error).__name__)

    def _pause_s(self) -> float:
        """How long to wait before the next try: the longer a partition has been in trouble, the longer."""
        now_s = asyncio.get_running_loop().time()
        since_s = [self._troubled_s.get(number, now_s) for number in self._homeless]
        if now_s - max(min(since_s), self._reported_s) > _STALL_REPORT_S:
            self._reported_s = now_s
            number, reason = next(iter(self._homeless.items()))
            logger.warning(
                "consuming %s has stalled in %d of its partitions (%d: %s); still trying",
                self.place.name,
                len(self._homeless),
                number,
                reason,
            )
        pause_s = (now_s - max(since_s)) / _PAUSES_PER_TROUBLE
        spread = random.uniform(0.5, 1.5)  # noqa: S311 - spreads retries, keeps no secret
        return min(max(pause_s, _PAUSE_S_MIN), _PAUSE_S_MAX) * spread

    async def look_up(self) -> None:
        """Ask where the partitions are now; when nobody tells, they stay where they were.

        Raises:
            StreamGoneError: the stream is not there any more.
            DisconnectedError: the connection to NATS is closed.
        """
        name = self.place.name
        try:
            place = await self.session.cluster.latest(name)
        except NodeUnavailableError:
            return  # asked again after the next failure
        except AdminError as error:
            if not error.code.retriable:
                raise
            return
        except NoStreamError:
            raise StreamGoneError(f"stream {name!r} was deleted while it was being consumed") from None
        if place.uuid != self.place.uuid:
            raise StreamGoneError(f"stream {name!r} was deleted and created again while it was being consumed")
        self.place = place

    async def _review(self) -> None:
        """Read from the nearest replicas again that could not be read for a while."""
        await self.look_up()
        for node_id, (reader, _) in list(self._readers.items()):
            misplaced = [number for number in reader.left if self._choice.node(self.place, number) != node_id]
            if misplaced:
                await self._end(node_id)
                self._homeless |= dict.fromkeys(reader.left, "")

    def _note_trouble(self, number: int) -> None:
        self._troubled_s.setdefault(number, asyncio.get_running_loop().time())

    # -- what readers tell

    def arrived(self, number: int) -> None:
        """See `ReaderHost`."""
        self._troubled_s.pop(number, None)

    def lost(self, number: int, reason: str) -> None:
        """See `ReaderHost`."""
        self._homeless[number] = reason
        self._note_trouble(number)
        self._changed.set()

    def is_elsewhere(self, number: int, node_id: str, silent_s: float) -> bool:
        """See `ReaderHost`."""
        return self._choice.is_elsewhere(self.place, number, node_id, silent_s)

    def act_on(self, result: FetchResult, node_id: str) -> str:
        """See `ReaderHost`."""
        name, number = self.place.name, result.key.partition
        if node_id != self.place.leaders[number]:
            self._choice.avoid(number, node_id)  # it may be behind, or out of sync: the leader knows
            return result.message or result.error.name
        since_s = self._troubled_s.get(number)
        trouble_s = 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._act_on_lost_offset(result)
        if result.error is ErrorCode.PARTITION_OFFLINE:
            if len(self.place.replicas_to_read(number)) > 1 and trouble_s < _OFFLINE_S:
                return result.message  # another replica may lead soon
            raise CorruptRecordsError(f"stream {name} partition {number} is offline on its node: {result.message}")
        if result.error is ErrorCode.UNKNOWN_STREAM and trouble_s >= _UNKNOWN_STREAM_S:
            raise StreamGoneError(f"stream {name!r} was deleted while it was being consumed")
        return result.message or result.error.name

    def _act_on_lost_offset(self, result: FetchResult) -> str:
        name, number = self.place.name, result.key.partition
        position, start, end = self.positions[number], result.log_start, result.high_watermark
        if not position.is_exact and position.epoch < 0:
            position.offset = start  # found by asking, and gone before anything was read
            return "the stream begins later than it did a moment ago"
        if self.options.on_lost == "error":
            raise OffsetLostError(name, number, position.offset, start, end)
        target = start if self.options.on_lost == "earliest" else end
        logger.warning(
            "stream %s partition %d: offset %d is lost, going on at %d",
            name,
            number,
            position.offset,
            target,
        )
        position.offset, position.epoch = target, -1
        return "the offset was lost"


def _is_passing(error: BaseException) -> bool:
    """Whether reading from wherever the partitions are by then may help."""
    if isinstance(error, PullError):
        return is_passing(error.code)
    return isinstance(error, (AgainError, DisconnectedError, OSError, TimeoutError, FrameError, NodeUnavailableError))
