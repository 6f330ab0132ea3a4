"""Reads some of a stream's partitions from one node, over one connection, into the prefetch buffer.

The next fetch is under way while the last one is parsed. An error of a single partition (another node leads it, or the
node does not know it) is reported, and the others are read on. Records of a new leader epoch are delivered only after
the leader has confirmed that its log contains the records that were read before.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from liftpy_client.connection.cluster import is_passing
from liftpy_client.consumer.decode import split_body, trim
from liftpy_client.consumer.divergence import check_lineage, leader_epochs
from liftpy_client.consumer.prefetch import Fetched
from liftpy_client.errors import LogDivergedError, PullError
from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import BatchCorruptError, BatchTruncatedError, ErrorCode, LiftError
from liftpy_envelope.pull import Api, FetchPartition, FetchRequest, FetchResponse, FetchResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.pull_connection import PullConnection
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.decode import WireBatch
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.consumer.positions import Position
    from liftpy_client.consumer.prefetch import PrefetchBuffer
    from liftpy_envelope.frames import Response

__all__ = ["AgainError", "NodeReader", "ReaderHost"]

_OVERDUE_S: Final = 0.25
_LOOKS_PER_SILENCE: Final = 10  # the longer a node is silent, the less often it is asked whether another one leads
_LOOK_S_MAX: Final = 1.0
_Value = TypeVar("_Value")


class AgainError(LiftError):
    """Nothing is wrong for good: read from wherever the partitions are now."""


class ReaderHost(Protocol):
    """What a reader shares with the readers of other nodes."""

    session: Session
    place: StreamPlace
    positions: dict[int, Position]
    buffer: PrefetchBuffer
    options: ConsumeOptions
    verify: bool

    def arrived(self, number: int) -> None:
        """A partition is well."""
        ...

    def lost(self, number: int, reason: str) -> None:
        """A partition is to be read from wherever it is now."""
        ...

    def act_on(self, result: FetchResult, node_id: str) -> str:
        """What an error of a partition means; returns why it is to be read anew.

        Raises:
            LiftError: nothing can be done.
        """
        ...

    def is_elsewhere(self, number: int, node_id: str, silent_s: float) -> bool:
        """Whether a partition is to be read from another node than this one, which is silent."""
        ...

    async def look_up(self) -> None:
        """Ask where the partitions are now."""
        ...


class NodeReader:
    """Reads partitions from one node.

    Args:
        host: State shared with other readers.
        node_id: Node to read from.
        numbers: Numbers of the partitions.

    Attributes:
        left: Partitions that it still reads.
    """

    def __init__(self, host: ReaderHost, node_id: str, numbers: Iterable[int]) -> None:
        self.left = set(numbers)
        self._host = host
        self._node_id = node_id
        self._positions = {number: host.positions[number] for number in self.left}
        self._epochs: dict[int, int] = {}
        self._forget: set[int] = set()

    def drop(self, number: int) -> None:
        """Read a partition no more: what comes of it from now on is ignored."""
        self.left.discard(number)
        self._forget.add(number)

    async def run(self) -> None:
        """Read until nothing is left to read from this node.

        Raises:
            AgainError, OSError, TimeoutError, PullError, FrameError: the connection is of no use any more.
            LiftError: something that nobody can mend.
        """
        opening = asyncio.ensure_future(self._host.session.open_pull(self._node_id))
        try:
            connection = await self._watched(opening, None, 0.0)
        except BaseException:
            opening.add_done_callback(_close)  # it may have succeeded in the same moment
            opening.cancel()
            raise
        self._host.buffer.readers += 1
        try:
            await self._read(connection)
        finally:
            self._host.buffer.readers -= 1
            connection.close()

    async def _read(self, connection: PullConnection) -> None:
        host = self._host
        verify, host.verify = host.verify, False
        fetching = asyncio.ensure_future(self._fetch(connection, tuple(sorted(self.left)), verify=verify))
        try:
            while self.left:
                response = await self._watched(fetching, connection, host.options.wait_ms / 1000)
                results = unpack_body(FetchResponse, response.result).results
                self._forget |= await self._check(connection, results)
                # The next fetch is under way while this one is taken apart, unless the buffer is full.
                ahead = host.buffer.has_room and bool(self.left)
                if ahead:
                    fetching = asyncio.ensure_future(self._fetch(connection))
                self._take(response, results)
                del response
                if not ahead and self.left:
                    await host.buffer.wait_for_room()
                    fetching = asyncio.ensure_future(self._fetch(connection))
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    async def _watched(
        self, waiting: asyncio.Future[_Value], connection: PullConnection | None, wait_s: float
    ) -> _Value:
        """What a node answers. While it is silent, see whether the partitions are elsewhere by now.

        Args:
            waiting: Task that waits for the answer.
            connection: Connection on which it comes.
            wait_s: How long a sound node may take.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            heard_s = began_s if connection is None else max(began_s, connection.heard_s)
            silent_s = loop.time() - heard_s
            if silent_s >= wait_s + self._host.options.response_timeout_s:
                raise TimeoutError(f"node {self._node_id} does not answer")
            pause_s = max(wait_s + _OVERDUE_S - silent_s, min(silent_s / _LOOKS_PER_SILENCE, _LOOK_S_MAX))
            await asyncio.wait({waiting}, timeout=pause_s)
            if waiting.done():
                return waiting.result()
            heard_s = began_s if connection is None else max(began_s, connection.heard_s)
            silent_s = loop.time() - heard_s
            if silent_s >= wait_s + _OVERDUE_S:
                await self._host.look_up()
                if any(self._host.is_elsewhere(number, self._node_id, silent_s) for number in self.left):
                    raise AgainError(f"node {self._node_id} is silent, and partitions of it are elsewhere")

    async def _fetch(
        self, connection: PullConnection, numbers: tuple[int, ...] = (), *, verify: bool = False
    ) -> Response:
        host = self._host
        wanted = tuple(
            FetchPartition(host.place.key(number), self._positions[number].offset, self._positions[number].epoch)
            for number in numbers
            if number in self.left
        )
        forget, self._forget = self._forget, set()
        request = FetchRequest(
            host.buffer.fetch_bytes(host.options.fetch_bytes),
            host.options.wait_ms,
            wanted,
            tuple(host.place.key(number) for number in forget),
            verify=verify,
            any_replica=host.options.read_from == "nearest",
            subjects=host.options.subjects,
        )
        return await connection.request(Api.FETCH, request)

    async def _check(self, connection: PullConnection, results: Sequence[FetchResult]) -> set[int]:
        """Check those whose leader is another one than before. Returns those that cannot be checked now.

        Raises:
            LogDivergedError: the leader has other records than those that were read.
        """
        new = {result.key.partition: result.epoch for result in results if self._is_unchecked(result)}
        of_leader: dict[str, list[int]] = {}
        for number in new:
            leader = self._host.place.leaders[number]
            of_leader.setdefault(self._node_id if leader is None else leader, []).append(number)
        failed: set[int] = set()
        for leader, numbers in of_leader.items():
            try:
                if leader == self._node_id:
                    await self._bounded(check_lineage(connection, self._host.place, self._positions, numbers))
                else:
                    await self._bounded(self._check_with(leader, {number: new[number] for number in numbers}))
            except (PullError, AgainError, LogDivergedError, OSError, TimeoutError) as error:
                if isinstance(error, PullError) and not is_passing(error.code):
                    raise
                if isinstance(error, LogDivergedError) and error.partition in self.left:
                    raise  # what was dropped meanwhile concerns nobody
                failed |= {number for number in numbers if number in self.left}
                self._lose(numbers, f"its leader cannot be asked: {str(error) or type(error).__name__}")
        self._epochs |= {number: epoch for number, epoch in new.items() if number not in failed}
        return failed

    def _is_unchecked(self, result: FetchResult) -> bool:
        number = result.key.partition
        if number not in self.left or self._positions[number].epoch < 0:
            return False
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return True
        return result.error is ErrorCode.NONE and self._epochs.get(number) != result.epoch

    async def _check_with(self, leader: str, epochs: dict[int, int]) -> None:
        """Have the leader tell, when this node only follows it; a leader of the same epoch or a later one."""
        host = self._host
        connection = await host.session.open_pull(leader)
        try:
            await check_lineage(connection, host.place, self._positions, list(epochs))
            led = await leader_epochs(connection, host.place, list(epochs))
            if any(led[number] < epoch for number, epoch in epochs.items()):
                raise AgainError("another node leads by now")
        finally:
            connection.close()

    async def _bounded(self, asking: Awaitable[None]) -> None:
        async with asyncio.timeout(self._host.options.response_timeout_s):
            await asking

    def _lose(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            if number in self.left:
                self.left.discard(number)
                self._host.lost(number, reason)

    def _take(self, response: Response, results: Sequence[FetchResult]) -> None:
        """Put what a response brought into the buffer; partitions that are done are to be forgotten."""
        host = self._host
        at = 0
        for result in results:
            number = result.key.partition
            if number in self.left:
                position = self._positions[number]
                if result.error is ErrorCode.NONE:
                    self._take_records(response, at, result, position)
                    host.arrived(number)
                    # Until something was read there is nothing to compare; what is read now is this leader's.
                    self._epochs[number] = result.epoch
                else:
                    self._lose([number], host.act_on(result, self._node_id))
                if position.is_done and number in self.left:
                    self.drop(number)
            at += result.body_bytes

    def _take_records(self, response: Response, at: int, result: FetchResult, position: Position) -> None:
        """Put a partition's batches into the buffer.

        Raises:
            AgainError: one of them is damaged; those before it are in the buffer.
        """
        batches: list[WireBatch] = []
        began = position.offset
        failure: LiftError | None = None
        try:
            for header, body in split_body(response.body, at, result.body_bytes):
                if position.is_done:
                    break
                if header.next_offset > position.offset:
                    batch = trim(header, body, position.offset, position.stop)
                    if batch.last > batch.first:
                        batches.append(batch)
                    position.offset = position.read_end = position.limit(header.next_offset)
                    position.epoch = header.leader_epoch
        except (BatchCorruptError, BatchTruncatedError) as error:
            failure = error
        else:
            position.offset = max(position.offset, position.limit(result.next_offset))
        position.high_watermark = result.high_watermark
        if position.offset > began:
            # An epoch vouches for records that were read, and not for what a node skipped.
            epoch = position.epoch if position.read_end == position.offset else -1
            self._host.buffer.put(
                Fetched(result.key, position, batches, position.offset, epoch, result.delete_horizon, result.body_bytes)
            )
        if failure is not None:
            # Damaged on the way or on the disk: the node finds out when it is asked to check.
            self._host.verify = True
            raise AgainError(f"a damaged batch arrived: {failure}") from failure


def _close(opening: asyncio.Future[PullConnection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
