"""Health, numbers and metrics for who asks over HTTP, and a polite no for everything else."""

from __future__ import annotations

import json

import pytest

from liftpy_server.admin.http import HttpServer
from support.fake_node import fake_node


@pytest.fixture
def node(kit, tmp_path):
    return fake_node(kit, tmp_path)


def ask(node, line):
    status, kind, body = HttpServer(node)._answer(f"{line}\r\nHost: x\r\n\r\n".encode())
    return int(status.split()[0]), kind.decode(), body


def test_healthy(node):
    status, kind, body = ask(node, "GET /healthz HTTP/1.1")
    assert (status, kind, json.loads(body)) == (200, "application/json", {"status": "ok", "problems": []})


def test_every_problem_is_named(node):
    node.ingest.is_connected = False
    node.maintenance.storage_full = True
    node.streams.partitions[0].log.durability.fail("told to")
    status, _, body = ask(node, "GET /healthz?full=1 HTTP/1.1")
    expected = ["not connected to NATS", "the disk is full", "1 partitions are offline"]
    assert (503, {"status": "error", "problems": expected}) == (status, json.loads(body))


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
