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
