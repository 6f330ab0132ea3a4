"""Ports for what a test starts."""

from __future__ import annotations

import itertools
import random
import socket

__all__ = ["free_port", "free_ports"]

# Below those that outgoing connections take: a restart finds its ports free. And below those that `liftpy dev` and its
# S3 server choose for themselves.
_PORTS = range(10_000, 12_000)
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
