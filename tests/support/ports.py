"""Ports for what a test starts."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port", "free_ports"]

_PORTS = range(12_000, 32_000)  # below those that outgoing connections take: a restart finds its ports free


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, and that no outgoing connection gets."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
