"""What a second node on the same host brings: `liftpy server --processes` with one and with two nodes."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

from bench.cluster_rig import free_port, until
from bench.processes import cpu_s
from bench.rig import ROOT, finish, spawn
from bench.row import Row
from bench.wire import request
from liftpy.cli.dev.nats_server import NatsServer, shipped_config

__all__ = ["HOST_WORKLOADS"]

_COUNTS = (1, 2)
_STREAMS = 2
_STOP_S = 60


@contextmanager
def _host(home, count):
    """A nats-server and a host with so many nodes: the port of NATS, and the processes of the nodes."""
    home.mkdir()
    key = home / "key"
    key.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        server = NatsServer(0, shipped_config(), home / "nats.log")
        server.start()
        stack.callback(server.stop)
        command = [
            sys.executable,
            "-m",
            "liftpy",
            "-s",
            server.url,
            "server",
            "--json",
            "--data-dir",
            str(home / "data"),
        ]
        command += ["--pull-port", "0", "--cluster-port", str(free_port()), "--cluster-key-file", str(key)]
        command += ["--processes", str(count)]
        log = stack.enter_context((home / "log").open("wb"))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        stack.callback(process.wait, _STOP_S)
        stack.callback(process.send_signal, signal.SIGTERM)
        ready = json.loads(process.stdout.readline())
        yield server.port, [node["pid"] for node in ready["nodes"]] if count > 1 else [process.pid]


def host(home, plan):
    """Acknowledged messages a second of two streams, and the nodes' CPU, on one node and on two."""
    row = Row("acked by 2 publishers, window 1,000, 128 B, 2 nodes on a host", "interval", "msg/s", peer="1 node")
    costs = {count: [] for count in _COUNTS}
    for run in range(plan.runs):
        for count in _COUNTS:
            with _host(home / f"host-{run}-{count}", count) as (port, pids):
                rate, cost_us = _measure(port, pids, plan.acked[128])
            costs[count].append(cost_us)
            row.add("1 node" if count == 1 else "liftpy", rate)
    medians = {count: sorted(each)[len(each) // 2] for count, each in costs.items()}
    row.note = ", ".join(
        f"{count} node{'s' * (count > 1)}: {us:.2f} us of CPU a message" for count, us in medians.items()
    )
    yield row


def _measure(port, pids, messages):
    """Messages a second of all publishers, and microseconds of the nodes' CPU a message."""
    for number in range(_STREAMS):
        body = {"name": f"s{number}", "subject": f"s{number}.x", "sync": "interval"}
        until(lambda body=body: "error" not in request(port, "LIFT.API.STREAM.CREATE", body), 60, "the stream")
    before = sum(map(cpu_s, pids))
    load = {"size": 128, "count": messages, "window": 1_000}
    publishers = [
        spawn("load", "acked", {"port": port, "subject": f"s{number}.x"} | load) for number in range(_STREAMS)
    ]
    rate = sum(finish(publisher)["rate"] for publisher in publishers)
    return rate, (sum(map(cpu_s, pids)) - before) / (messages * _STREAMS) * 1e6


HOST_WORKLOADS = {"host": host}
