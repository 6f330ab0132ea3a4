"""Answers of a cluster as the admin endpoints give them, and a client that gets nothing but these."""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from typing import Any

from liftpy_client.admin.admin import Admin
from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.stream_config import StreamConfig

STARTED_NS = 1_700_000_000 * 10**9
IDLE_STATUS = {
    "state": "ok",
    "message": "",
    "since_ns": None,
    "room_s": None,
    "untiered_bytes": 0,
    "untiered_age_s": 0.0,
    "partition_count": 0,
    "trouble_count": 0,
    "requests": {},
    "failures": {},
    "partitions": [],
    "unreachable": [],
}
"""What nodes tell of a bucket in which nothing happens, but for where it is."""


NOTHING_QUARANTINED: dict[str, Any] = {"items": [], "count": 0, "bytes": 0, "unreachable": []}


def node_answer(node_id: str, **more: Any) -> dict[str, Any]:
    """A node as `NODE.LIST` tells of it."""
    answer = {
        "node_id": node_id, "incarnation": 3, "pull_host": "127.0.0.1", "pull_port": 4270, "pull_tls": False,
        "rack": None, "expired": False, "draining": False, "metadata_host": "127.0.0.1", "metadata_port": 4280,
        "state": "up", "leaderships": 1, "replicas": 2, "out_of_sync": 0, "metadata_leader": False,
        "metadata_voter": True, "lag_messages": 0, "unreachable": False, "version": "1",
    }  # fmt: skip
    return answer | more


def told_by_node(node_id: str) -> dict[str, Any]:
    """What a node tells of itself at `NODE.INFO`."""
    return {
        "node_id": node_id, "version": "1", "started_ns": STARTED_NS, "now_ns": STARTED_NS + 90 * 10**9,
        "nats_url": "nats://127.0.0.1:4222", "nats_connected": True, "nats_reconnects": 0,
        "pull_address": "127.0.0.1:4270", "pull_connections": 0, "data_dir": "/data/[x]", "storage_full": False,
        "streams": 1, "partitions": 2, "partitions_offline": 0, "resident_bytes": 1,
    }  # fmt: skip


def partition_answer(number: int, replicas: list[str], **more: Any) -> dict[str, Any]:
    """A partition as `STREAM.INFO` tells of it: led by its first replica, all in sync."""
    answer = {
        "partition": number, "leader": replicas[0], "leader_epoch": 1, "replicas": replicas, "isr": replicas,
        "observers": [], "target": None, "log_start": 0, "high_watermark": 1_000, "log_end": 1_000, "bytes": 5_000,
        "segments": 1, "first_timestamp_ns": STARTED_NS, "last_timestamp_ns": STARTED_NS, "offline": None,
        "replica_states": [replica_answer(node, 1_000) for node in replicas[1:]], "unreachable": False,
    }  # fmt: skip
    return answer | more


def replica_answer(node: str, log_end: int, *, in_sync: bool = True) -> dict[str, Any]:
    """A follower of a partition that has 1,000 records."""
    return {"node": node, "log_end": log_end, "lag_messages": 1_000 - log_end, "in_sync": in_sync}


def stream_answer(name: str, *partitions: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A stream as `STREAM.INFO` tells of it."""
    settings = {"name": name, "subject": f"{name}.[x].>", "partitions": len(partitions), "replicas": 1} | config
    return {
        "name": name, "uuid": "0" * 32, "config": StreamConfig.from_plain(settings).to_plain(),
        "created_ns": STARTED_NS, "version": 1, "paused": False, "read_only": False,
        "messages": 1_000 * len(partitions), "bytes": 5_000, "unreachable_partitions": 0, "partitions": partitions,
        "counters": {"messages": 1_000, "bytes": 1, "refused": {}}, "gap_count": 0, "gaps": [],
    }  # fmt: skip


def move_answer(stream: str, number: int, *, adding: list[str], removing: list[str], progress: float = 0.25) -> dict:
    """A reassignment as `CLUSTER.INFO` tells of it."""
    return {
        "stream": stream, "partition": number, "target": ["node-2", *adding], "target_observers": [],
        "adding": [{"node": node} for node in adding], "removing": removing, "progress": progress,
    }  # fmt: skip


def cluster_answer(nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What `CLUSTER.INFO` tells."""
    answer = {
        "cluster_id": "abcdef0123456789" * 2, "metadata_leader": nodes[0]["node_id"], "metadata_revision": 7,
        "voters": [{"node_id": node["node_id"], "host": "127.0.0.1", "port": 4280} for node in nodes],
        "nodes": nodes, "streams": 1, "partitions": 2, "under_replicated_count": 0, "under_replicated": [],
        "leaderless_count": 0, "leaderless": [], "reassignment_count": 0, "reassignments": [],
    }  # fmt: skip
    return answer | more


class FakeCluster:
    """Answers requests from a table, and notes what was asked.

    Attributes:
        answers: by endpoint: what it answers, or a list of what it answers one time after the other (the last for
            ever), or the text with which it refuses.
        asked: endpoints and bodies, in order.
    """

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = {"NODE.QUARANTINE": NOTHING_QUARANTINED} | answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def request(self, endpoint: str, body: dict[str, Any], _timeout_s: float | None = None) -> dict[str, Any]:
        self.asked.append((endpoint, body))
        answer = self.answers[endpoint]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, str):
            raise AdminError(ErrorCode.CONFLICT, answer)
        return copy.deepcopy(answer)

    def forget(self, _name: str) -> None:
        pass

    def bodies(self, endpoint: str) -> list[dict[str, Any]]:
        """What an endpoint was asked."""
        return [body for asked, body in self.asked if asked == endpoint]

    @asynccontextmanager
    async def connect(self, *_where: Any, **_options: Any):
        yield Admin(self)

    def stands_in(self, monkeypatch: Any) -> None:
        """Have commands connect to it."""
        for place in ("liftpy_client.client.connect_as", "liftpy_client.admin.admin.connect_admin"):
            monkeypatch.setattr(place, self.connect)
