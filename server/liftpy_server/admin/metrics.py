"""The node's metrics, collected when someone asks."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from liftpy_server.admin.groups.lags import GROUP_PARTITIONS_MAX, GROUPS_MAX
from liftpy_server.admin.info import node_info
from liftpy_server.canary.metrics import canary_metrics
from liftpy_server.tier.host.staged_rows import staged_metrics
from liftpy_server.tier.host.status import tier_metrics
from liftpy_server.tier.reads.metrics import cold_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from prometheus_client.metrics_core import Metric

    from liftpy_envelope.pull import PartitionKey
    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.partition.partition import Partition
    from liftpy_server.streams.opening import LocalStream

__all__ = ["render_metrics"]

_NODE_GAUGES = (
    ("nats_connected", "1 while the ingest connection to NATS stands"),
    ("pull_connections", "consumers connected"),
    ("storage_full", "1 while messages are refused for want of disk space"),
    ("streams", "streams"),
    ("partitions", "partitions of which this node has a replica"),
    ("partitions_led", "partitions led by this node"),
    ("partitions_under_replicated", "partitions led by this node of which not all replicas are in sync"),
    ("partitions_not_accepting", "partitions led by this node with fewer replicas in sync than min_isr"),
    ("partitions_in_gap", "partitions led by this node that miss messages now, or whose last gap is not recorded yet"),
    ("unclean_elections", "unclean elections that the partitions led by this node have had"),
    ("metadata_leader", "1 while this node leads the metadata"),
    ("partitions_offline", "partitions that refuse to work after an error"),
    ("groups", "consumer groups coordinated by this node"),
    ("group_bytes", "what those groups take, by which groups.bytes_max goes"),
    ("resident_bytes", "memory in RAM"),
    ("dedupe_bytes", "memory for message ids, of which storage.dedupe_memory_bytes are meant to be enough"),
    ("ordered_producers", "pairs of groups and source partitions that are remembered; from 250,000 on none are added"),
    ("open_files", "segment files held open"),
)
_NODE_COUNTERS = (
    ("nats_reconnects", "times the ingest connection was lost and came back"),
    ("unbound_messages", "messages of subscriptions that had ended"),
    ("lost_ack_bytes", "bytes of acks that could not be sent"),
    ("group_commits", "group commits"),
    ("events_stored", "events that this node stored, as leader of their stream"),
    ("events_lost", "events that this node could not store, or tell the others, in time"),
)
_STREAM_COUNTERS = (
    "messages",
    "bytes",
    "batches",
    "duplicates",
    "lookalikes",
    "unsupported_stored",
    "gaps",
    "committed_lost",
)
_OFFSETS: dict[str, Callable[[Partition], int]] = {
    "log_start": lambda partition: partition.start,
    "local_start": lambda partition: partition.log.log_start,
    "high_watermark": lambda partition: partition.high_watermark,
    "log_end": lambda partition: partition.log.log_end,
}


_DURATIONS: Final = {
    "sync": "how long a round of group commit took: fdatasync of all partitions that acks waited for",
    "commit": "from the append of a chunk of messages by the leader to its commit, which acks wait for",
    "fetch": "from the moment when there was news for a fetch of a consumer until its answer was sent",
    "event_loop_lag": "how late the event loop called, looked at ten times a second",
    "gc": "garbage collections of Python, during which the node stands still",
    "tier_upload": "uploads to the bucket",
}
_PYTHON: Final = platform.python_version()


class _NodeCollector(Collector):
    def __init__(self, node: NodeParts, group_lags: Mapping[tuple[str, PartitionKey], int]) -> None:
        self._node = node
        self._group_lags = group_lags

    def collect(self) -> Iterator[Metric]:
        info = node_info(self._node)
        yield InfoMetricFamily(
            "liftpy_build", "versions of liftpy and of Python", value={"version": info["version"], "python": _PYTHON}
        )
        for name, text in _NODE_GAUGES:
            yield GaugeMetricFamily(f"liftpy_{name}", text, value=float(info[name]))
        for name, text in _NODE_COUNTERS:
            yield CounterMetricFamily(f"liftpy_{name}", text, value=float(info[name]))
        yield from self._listeners()
        yield from self._durations()
        shown = self._shown()
        yield from self._streams(
            [stream for stream in self._node.streams.by_uuid.values() if stream.info.name in shown]
        )
        yield from self._partitions([each for each in self._node.streams.partitions if each.stream.name in shown])
        yield from self._places(shown)
        yield from self._groups(shown)
        if self._node.tier is not None:
            yield from tier_metrics(self._node.tier.status(0))
            if self._node.tier.staged is not None:
                yield from staged_metrics(self._node.tier.staged)
        if self._node.cold is not None:
            yield from cold_metrics(self._node.cold.status)
        if self._node.canary is not None:
            yield from canary_metrics(self._node.canary)

    def _listeners(self) -> Iterator[Metric]:
        refusals = self._node.refusals
        for name, counts, text in (
            ("auth_failures", refusals.auth_failures, "peers that did not prove what they were asked to, by listener"),
            ("malformed_requests", refusals.malformed, "requests that could not be read, by listener"),
            ("busy_refusals", refusals.busy, "peers sent away as there were too many, by listener"),
        ):
            family = CounterMetricFamily(f"liftpy_{name}", text, labels=["listener"])
            for listener, count in counts.items():
                family.add_metric([listener], float(count))
            yield family

    def _durations(self) -> Iterator[Metric]:
        for name, histogram in self._node.durations.items():
            yield HistogramMetricFamily(
                f"liftpy_{name}_seconds", _DURATIONS[name], buckets=histogram.buckets(), sum_value=histogram.sum_s
            )

    def _shown(self) -> AbstractSet[str]:
        """The streams that have metrics of their own: all, or those with most messages since the node started."""
        wanted = self._node.config.metrics.streams_max
        streams = self._node.streams.by_uuid.values()
        busiest = sorted(streams, key=lambda stream: stream.state.counters.messages, reverse=True)
        return {stream.info.name for stream in busiest[:wanted]}

    def _streams(self, streams: Sequence[LocalStream]) -> Iterator[Metric]:
        for name in _STREAM_COUNTERS:
            family = CounterMetricFamily(
                f"liftpy_stream_{name}", f"{name} of the stream since the start", labels=["stream"]
            )
            for stream in streams:
                family.add_metric([stream.info.name], float(getattr(stream.state.counters, name)))
            yield family
        refused = CounterMetricFamily(
            "liftpy_stream_refused", "messages refused, by reason", labels=["stream", "reason"]
        )
        for stream in streams:
            for reason, count in stream.state.counters.refused.items():
                refused.add_metric([stream.info.name, reason], float(count))
        yield refused

    def _places(self, shown: AbstractSet[str]) -> Iterator[Metric]:
        """Of the partitions that this node leads."""
        labels = ["stream", "partition"]
        leading = GaugeMetricFamily("liftpy_partition_leader", "1 where this node leads the partition", labels=labels)
        replicas = GaugeMetricFamily("liftpy_partition_replicas", "replicas that count for acks", labels=labels)
        isr = GaugeMetricFamily("liftpy_partition_in_sync_replicas", "replicas in the ISR", labels=labels)
        for stream in self._node.metadata.state.streams.values():
            if stream.config.name not in shown:
                continue
            for number, partition in enumerate(stream.partitions):
                if partition.leader != self._node.config.node_id:
                    continue
                values = [stream.config.name, str(number)]
                leading.add_metric(values, 1.0)
                replicas.add_metric(values, float(len(partition.replicas) - len(partition.observers)))
                isr.add_metric(values, float(len(partition.isr)))
        yield leading
        yield replicas
        yield isr

    def _groups(self, shown: AbstractSet[str]) -> Iterator[Metric]:
        """Of the groups that this node coordinates."""
        labels = ["group", "stream", "partition"]
        offsets = GaugeMetricFamily("liftpy_group_committed_offset", "next offset that a group reads", labels=labels)
        lags = GaugeMetricFamily("liftpy_group_lag", "offsets that a group has yet to read", labels=labels)
        members = GaugeMetricFamily("liftpy_group_members", "members of a group", labels=["group"])
        names = {info.uuid: info.name for info in self._node.metadata.state.streams.values()}
        told, streams_max = set(shown), self._node.config.metrics.streams_max

        def is_told(stream: str) -> bool:
            if stream not in told and (streams_max is None or len(told) < streams_max):
                told.add(stream)  # no replica of it is here
            return stream in told

        for group in self._node.groups.told(GROUPS_MAX):
            members.add_metric([group.name], float(group.members))
            for key, each in group.committed:
                if is_told(each.stream) and len(offsets.samples) < GROUP_PARTITIONS_MAX:
                    offsets.add_metric([group.name, each.stream, str(key.partition)], float(each.offset))
        for (name, key), lag in self._group_lags.items():
            stream = names.get(key.uuid.hex())
            if stream is not None and is_told(stream):
                lags.add_metric([name, stream, str(key.partition)], float(lag))
        yield offsets
        yield lags
        yield members

    def _partitions(self, partitions: Sequence[Partition]) -> Iterator[Metric]:
        labels = ["stream", "partition"]
        for name, offset in _OFFSETS.items():
            family = GaugeMetricFamily(f"liftpy_partition_{name}", f"{name} offset", labels=labels)
            for partition in partitions:
                family.add_metric([partition.stream.name, str(partition.number)], float(offset(partition)))
            yield family
        size = GaugeMetricFamily("liftpy_partition_bytes", "size on disk", labels=labels)
        for partition in partitions:
            size.add_metric([partition.stream.name, str(partition.number)], float(partition.log.size_bytes))
        yield size
        ids = GaugeMetricFamily("liftpy_partition_dedupe_ids", "message ids remembered", labels=labels)
        known = GaugeMetricFamily(
            "liftpy_partition_dedupe_known_seconds",
            "for how long an id is surely remembered: dedupe_window_s, or less where that is too much",
            labels=labels,
        )
        ordered = GaugeMetricFamily(
            "liftpy_partition_ordered_producers",
            "pairs of groups and source partitions that are remembered; from 10,000 on none are added",
            labels=labels,
        )
        for partition in partitions:
            values = [partition.stream.name, str(partition.number)]
            ids.add_metric(values, float(len(partition.dedupe)))
            known.add_metric(values, partition.dedupe.known_ns(partition.age_now_ns()) / 1e9)
            ordered.add_metric(values, float(len(partition.dedupe.ordered)))
        yield ids
        yield known
        yield ordered
        yield from self._followers(partitions)

    def _followers(self, partitions: Sequence[Partition]) -> Iterator[Metric]:
        labels = ["stream", "partition", "node"]
        lag = GaugeMetricFamily("liftpy_replica_lag_messages", "messages not on a follower's disk", labels=labels)
        in_sync = GaugeMetricFamily("liftpy_replica_in_sync", "1 while a follower counts", labels=labels)
        for partition in partitions:
            for state in partition.replica_states():
                values = [partition.stream.name, str(partition.number), state["node"]]
                in_sync.add_metric(values, float(state["in_sync"]))
                if state["lag_messages"] is not None:
                    lag.add_metric(values, float(state["lag_messages"]))
        yield lag
        yield in_sync


def render_metrics(node: NodeParts, group_lags: Mapping[tuple[str, PartitionKey], int]) -> bytes:
    """Everything, in the Prometheus text format.

    Args:
        node: This node.
        group_lags: How many offsets groups have yet to read, as `GroupLags` finds them.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_NodeCollector(node, group_lags))
    return generate_latest(registry)
