"""What of a stream the JVM reads from the bucket by itself: the stream objects of a pinned version of each partition.

Behind the end of a root there may be more in the bucket, in stream-set objects. Those hold rows of other streams, too,
and no pin of this partition keeps them: they are left to the source, as is all that only the nodes have.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.pins.held import Pins
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.reading.version import TierVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_bucket.manifest.pins.pin import Pin
    from liftpy_bucket.store.object_store import ObjectStore

__all__ = ["ColdPartition", "PinnedStream", "cold_partition"]

_AT_ONCE: Final = 16  # partitions; each costs some requests, one after the other
_PIN_NAME: Final = "spark-table"


class ColdPartition(NamedTuple):
    """What a pinned version holds of a partition.

    Attributes:
        partition: Number of the partition.
        version: Version of the partition's root.
        start: The first offset that counts. What the first object has below it does not.
        end: The offset after the last one; from here on the source reads.
        keys: Keys of the objects, in order, relative to the prefix of the bucket.
    """

    partition: int
    version: int
    start: int
    end: int
    keys: tuple[str, ...]


def cold_partition(store: ObjectStore, path: PartitionPath, pin: Pin) -> ColdPartition:
    """What a pin holds.

    Raises:
        StoreError, ManifestCorruptError: a manifest can not be read.
    """
    assert pin.root is not None, "it pins a version"
    version = TierVersion(store, path, pin.root, None)
    keys = tuple(piece.key for piece in version.pieces() if piece.pointer.records)
    return ColdPartition(path.partition, pin.root.version, version.start, version.end, keys)


class PinnedStream:
    """The newest version of every partition of a stream, held until it is released or the time is over.

    Args:
        store: The bucket.
        uuid: UUID of the stream.
        partitions: Numbers of the partitions; those of which the bucket has nothing are passed over.
        hold_s: Time for which the pin holds, unless renewed, seconds.
        new_id: Gives a new unique id.
        now_ns: The time, ns since the epoch.

    Attributes:
        cold: What is held, by partition.

    Raises:
        TierError: something in the bucket can not be read or written; then nothing is held.
    """

    def __init__(
        self,
        store: ObjectStore,
        uuid: str,
        partitions: Sequence[int],
        *,
        hold_s: float,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._held: list[tuple[Pins, Pin]] = []
        self.cold: dict[int, ColdPartition] = {}
        with ExitStack() as undo:
            undo.callback(self.release)

            def hold(partition: int) -> ColdPartition | None:
                path = PartitionPath(uuid, partition)
                if RootFile(store, path, new_id=new_id).load() is None:
                    return None
                pins = Pins(store, path, new_id=new_id, now_ns=now_ns)
                pin = pins.hold_version(_PIN_NAME, _nanoseconds(hold_s))
                self._held.append((pins, pin))
                return cold_partition(store, path, pin)

            with ThreadPoolExecutor(_AT_ONCE, "liftpy pins") as pool:
                found = [each for each in pool.map(hold, partitions) if each is not None]
            self.cold.update((each.partition, each) for each in found)
            undo.pop_all()

    def renew(self, hold_s: float) -> None:
        """Hold everything for `hold_s` more from now on.

        Raises:
            PinRefusedError: the time was over, and what was held may have been collected.
        """
        with ThreadPoolExecutor(_AT_ONCE, "liftpy pins") as pool:
            self._held = list(
                pool.map(lambda held: (held[0], held[0].renew(held[1], _nanoseconds(hold_s))), self._held)
            )

    def release(self) -> None:
        """Let go of everything; idempotent.

        Raises:
            StoreError: the bucket can not be written; what is held still goes when its time is over.
        """
        with ThreadPoolExecutor(_AT_ONCE, "liftpy pins") as pool:
            list(pool.map(_release, self._held))
        self._held = []


def _release(held: tuple[Pins, Pin]) -> None:
    pins, pin = held
    with suppress(OvertakenError):  # a collector has found it expired at this moment: then it is gone as well
        pins.release(pin)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
