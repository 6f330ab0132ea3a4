"""Keeps the catalog in the bucket equal to the metadata, on the node that leads these.

It is written soon after a change, and not more often than every few seconds; but at once when a stream is new, for
nothing of it goes to the bucket before the catalog names it. It is looked at now and then without a change, so that a
cluster whose bucket another one has taken over finds out. What was deleted stays in it until the grace period is over
and its objects are gone, also those that forks and cursors hold: nobody else would look for them when these end.

A node that has ceased to lead and does not know it yet writes nothing old: before it writes it reads the metadata
through a barrier, which it can not pass; and the catalog is swapped over the one that was read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftpy_server.metadata.errors import MetadataUnavailableError
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.jobs.parts.catalog_content import Description, is_described
from liftpy_server.tier.requests import DropStreamJob, PutCatalogJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from liftpy_log.clock import Clock
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.tier.requests import DeletedStream
    from liftpy_server.tier.worker.port import Worker

__all__ = ["CatalogKeeper"]

logger = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 5.0
_GATHER_S: Final = 0.2  # streams that are made one after the other are not written one by one
_LOOK_S: Final = 60.0
_RETRY_S: Final = 10.0


class _Metadata(Protocol):
    @property
    def state(self) -> MetadataState: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def cluster_id(self) -> str: ...
    async def read(self) -> MetadataState: ...
    def watch(self) -> AsyncIterator[MetadataState]: ...


class CatalogKeeper:
    """Writes the catalog when the metadata change.

    Args:
        metadata: Metadata of the cluster.
        worker: Works on the bucket.
        clock: Clock for times of deletion.
        grace_s: How long after its deletion the objects of a stream stay.
        on_error: Told of what is wrong with the bucket, and of None when nothing is any more.
        debounce_s: Least time between two writes, but for those of new streams.
        look_s: How often it looks although nothing has changed.

    Attributes:
        version: Version of the catalog, as it was last seen or written here; 0 before that.
    """

    def __init__(
        self,
        metadata: _Metadata,
        worker: Worker,
        clock: Clock,
        *,
        grace_s: float,
        on_error: Callable[[TierWorkError | None], None],
        debounce_s: float = _DEBOUNCE_S,
        look_s: float = _LOOK_S,
    ) -> None:
        self._metadata = metadata
        self._worker = worker
        self._clock = clock
        self._grace_s = grace_s
        self._on_error = on_error
        self._debounce_s = debounce_s
        self._look_s = look_s
        self.version = 0
        self._description = Description()
        self._written: dict[str, Any] | None = None
        self._deleted: tuple[DeletedStream, ...] = ()
        self._known_s: dict[str, float] = {}  # since when a stream is known here to be deleted, monotonic
        self._collected: set[str] = set()
        self._pinned_s: dict[str, float] = {}  # when forks or cursors held something of a deleted stream, monotonic
        self._changed = asyncio.Event()
        self._appeared = asyncio.Event()
        self._told = ""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to keep the catalog."""
        self._tasks = [
            asyncio.create_task(self._watch(), name="watch for the catalog"),
            asyncio.create_task(self._run(), name="keep the catalog"),
        ]

    async def stop(self) -> None:
        """End; what has not been written will be by whoever leads next."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self) -> None:
        async for state in self._metadata.watch():
            self._changed.set()
            if self._metadata.is_leader and self._has_new(state):
                self._appeared.set()

    def _has_new(self, state: MetadataState) -> bool:
        """Whether there is a stream that the catalog does not name."""
        named = {} if self._written is None else self._written["streams"]
        return any(stream.uuid not in named for stream in filter(is_described, state.streams.values()))

    async def _run(self) -> None:
        while True:
            try:
                is_done = await self.look() and self._metadata.is_leader  # who comes to lead finds out soon
                pause_s = self._look_s if is_done else self._debounce_s
            except Exception:
                logger.exception("the catalog in the bucket is not up to date; it is tried again")
                pause_s = _RETRY_S
            await self._wait(pause_s)

    async def _wait(self, pause_s: float) -> None:
        """Wait for a new stream; or for a change, for a while at least and not for ever."""
        debounce_s = min(self._debounce_s, pause_s)
        gather_s = min(_GATHER_S, debounce_s)
        await asyncio.sleep(gather_s)
        if not await _within(self._appeared, debounce_s - gather_s) and not await _within(self._changed, pause_s):
            self._written = None  # look at the bucket although nothing has changed
        self._changed.clear()
        self._appeared.clear()

    async def look(self) -> bool:
        """Have the catalog say what the metadata say, if this node leads these. Returns whether all is done."""
        if not self._metadata.is_leader:
            self._written = None
            return True
        wanted = self._description.of(self._metadata.state)
        if wanted == self._written and not self._collected:
            return await self._collect()
        try:
            wanted = self._description.of(await self._metadata.read())
            await self._put(wanted)
        except MetadataUnavailableError as error:
            logger.info("the catalog waits: %s", error)
            return False
        except TierWorkError as error:
            self._tell(None if error.code == "overtaken" else error)
            return False
        self._tell(None)
        return await self._collect()

    def _tell(self, error: TierWorkError | None) -> None:
        """Tell once of what lasts."""
        text = "" if error is None else error.message
        if text and text != self._told:
            logger.warning("the catalog in the bucket is not up to date: %s", text)
        self._told = text
        self._on_error(error)

    async def _put(self, wanted: dict[str, Any]) -> None:
        collected = tuple(sorted(self._collected))
        result = await self._worker.call(
            PutCatalogJob(
                cluster_id=self._metadata.cluster_id,
                streams=wanted["streams"],
                deleted=tuple(wanted["deleted"]),
                collected=collected,
                now_ns=self._clock.now_ns(),
            )
        )
        if result.written:
            logger.debug("the catalog in the bucket is at version %d", result.version)
        self.version, self._deleted, self._written = result.version, result.deleted, wanted
        self._collected.difference_update(collected)

    async def _collect(self) -> bool:
        """Have the objects of a deleted stream deleted when it is time, one after the other.

        That is when the grace period is over by the wall clock and by the time that passed here: the clock of another
        node may have said when the stream was deleted.
        """
        until_ns, now_s = self._clock.now_ns() - int(self._grace_s * 1e9), self._clock.monotonic()
        self._known_s = {stream.uuid: self._known_s.get(stream.uuid, now_s) for stream in self._deleted}
        self._pinned_s = {uuid: pinned_s for uuid, pinned_s in self._pinned_s.items() if uuid in self._known_s}
        for stream in self._deleted:
            is_over = stream.deleted_ns <= until_ns and now_s - self._known_s[stream.uuid] >= self._grace_s
            is_over &= now_s - self._pinned_s.get(stream.uuid, -self._grace_s) >= self._grace_s
            if is_over and self._metadata.is_leader:
                try:
                    dropped = await self._worker.call(DropStreamJob(uuid=stream.uuid, partitions=stream.partitions))
                except TierWorkError as error:
                    logger.warning("what the bucket holds of deleted stream %s stays for now: %s", stream.uuid, error)
                    return True  # looked at again later
                if dropped.pinned:
                    self._pinned_s[stream.uuid] = now_s
                else:
                    self._collected.add(stream.uuid)
        self._deleted = tuple(stream for stream in self._deleted if stream.uuid not in self._collected)
        return not self._collected


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event. Returns whether it came in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
