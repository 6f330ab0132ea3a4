"""`liftpy server --processes`: several nodes on one host under one supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import psutil

import liftpy
from support.cli import COMMAND, environment_of, run_process
from support.ports import free_port_block
from support.reading import read_all

WAIT_S = 60


@contextmanager
def running_host(url, home, count=3):
    pull = free_port_block(2 * count)
    cluster = pull + count
    key = home / "cluster.key"
    key.write_text("k" * 32)
    command = [
        *COMMAND, "-s", url, "server", "--json", "--processes", str(count), "--node-id", "h", "--http-port", "0",
        "--data-dir", str(home / "data"), "--pull-port", str(pull), "--cluster-port", str(cluster),
        "--cluster-key-file", str(key),
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment_of(home))
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def ask(ready, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ready['http_port']}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_a_killed_node_is_started_again_and_all_end_together(nats_server, tmp_path):
    with running_host(nats_server.url, tmp_path) as (process, ready):
        assert [node["node_id"] for node in ready["nodes"]] == ["h", "h-2", "h-3"]
        pids = [node["pid"] for node in ready["nodes"]]
        options = ("stream", "add", "orders", "--subject", "orders", "--replicas", "3")
        created = run_process("-s", nats_server.url, *options, home=tmp_path)
        assert b"replicas of a partition share rack h" in created.stderr
        async with liftpy.connect(nats_server.url, timeout_s=20.0) as lift:
            for number in range(50):
                await lift.publish("orders", b"%d" % number)
            os.kill(pids[1], signal.SIGKILL)
            wait_until(lambda: "h-2: it is not up" in ask(ready, "/readyz")[1])
            for number in range(50, 100):
                await lift.publish("orders", b"%d" % number)
            wait_until(lambda: ask(ready, "/readyz")[0] == 200)
            assert [message.value for message in await read_all(lift, "orders")] == [b"%d" % n for n in range(100)]
        metrics = ask(ready, "/metrics")[1]
        for node in ("h", "h-2", "h-3"):
            assert f'liftpy_nats_connected{{host_node="{node}"}} 1.0' in metrics
        assert 'liftpy_host_node_restarts_total{host_node="h-2"} 1.0' in metrics
        assert json.loads(ask(ready, "/varz")[1])["status"] == "3 of 3 nodes are up"
        nodes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert not any(node.is_running() for node in nodes)
    log = (tmp_path / "log").read_text()
    assert f"h-2 (pid {pids[1]}) was ended by signal 9; it is started again in 1 s" in log
    assert "h-3: " in log
    assert "Traceback" not in log


def test_a_killed_supervisor_takes_its_nodes_along(nats_server, tmp_path):
    with running_host(nats_server.url, tmp_path, 2) as (process, _):
        nodes = psutil.Process(process.pid).children(recursive=True)
        assert len(nodes) == 2
        process.kill()
        gone, alive = psutil.wait_procs(nodes, timeout=WAIT_S)
        assert (len(gone), alive) == (2, [])
