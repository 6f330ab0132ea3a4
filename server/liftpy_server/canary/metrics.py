"""The canary's findings as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from liftpy_server.canary.host import CanaryHost

__all__ = ["canary_metrics"]

_WAYS: Final = {
    "read": "messages that came back as they were published, by way of reading",
    "late": "messages that did not come back in time",
    "lost": "messages that are missing, or came back other than they were published",
    "doubled": "messages that are stored more than once",
}


def canary_metrics(canary: CanaryHost) -> Iterator[Metric]:
    """What a node tells of its canary."""
    yield CounterMetricFamily("liftpy_canary_acked", "messages with an ack", value=float(canary.acked))
    yield CounterMetricFamily("liftpy_canary_unacked", "messages without an ack", value=float(canary.unacked))
    for name, text in _WAYS.items():
        family = CounterMetricFamily(f"liftpy_canary_{name}", text, labels=["way"])
        for way, counts in canary.ways.items():
            family.add_metric([way], float(getattr(counts, name)))
        yield family
    seconds = HistogramMetricFamily(
        "liftpy_canary_seconds", "from the publish to the ack, or until the message was read", labels=["way"]
    )
    for what, histogram in canary.seconds.items():
        seconds.add_metric([what], buckets=histogram.buckets(), sum_value=histogram.sum_s)
    yield seconds
    yield GaugeMetricFamily("liftpy_canary_silent_seconds", "since a message came back by pull", value=canary.silent_s)
