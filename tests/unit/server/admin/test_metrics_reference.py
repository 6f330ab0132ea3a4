"""Every metric has a line in the reference, rules and dashboard use no other, and their number is bounded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from liftpy.cli.cluster.host import Host, HostNode
from liftpy.cli.cluster.host_pages import merged_metrics
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.pull import PartitionKey
from liftpy_log.histogram import Histogram
from liftpy_server.admin.metrics import render_metrics
from liftpy_server.canary.host import CanaryHost
from liftpy_server.groups.host.group_host import ToldGroup
from liftpy_server.metadata.state import PartitionInfo
from liftpy_server.settings.config import MetricsConfig
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.reads.metrics import ColdCounters, ColdStatus
from support.fake_node import fake_node

ROOT = Path(__file__).parents[4]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs/reference/metrics.md"
DURATIONS = ("sync", "commit", "fetch", "event_loop_lag", "gc", "tier_upload")
TIER = {
    **dict.fromkeys(("untiered_bytes", "untiered_age_s", "partition_count", "trouble_count", "uploads"), 0),
    **dict.fromkeys(("bytes_in", "bytes_out", "deleted_objects", "read_bytes_in", "set_manifest_bytes"), 0),
    **{name: {"x": 1} for name in ("requests", "read_requests", "failures")},
    "state": "ok",
}


@pytest.fixture
def node(kit, tmp_path):
    """With everything that a node can tell of."""
    node = fake_node(kit, tmp_path)
    places = [PartitionInfo(replicas=("n1", "n2", "n3"), isr=("n1", "n3"), leader="n1", leader_epoch=1)]
    info = replace(kit.info, partitions=places)
    node.metadata.state.streams[info.config.name] = info
    kit.stream.counters.refused["paused"] += 1
    states = [{"node": "n2", "log_end": 2, "lag_messages": 1, "in_sync": True}]
    node.streams.partitions[0].replica_states = lambda: states
    committed = SimpleNamespace(stream=info.config.name, offset=5)
    key = PartitionKey(bytes.fromhex(info.uuid), 0)
    node.groups.told = lambda _: iter([ToldGroup("billing", iter([(key, committed)]), [key], 2)])
    node.group_lags = {("billing", key): 7}
    node.durations = {name: Histogram() for name in DURATIONS}
    staged = SimpleNamespace(sections=1, bytes=2, failures=3)
    node.tier = SimpleNamespace(status=lambda _: TIER, staged=staged)
    node.canary = CanaryHost(replace(node.config, tier=TierConfig(url="s3://bucket/prefix")), node.clock)
    node.cold = SimpleNamespace(status=ColdStatus(ColdCounters(failures=Counter(x=1)), 0, 0, 0))
    return node


def families(node):
    return {
        family.name: family for family in text_string_to_metric_families(render_metrics(node, node.group_lags).decode())
    }


def exposed(node):
    """What a node tells: by name as queries use it, type and labels."""
    return types_and_labels(render_metrics(node, node.group_lags).decode())


def exposed_by_host():
    """What only a host with several nodes tells."""
    return types_and_labels(merged_metrics(Host("h", [HostNode("h", [], {})]), {}).decode())


def types_and_labels(text):
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name if family.name in types else f"{family.name}_total"
        assert family.samples, name
        found[name] = types[name], sorted(set(family.samples[0].labels) - {"le"})
    assert set(found) == set(types)
    return found


def documented():
    rows = re.findall(r"^\| `(liftpy_[a-z_]+)` \| (\w+) \| (.*?) ?\| \S", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, sorted(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def asked(file):
    return set(re.findall(r"\bliftpy_[a-z_]+", (DEPLOY / file).read_text()))


def alerts():
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_reference_has_every_metric_with_type_and_labels_and_no_other(node):
    assert documented() == exposed(node) | exposed_by_host()


@pytest.mark.parametrize("file", ["prometheus/rules.yaml", "prometheus/rules_test.yaml", "grafana/liftpy.json"])
def test_rules_and_dashboard_ask_for_metrics_that_there_are(node, file):
    known = {
        each + suffix for each in exposed(node) | exposed_by_host() for suffix in ("", "_bucket", "_sum", "_count")
    }
    assert asked(file)
    assert asked(file) <= known


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    anchored = {}
    for alert in alerts():
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert alert["annotations"]["summary"]
        page, _, anchor = alert["annotations"]["runbook"].partition("#")
        if page not in anchored:
            headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
            anchored[page] = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert anchor in anchored[page], alert["alert"]


def test_every_alert_is_tested():
    tests = yaml.safe_load((DEPLOY / "prometheus/rules_test.yaml").read_text())["tests"]
    fired = [each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]]
    assert sorted(fired) == sorted(alert["alert"] for alert in alerts())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_alerts_fire_when_they_should():
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_places_and_groups(node):
    found = families(node)
    name = next(iter(node.metadata.state.streams))
    (replicas,) = found["liftpy_partition_replicas"].samples
    (isr,) = found["liftpy_partition_in_sync_replicas"].samples
    assert (replicas.labels, replicas.value, isr.value) == ({"stream": name, "partition": "0"}, 3.0, 2.0)
    (offset,) = found["liftpy_group_committed_offset"].samples
    assert (offset.labels, offset.value) == ({"group": "billing", "stream": name, "partition": "0"}, 5.0)
    (members,) = found["liftpy_group_members"].samples
    assert members.value == 2.0
    (lag,) = found["liftpy_group_lag"].samples
    assert (lag.labels, lag.value) == (offset.labels, 7.0)


@pytest.mark.parametrize(("per_stream", "told"), [("all", 3), ("top 2", 2), ("off", 0)])
def test_offsets_of_streams_that_are_elsewhere_are_told_and_bounded_too(node, per_stream, told):
    committed = [(PartitionKey(b"x" * 16, 0), SimpleNamespace(stream=f"far-{n}", offset=n)) for n in range(3)]
    node.groups.told = lambda _: iter([ToldGroup("billing", iter(committed), [], 1)])
    node.streams = SimpleNamespace(by_uuid={}, by_key={}, partitions=[])
    node.config = replace(node.config, metrics=MetricsConfig(per_stream=per_stream))
    assert len(families(node)["liftpy_group_committed_offset"].samples) == told


@pytest.mark.parametrize(("per_stream", "shown"), [("all", 3), ("top 2", 2), ("top 100", 3), ("off", 0)])
def test_streams_that_are_told_of_are_bounded_and_the_busiest(node, per_stream, shown):
    (local,) = node.streams.by_uuid.values()
    for number in range(2):
        counters = replace(local.state.counters, messages=100 + number)
        info = SimpleNamespace(name=f"busy-{number}")
        node.streams.by_uuid[f"{number}"] = SimpleNamespace(info=info, state=SimpleNamespace(counters=counters))
    node.config = replace(node.config, metrics=MetricsConfig(per_stream=per_stream))
    streams = {sample.labels["stream"] for sample in families(node)["liftpy_stream_messages"].samples}
    assert len(streams) == shown
    assert per_stream != "top 2" or streams == {"busy-0", "busy-1"}


@pytest.mark.parametrize("text", ["", "top", "top 0", "top -1", "some", "top 1000000"])
def test_what_is_no_bound_is_refused(text):
    with pytest.raises(ConfigError, match=r"metrics\.per_stream: must be all, off or top N"):
        MetricsConfig(per_stream=text)
