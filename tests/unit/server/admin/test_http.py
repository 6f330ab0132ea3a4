"""Health, numbers and metrics for who asks over HTTP, and a polite no for everything else."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from liftpy_server.admin.groups.lags import GroupLags
from liftpy_server.admin.http import HttpServer
from liftpy_server.admin.node_pages import node_pages
from liftpy_server.metadata.state import PartitionInfo
from support.fake_node import fake_node


@pytest.fixture
def node(kit, tmp_path):
    return fake_node(kit, tmp_path)


def ask(node, line):
    async def nobody(_streams):
        return []

    server = HttpServer(node.config.http, node.refusals, node_pages(node, GroupLags(node, nobody)))
    status, kind, body = asyncio.run(server._answer(f"{line}\r\nHost: x\r\n\r\n".encode()))
    return int(status.split()[0]), kind.decode(), body


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_healthy(node, path):
    node.metadata.leader_id = "n2"
    status, kind, body = ask(node, f"GET {path} HTTP/1.1")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"status": "ok", "problems": []})


def test_every_problem_is_named(node):
    """A restart mends none of them, so only `/readyz` tells by its status."""
    node.metadata.leader_id = "n2"
    node.ingest.is_connected = False
    node.maintenance.storage_full = True
    node.streams.partitions[0].log.durability.fail("told to")
    expected = {
        "status": "error",
        "problems": ["not connected to NATS", "the disk is full", "1 partitions are offline"],
    }
    for path, wanted in (("/healthz?full=1", 200), ("/readyz?full=1", 503)):
        status, _, body = ask(node, f"GET {path} HTTP/1.1")
        assert (status, json.loads(body)) == (wanted, expected)


def test_a_node_that_is_not_in_step_is_not_ready(node):
    """An orchestrator that restarts nodes one by one waits for it."""
    (info,) = node.metadata.state.streams.values()
    places = [
        PartitionInfo(replicas=("n1", "n2"), isr=("n2",), leader="n2", leader_epoch=1),
        PartitionInfo(replicas=("n1", "n2"), isr=("n2",), leader="n2", leader_epoch=1, observers=("n1",)),
        PartitionInfo(replicas=("n1", "n2"), isr=("n1",), leader="n1", leader_epoch=1),
    ]
    node.metadata.state.streams[info.config.name] = dataclasses.replace(info, partitions=places)
    status, _, body = ask(node, "GET /readyz HTTP/1.1")
    assert status == 503
    assert json.loads(body)["problems"] == [
        "no majority of the nodes keeps the metadata",
        "1 partitions are not in sync here yet",
    ]
    assert ask(node, "GET /healthz HTTP/1.1")[0] == 200


def test_numbers(node):
    status, _, body = ask(node, "GET /varz HTTP/1.1")
    shown = json.loads(body)
    assert (status, shown["node_id"], shown["incarnation"], shown["pull_address"]) == (200, "n1", 4, "127.0.0.1:4270")


def test_metrics(node):
    status, kind, body = ask(node, "GET /metrics HTTP/1.1")
    assert (status, kind.startswith("text/plain"), b"liftpy_nats_connected 1.0" in body) == (200, True, True)


@pytest.mark.parametrize(
    ("line", "status"), [("GET / HTTP/1.1", 404), ("POST /metrics HTTP/1.1", 405), ("GET", 405), ("", 405)]
)
def test_anything_else(node, line, status):
    assert status == ask(node, line)[0]
