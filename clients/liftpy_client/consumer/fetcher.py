"""Fetches a stream's partitions into a prefetch buffer, and recovers from every failure.

There is one reader per node. When a connection breaks, a node falls silent, a leader moves or a batch arrives damaged,
the fetcher looks up the partitions concerned and reads them from their new leader. Others continue undisturbed.
Positions only move past what is in the buffer, so no record is delivered twice and none is skipped.

`assign` and `revoke` change the partitions while the fetcher runs. When they return, no record of a revoked position
enters the buffer any more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.cancelling import end_tasks
from liftpy_client.connection.cluster import is_passing
from liftpy_client.consumer.node_reader import AgainError, NodeReader
from liftpy_client.consumer.positions import offset_of
from liftpy_client.consumer.prefetch import Fetched
from liftpy_client.consumer.replica_choice import ReplicaChoice
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
from liftpy_envelope.errors import ErrorCode, FrameError

if TYPE_CHECKING:
    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Position
    from liftpy_client.consumer.prefetch import PrefetchBuffer
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
    """Fetches the partitions of one stream.

    Args:
        session: Connections and the cluster's metadata.
        place: The stream, as it was when consuming began.
        positions: Positions by partition. The fetcher moves them.
        buffer: Prefetch buffer to fill.
        options: Fetch options of the consumer.
        gone_grace_s: Seconds that partitions of a deleted stream may stay before that is an error.
    """

    def __init__(
        self,
        session: Session,
        place: StreamPlace,
        positions: dict[int, Position],
        buffer: PrefetchBuffer,
        options: ConsumeOptions,
        gone_grace_s: float = 0.0,
    ) -> None:
        self.session = session
        self.place = place
        self.positions = positions
        self.buffer = buffer
        self.options = options
        self.verify = False
        self._choice = ReplicaChoice(session.cluster, options)
        self._readers: dict[str, tuple[NodeReader, asyncio.Task[None]]] = {}
        self._gone_grace_s = gone_grace_s
        self._entering = {number for number, position in positions.items() if not position.is_done}
        self._homeless: dict[int, str] = {}  # why
        self._troubled_s: dict[int, float] = {}  # since when
        self._changed = asyncio.Event()
        self._reported_s = 0.0

    def assign(self, number: int, position: Position) -> None:
        """Fetch a partition from here on, whatever was fetched of it before."""
        self.revoke(number)
        self.positions[number] = position
        if not position.is_done:
            self._entering.add(number)
            self._changed.set()

    def revoke(self, number: int) -> None:
        """Fetch a partition no more."""
        self.positions.pop(number, None)
        self._entering.discard(number)
        self._homeless.pop(number, None)
        self._troubled_s.pop(number, None)
        for reader, task in self._readers.values():
            if number in reader.left:
                reader.drop(number)
                if not reader.left:
                    task.cancel()
        self._changed.set()

    async def run(self) -> None:
        """Fetch until every partition has reached its stop, or something cannot be mended."""
        try:
            while self._is_wanted():
                await self._run()
        except StreamGoneError as error:
            if await self._keeps_partitions():
                self.buffer.finish(error)
            else:
                self.buffer.finish()
        except Exception as error:  # noqa: BLE001 - it is raised again where the consumer waits
            self.buffer.finish(error)
        else:
            self.buffer.finish()

    def _is_wanted(self) -> bool:
        return not all(position.is_done for position in self.positions.values())

    async def _keeps_partitions(self) -> bool:
        """Whether nobody takes the partitions of a stream that is gone from here for as long as that may take."""
        try:
            async with asyncio.timeout(self._gone_grace_s):
                while self.positions:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return True
        return False

    async def _run(self) -> None:
        # After an error nobody reads any of them; whoever goes on wants all.
        wanted = {number for number, position in self.positions.items() if not position.is_done}
        self._entering |= wanted - self._homeless.keys()
        self._reported_s = asyncio.get_running_loop().time()
        try:
            while True:
                await self._assign()
                if not self._is_wanted():
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
        """Wait until a partition comes or is lost, or a reader has ended, or it is time to look for better places."""
        if self._homeless or self._entering:
            return
        try:
            async with asyncio.timeout(None if self.options.read_from == "leader" else _REVIEW_S):
                await self._changed.wait()
        except TimeoutError:
            await self._review()
        self._changed.clear()

    async def _assign(self) -> None:
        """Have every partition read that has none to read it."""
        while True:
            wanted = self._wanted()
            busy = wanted.keys() & self._readers.keys()
            if not busy:
                break
            for node_id in busy:
                await self._end(node_id)
        for node_id, numbers in wanted.items():
            self._entering -= numbers
            for number in numbers:
                self._homeless.pop(number, None)
            self._begin(node_id, numbers)

    def _wanted(self) -> dict[str, set[int]]:
        """Which nodes should read which of the partitions that nobody reads."""
        wanted: dict[str, set[int]] = {}
        for number in sorted(self._entering | self._homeless.keys()):
            node_id = self._choice.node(self.place, number)
            if node_id is not None:
                wanted.setdefault(node_id, set()).add(number)
            else:
                self._entering.discard(number)
                self._homeless[number] = f"partition {number} has no leader at the moment"
                self._note_trouble(number)
        return wanted

    def _begin(self, node_id: str, numbers: set[int]) -> None:
        reader = NodeReader(self, node_id, numbers)
        task = asyncio.create_task(reader.run(), name=f"read {self.place.name} from {node_id}")
        task.add_done_callback(lambda _: self._changed.set())
        self._readers[node_id] = reader, task

    async def _end(self, node_id: str) -> None:
        """End a reader; what it read is in the buffer, and the positions say how far that is."""
        reader, task = self._readers.pop(node_id)
        left, reader.left = reader.left, set()
        self._entering |= {number for number in left if not self.positions[number].is_done}
        await end_tasks([task])
        error = task.exception() if task.done() and not task.cancelled() else None
        if error is not None and not _is_passing(error):
            raise error

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
        if result.error is ErrorCode.BATCH_CORRUPT:
            raise CorruptRecordsError(result.message)
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
        target = offset_of(self.options.on_lost, start, end)
        logger.warning(
            "stream %s partition %d: offset %d is lost, going on at %d",
            name,
            number,
            position.offset,
            target,
        )
        position.offset, position.epoch = target, -1
        # Whoever reads is there then, also when nothing comes for long: a group commits that it goes on there.
        self.buffer.put(Fetched(result.key, position, [], position.limit(target), -1, result.delete_horizon, 0))
        return "the offset was lost"


def _is_passing(error: BaseException) -> bool:
    """Whether reading from wherever the partitions are by then may help."""
    if isinstance(error, PullError):
        return is_passing(error.code)
    return isinstance(error, (AgainError, DisconnectedError, OSError, TimeoutError, FrameError, NodeUnavailableError))
