"""A cluster for tests that does not come up leaves nothing behind, whoever started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.cluster_kit import ClusterKit


class Server:
    """Instead of a nats-server."""

    is_running = False

    def start(self):
        self.is_running = True

    def stop(self):
        self.is_running = False


def test_what_did_not_come_up_is_gone(tmp_path, monkeypatch):
    kit = ClusterKit(tmp_path, 2)
    kit.nats = [Server()]
    silent = []

    def spawn(node):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        node.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        silent.append(node.process)

    monkeypatch.setattr("support.cluster.NodeProcess.spawn", spawn)
    monkeypatch.setattr("support.cluster.READY_S", 0.1)
    with pytest.raises(AssertionError, match="did not come up"):
        kit.start()
    assert [process.returncode for process in silent] == [-9, -9]
    assert not kit.nats[0].is_running


class Reaped:
    """A process that another thread reaps as soon as somebody looks whether it runs."""

    def __init__(self, node, pid):
        self._node, self.pid = node, pid
        node.process = self

    def poll(self):
        self._node.process = None


def test_who_connects_is_found_out_also_while_nodes_are_reaped(tmp_path, monkeypatch):
    kit = ClusterKit(tmp_path)
    for pid, node in enumerate(kit.nodes.values(), 1):
        Reaped(node, pid)
    monkeypatch.setattr("support.cluster_kit.inodes_of", lambda _port: {7})
    monkeypatch.setattr("support.cluster_kit.has_socket", lambda pid, _inodes: pid == 2)
    assert kit._owner(4_222) == "node-2"
