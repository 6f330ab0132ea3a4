"""Ports for what a test starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

__all__ = ["free_port", "free_port_block", "free_ports"]

# Below those that outgoing connections take: a restart finds its ports free. And below those that `liftpy dev` and its
# S3 server choose for themselves.
_ALL = range(10_000, 12_000)

_BLOCK = 20
_BLOCKS = range(7_000, 10_000, _BLOCK)


def _of_worker(worker: str, count: int, all_of_them: range = _ALL) -> range:
    """The part of them that one of several workers of the same test run has for itself."""
    return all_of_them[int(worker.removeprefix("gw")) :: count]


_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = _of_worker(_WORKER, _WORKERS)
# Each is given out once: what a test starts with two of them must not get the same one twice. Where it begins is left
# to chance, so that runs beside each other seldom meet.
_NUMBERS = itertools.count(random.SystemRandom().randrange(len(_PORTS)))


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, that no outgoing connection gets, and that was not given out before."""
    for number in itertools.islice(_NUMBERS, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("every port is taken")


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    return [free_port() for _ in range(count)]


def free_port_block(count: int) -> int:
    """The first of so many free ports in a row."""
    assert count <= _BLOCK
    blocks = _of_worker(_WORKER, _WORKERS, _BLOCKS)
    for first in random.SystemRandom().sample(blocks, len(blocks)):
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports in a row are free")
