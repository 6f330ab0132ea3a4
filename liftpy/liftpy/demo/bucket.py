"""The demonstration's bucket: what has been stored leaves the disks, so that the replay comes from the bucket."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.admin.stream_settings import StreamSettings
    from liftpy_client.client import Lift

__all__ = ["BUCKET_SETTINGS", "LOCAL_SETTINGS", "Tiered", "wait_tiered"]

LOCAL_SETTINGS: Final[StreamSettings] = {"segment_bytes": 4 << 20, "local_retention_bytes": 1}
"""Of the streams: what the bucket has leaves the disk at once, but for the segment that is written to."""

BUCKET_SETTINGS: Final = {
    "LIFTPY_TIER_UPLOAD_BYTES": str(16 << 20),
    "LIFTPY_TIER_UPLOAD_AGE_S": "2",
    "LIFTPY_STORAGE_RETENTION_INTERVAL_S": "0.5",
}
"""Of the nodes, as environment variables: minutes are longer than the demonstration."""

_LOOK_EVERY_S: Final = 0.2
_TIMEOUT_S: Final = 120.0


class Tiered(NamedTuple):
    """A stream of which the bucket has everything.

    Attributes:
        local_start: The first offset on its leader's disk; what is below is in the bucket alone.
        stored_bytes: Size of its objects in the bucket, bytes.
    """

    local_start: int
    stored_bytes: int


async def wait_tiered(lift: Lift, streams: Iterable[str]) -> tuple[dict[str, Tiered], int]:
    """Wait until the bucket has all of some streams of one partition, and most of each has left its leader's disk.

    Returns:
        The streams by name, and how many requests that took until now.

    Raises:
        LiftError: it takes too long, or the bucket is in trouble.
    """
    names = set(streams)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        status = await lift.tier_status()
        found = {each.stream: each for each in status.partitions if each.stream in names}
        if found.keys() == names and all(
            each.tiered_end == each.high_watermark and each.local_start > each.tiered_end // 2
            for each in found.values()
        ):
            tiered = {name: Tiered(each.local_start, each.stored_bytes) for name, each in found.items()}
            return tiered, sum(status.requests.values())
        if time.monotonic() > deadline:
            raise LiftError(
                f"the bucket did not get everything within {_TIMEOUT_S:g} s; it is {status.state} {status.message}"
            )
        await asyncio.sleep(_LOOK_EVERY_S)
