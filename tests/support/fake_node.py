"""As much of a node as those need that only tell of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.settings.config import NodeConfig

if TYPE_CHECKING:
    from pathlib import Path

    from support.server_kit import Kit


def fake_node(kit: Kit, directory: Path) -> SimpleNamespace:
    """A node with the one stream of a kit."""
    local = SimpleNamespace(info=kit.info, state=kit.stream, partitions=kit.partitions)
    partitions = {partition.key: partition for partition in kit.partitions.values()}
    return SimpleNamespace(
        config=NodeConfig(node_id="n1"),
        clock=kit.clock,
        incarnation=4,
        started_ns=kit.clock.ns,
        metadata=SimpleNamespace(
            state=SimpleNamespace(streams={kit.stream.name: kit.info}, nodes={}, revision=9), leader_id=None
        ),
        ingest=SimpleNamespace(is_connected=True, reconnects=0, unbound_messages=0),
        pull=SimpleNamespace(port=4270, connection_count=2),
        data_dir=SimpleNamespace(root=directory),
        maintenance=SimpleNamespace(storage_full=False, free_bytes=1 << 30),
        refusals=ListenerRefusals(),
        groups=SimpleNamespace(quota=SimpleNamespace(groups=2, size_bytes=1_000), told=lambda _: iter(())),
        durations={},
        tier=None,
        cold=None,
        canary=None,
        files=kit.files,
        outbox=kit.outbox,
        group_commits=SimpleNamespace(count=7),
        events=SimpleNamespace(stored=0, lost=0),
        streams=SimpleNamespace(
            by_uuid={kit.info.uuid: local}, by_key=partitions, partitions=list(partitions.values())
        ),
    )
