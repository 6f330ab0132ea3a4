"""Reads from the bucket as metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

__all__ = ["ColdCounters", "ColdStatus", "cold_metrics"]


@dataclass(slots=True)
class ColdCounters:
    """What reads from the bucket came to since the node started.

    Attributes:
        fetches: Number of fetches that brought something.
        fetched_bytes: Bytes of record batches.
        hits: Reads of what was in the cache already, because somebody had read it before or it was fetched ahead.
        failures: Fetches that failed, by the code of their error.
    """

    fetches: int = 0
    fetched_bytes: int = 0
    hits: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ColdStatus:
    """How reads from the bucket are doing.

    Attributes:
        counters: Counters of the reads.
        cache_bytes: Maximum bytes of the disk, now.
        cache_bytes_max: How much it may be now; less than the setting while the disk is short.
        waiting: Fetches that wait for their turn, or are under way.
    """

    counters: ColdCounters
    cache_bytes: int
    cache_bytes_max: int
    waiting: int


_COUNTERS: Final = (
    ("fetches", "fetches from the bucket"),
    ("fetched_bytes", "bytes of record batches fetched from the bucket"),
    ("hits", "reads of the bucket's part that found it on the disk already"),
)
_GAUGES: Final = (
    ("cache_bytes", "bytes on the disk of what was fetched from the bucket"),
    ("cache_bytes_max", "bytes that it may be; less than the setting while the disk is short"),
    ("waiting", "fetches that wait for their turn or for the bucket"),
)


def cold_metrics(status: ColdStatus) -> Iterator[Metric]:
    """The metrics of `ColdReads.status`."""
    counters = status.counters
    for name, text in _COUNTERS:
        yield CounterMetricFamily(f"liftpy_cold_{name}", text, value=float(getattr(counters, name)))
    for name, text in _GAUGES:
        yield GaugeMetricFamily(f"liftpy_cold_{name}", text, value=float(getattr(status, name)))
    failures = CounterMetricFamily("liftpy_cold_failures", "fetches that failed, by the error", labels=["code"])
    for code, count in sorted(counters.failures.items()):
        failures.add_metric([code], float(count))
    yield failures
