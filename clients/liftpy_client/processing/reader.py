"""The reader of a process: its positions are those up to which handlers have finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftpy_client.consumer.assigned import AssignedConsumer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.processing.schedule import Schedule
    from liftpy_envelope.pull import PartitionKey

__all__ = ["ProcessReader"]


class ProcessReader(AssignedConsumer):
    """Reads what is assigned, and tells how far that is processed.

    Whoever takes a message hands it to the schedule at once, so whatever was delivered is either in the schedule, or
    finished.

    Args:
        session: Connections and the cluster's metadata.
        options: Fetch options.
        schedule: What is in flight.
        on_drop: Called when a partition is gone, with its key.
        batches: Whether to read Arrow record batches.
    """

    def __init__(
        self,
        session: Session,
        options: ConsumeOptions,
        schedule: Schedule,
        on_drop: Callable[[PartitionKey], None],
        *,
        batches: bool,
    ) -> None:
        super().__init__(session, options, batches=batches)
        self._schedule = schedule
        self._on_drop = on_drop

    async def parts(self) -> AsyncGenerator[tuple[str, PartitionKey, Iterable[Any]], None]:
        """Yield stream, partition and messages or record batches, until the reader is closed.

        What is yielded is empty from the moment on when its partition is paused or revoked.
        """
        feed = self._feed
        take_apart: Any = feed.delivery.records if self._batches else feed.delivery.messages
        iteration = feed.begin()
        while (taken := await feed.take(iteration)) is not None:
            cursor = taken[1]
            for part in take_apart(*taken):
                yield cursor.stream, cursor.key, part

    def epoch(self, key: PartitionKey) -> int:
        """Return the leader epoch of the last delivered record of a partition."""
        return self._feed.delivered(key).epoch

    def pause_key(self, key: PartitionKey) -> None:
        """Deliver nothing more of a partition for now."""
        if self._feed.has(key):
            self._feed.pause(key)

    def resume_key(self, key: PartitionKey) -> None:
        """Deliver a partition again."""
        if self._feed.has(key):
            self._feed.resume(key)

    # -- what a membership asks

    async def revoke(
        self, stream: str, uuid: bytes, partitions: Sequence[int]
    ) -> dict[tuple[str, bytes, int], tuple[int, int]]:
        """Remove partitions, and return up to where they are processed."""
        found: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        for key in self._here(uuid, partitions):
            found[stream, uuid, key.partition] = self._mark(key)
            self._feed.revoke(key)
            self._on_drop(key)
        return found

    def positions(self) -> dict[tuple[str, bytes, int], tuple[int, int]]:
        """Up to where the partitions are processed."""
        return {(cursor.stream, *cursor.key): self._mark(cursor.key) for cursor in self._feed.cursors()}

    def _mark(self, key: PartitionKey) -> tuple[int, int]:
        low = self._schedule.low(key)
        return self._feed.delivered(key) if low is None else low
