"""How many files the process may have open, and who gets them.

Segments come first: one that can not be opened takes its partition offline, while a connection that is refused is
tried again by its consumer.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from liftpy_server.settings.limits import HTTP_CONNECTIONS_MAX, OPEN_FILES_SPARE, PULL_NODES, PULL_STRANGERS_MAX

if TYPE_CHECKING:
    from liftpy_server.settings.config import NodeConfig

__all__ = ["connections_allowed", "raise_open_files_limit", "segments_allowed", "strangers_allowed"]

_DESCRIPTORS_PER_CONNECTION = 2  # the socket, and the duplicate that `sendfile` writes to


def raise_open_files_limit() -> int:
    """Ask for as many open files as the system grants without privileges. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**31


def segments_allowed(config: NodeConfig, open_files: int) -> int:
    """How many segment files may be held open: what is configured, or half of what the process may have."""
    return max(1, min(config.storage.open_files_max, open_files // 2))


def strangers_allowed(open_files: int) -> int:
    """How many pull connections may be open that have not said hello."""
    return max(2, min(PULL_STRANGERS_MAX, open_files // 16))


def connections_allowed(config: NodeConfig, open_files: int) -> int:
    """How many clients leave enough descriptors for segments, strangers, other nodes and HTTP; at least one."""
    strangers = strangers_allowed(open_files) + HTTP_CONNECTIONS_MAX
    others = OPEN_FILES_SPARE + strangers + _DESCRIPTORS_PER_CONNECTION * PULL_NODES
    rest = open_files - segments_allowed(config, open_files) - others
    return max(1, min(config.pull.connections_max, rest // _DESCRIPTORS_PER_CONNECTION))
