"""The events of a node: what it remembers, stores and tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy_server.events.backlog import Backlog
from liftpy_server.events.publisher import EventPublisher
from liftpy_server.events.teller import EventTeller

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from liftpy_log.clock import Clock
    from liftpy_log.storage.files import FileCache
    from liftpy_server.consensus.store import RaftMetadataStore
    from liftpy_server.events.teller import Disk
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.settings.events import EventsConfig
    from liftpy_server.streams.streams import Streams
    from liftpy_server.tier.host.side import TierSide

__all__ = ["NodeEvents"]


class NodeEvents:
    """See the module. Where events are turned off nothing of it does anything.

    Args:
        config: Configuration of the events.
        node_id: This node.
        clock: Clock of the node.
    """

    def __init__(self, config: EventsConfig, node_id: str, clock: Clock) -> None:
        self._config = config
        self._node_id = node_id
        self._clock = clock
        self._backlog = Backlog()
        self._publisher: EventPublisher | None = None
        self._teller: EventTeller | None = None

    def applied(self, before: MetadataState, after: MetadataState, now_ns: int) -> None:
        """An entry of the metadata's log was applied; called on the consensus thread."""
        if self._config.enabled:
            self._backlog.applied(before, after, now_ns)

    def start(
        self,
        streams: Streams,
        metadata: RaftMetadataStore,
        files: FileCache,
        executor: Executor,
        disk: Disk,
        tier: TierSide | None,
    ) -> None:
        """Begin to store and to tell, when the node is up."""
        if not self._config.enabled:
            return
        self._publisher = EventPublisher(self._config, self._backlog, streams, metadata, files, executor, self._clock)
        self._teller = EventTeller(self._node_id, streams, disk, tier, self._clock, metadata.propose)
        self._publisher.start()
        self._publisher.wake()
        self._teller.start()

    async def stop(self) -> None:
        """End."""
        for part in (self._teller, self._publisher):
            if part is not None:
                await part.stop()

    def followed(self) -> None:
        """The metadata changed, and the node's streams have followed."""
        if self._publisher is not None:
            self._publisher.wake()

    @property
    def stored(self) -> int:
        """How many events this node has stored since it started."""
        return 0 if self._publisher is None else self._publisher.stored

    @property
    def lost(self) -> int:
        """How many it could not store, or not tell, since it started."""
        dropped = 0 if self._teller is None else self._teller.dropped
        return dropped + (0 if self._publisher is None else self._publisher.lost)
