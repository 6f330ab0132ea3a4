"""What processes cost, as it is read from the kernel."""

from __future__ import annotations

import os
import shutil
import socket
import time

import pytest
from bench.processes import count_traffic, cpu_s, open_files, traffic

SS = """\
ESTAB 0 0 127.0.0.1:40001 127.0.0.1:4280 users:(("python",pid=11,fd=30)) bbr bytes_sent:100 bytes_acked:101 \
bytes_received:20 segs_out:8
ESTAB 0 0 127.0.0.1:4280 127.0.0.1:40001 users:(("python",pid=12,fd=31)) bbr bytes_sent:20 bytes_received:100
ESTAB 0 0 [::ffff:127.0.0.1]:4222 [::ffff:127.0.0.1]:40002 users:(("nats-server",pid=9,fd=7)) bbr bytes_received:7
ESTAB 0 0 127.0.0.1:40002 127.0.0.1:4222 users:(("python",pid=11,fd=32)) bbr bytes_sent:7
ESTAB 0 0 127.0.0.1:40003 127.0.0.1:9999 users:(("python",pid=11,fd=33)) bbr bytes_sent:5000
TIME-WAIT 0 0 127.0.0.1:40004 127.0.0.1:4222
"""


def test_traffic_is_counted_by_process_and_port():
    assert count_traffic(SS, [11, 12], {4280: "metadata", 4222: "NATS"}) == {
        11: {"metadata": 120, "NATS": 7},
        12: {"metadata": 120, "NATS": 0},
    }


def test_several_ports_may_be_of_one_kind():
    assert count_traffic(SS, [11], {4280: "all", 4222: "all"}) == {11: {"all": 127}}


@pytest.mark.skipif(shutil.which("ss") is None, reason="traffic is read with `ss`, of iproute2")
def test_traffic_of_this_process():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, server.accept()[0] as other:
            one.sendall(b"x" * 1_000)
            assert other.recv(1_000, socket.MSG_WAITALL)
            found = traffic([os.getpid()], {port: "test"})
    assert found == {os.getpid(): {"test": 2_000}}  # both ends are ours


def test_cpu_time_of_this_process():
    before = cpu_s(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert 0.05 <= cpu_s(os.getpid()) - before < 10


def test_open_files_of_this_process():
    before = open_files(os.getpid())
    with socket.socket(), socket.socket():
        assert open_files(os.getpid()) == before + 2
