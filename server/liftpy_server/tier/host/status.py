"""What a node tells of the bucket."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from liftpy_bucket.store.counting import costs_usd
from liftpy_server.tier.schedule.alarms import StoreState, room_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from liftpy_log.clock import Clock
    from liftpy_server.partition.partition import Partition
    from liftpy_server.tier.host.counters import TierCounters
    from liftpy_server.tier.host.tierer import Tierer
    from liftpy_server.tier.schedule.places import Place

__all__ = ["DiskRoom", "partition_status", "tier_metrics", "tier_status"]

_SAMPLES: Final = 60
_SAMPLE_S: Final = 1.0
_KNOWN_S: Final = 5.0  # a shorter look at a disk says nothing


class DiskRoom:
    """How long the disk lasts while nothing can leave it."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._reserve_bytes = 0

    def note(self, free_bytes: int, reserve_bytes: int, now_s: float) -> None:
        """So much is free now, and so much of it is never used."""
        self._reserve_bytes = reserve_bytes
        if not self._samples or now_s - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append((now_s, free_bytes))

    def room_s(self) -> float | None:
        """Seconds at the rate of the last minute; None while it does not fill, or is not known yet."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        if last_s - first_s < _KNOWN_S:
            return None
        return room_s(last, self._reserve_bytes, first - last, last_s - first_s)


def partition_status(partition: Partition, place: Place, now_s: float) -> dict[str, Any]:
    """One partition that this node leads. Times are of a clock that never goes back."""
    cold, trouble = partition.cold, place.trouble
    return {
        "stream": partition.stream.name,
        "uuid": partition.stream.uuid,
        "partition": partition.number,
        "local_start": partition.log.log_start,
        "start": partition.start,
        "tiered_end": place.tiered_end,
        "high_watermark": partition.high_watermark,
        "untiered_bytes": place.bytes,
        "untiered_age_s": 0.0 if place.since_s is None else round(now_s - place.since_s, 3),
        "stored_bytes": 0 if cold is None else cold.stored_bytes,
        "stopped": trouble is not None and trouble.stops,
        "trouble": None if trouble is None else trouble.message,
    }


def tier_status(tierer: Tierer, room: DiskRoom, reads: TierCounters, clock: Clock, *, limit: int) -> dict[str, Any]:
    """This node's side of `LIFT.API.TIER.STATUS`.

    Args:
        tierer: Tierer of the node.
        room: Room on the disk of the node.
        reads: What reading from the bucket has cost.
        clock: Clock of the node.
        limit: Maximum number of partitions; those in trouble come first, then those of which most waits.
    """
    now_s = clock.monotonic()
    health, counters = tierer.health, tierer.counters
    places = [(place, tierer.partitions[key]) for key, place in tierer.schedule.places.items()]
    places.sort(key=lambda each: (each[0].trouble is None, -each[0].bytes, each[1].stream.name, each[1].number))
    is_well = health.state is StoreState.OK
    since_s = [place.since_s for place, _ in places if place.since_s is not None]
    return {
        "url": tierer.config.url,
        "endpoint": tierer.config.endpoint,
        "region": tierer.config.region,
        "state": health.state.value,
        "message": health.message,
        "since_ns": None if is_well else clock.now_ns() - int((now_s - health.since_s) * 1e9),
        "partition_count": len(places),
        "trouble_count": sum(place.trouble is not None for place, _ in places),
        "untiered_bytes": sum(place.bytes for place, _ in places),
        "untiered_age_s": round(now_s - min(since_s), 3) if since_s else 0.0,
        "partitions": [partition_status(partition, place, now_s) for place, partition in places[:limit]],
        "requests": dict(counters.requests),
        "bytes_in": counters.bytes_in,
        "bytes_out": counters.bytes_out,
        "deleted_objects": counters.deleted,
        "read_requests": dict(reads.requests),
        "read_bytes_in": reads.bytes_in,
        "uploads": counters.uploads,
        "set_manifest_bytes": counters.set_manifest_bytes,
        "failures": dict(counters.failures),
        "room_s": None if is_well else room.room_s(),
    }


_GAUGES: Final = (
    ("untiered_bytes", "bytes of record batches that the bucket does not have yet, about"),
    ("untiered_age_s", "for how long the oldest of them has been waiting"),
    ("partition_count", "partitions led by this node that go to the bucket"),
    ("set_manifest_bytes", "bytes of the manifest of this node's shared objects, of 16 MiB that it may have"),
    ("trouble_count", "partitions led by this node that are in trouble with the bucket"),
)
_COUNTERS: Final = (
    ("uploads", "objects written, of one partition or of many"),
    ("bytes_in", "bytes read from the bucket by what uploads"),
    ("bytes_out", "bytes written to the bucket"),
    ("deleted_objects", "objects deleted from the bucket, as nothing needed them any more"),
    ("read_bytes_in", "bytes read from the bucket for consumers"),
)
_NAMES: Final = {
    "untiered_age_s": "untiered_age_seconds",
    "partition_count": "partitions",
    "trouble_count": "partitions_in_trouble",
}


def tier_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The metrics of what `tier_status` says."""
    for name, text in _GAUGES:
        yield GaugeMetricFamily(f"liftpy_tier_{_NAMES.get(name, name)}", text, value=float(status[name]))
    for name, text in _COUNTERS:
        yield CounterMetricFamily(f"liftpy_tier_{name}", text, value=float(status[name]))
    state = GaugeMetricFamily("liftpy_tier_state", "1 for the state that the bucket is in", labels=["state"])
    for each in StoreState:
        state.add_metric([each.value], float(status["state"] == each.value))
    yield state
    for name, label, text in (
        ("requests", "kind", "requests to the bucket, by kind"),
        ("read_requests", "kind", "requests to the bucket for consumers, by kind"),
        ("failures", "code", "jobs of the bucket that failed, by the kind of error"),
    ):
        family = CounterMetricFamily(f"liftpy_tier_{name}", text, labels=[label])
        for kind, count in sorted(status[name].items()):
            family.add_metric([kind], float(count))
        yield family
    cost = CounterMetricFamily(
        "liftpy_tier_request_cost_dollars",
        "what all these requests cost by the list price of AWS S3 Standard, by kind",
        labels=["kind"],
    )
    for kind, amount in costs_usd(status["requests"], status["read_requests"]).items():
        cost.add_metric([kind], amount)
    yield cost
