"""What the bucket has to do with a node, as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from liftpy_server.tier.schedule.alarms import StoreState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

__all__ = ["tier_metrics"]

_GAUGES: Final = (
    ("untiered_bytes", "bytes of record batches that the bucket does not have yet, about"),
    ("untiered_age_s", "for how long the oldest of them has been waiting"),
    ("partition_count", "partitions led by this node that go to the bucket"),
    ("trouble_count", "partitions led by this node that are in trouble with the bucket"),
)
_COUNTERS: Final = (
    ("uploads", "objects written, of one partition or of many"),
    ("bytes_in", "bytes read from the bucket by what uploads"),
    ("bytes_out", "bytes written to the bucket"),
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
