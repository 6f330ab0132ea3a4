"""The metadata of a node, opened as its settings say: alone, as one of a new cluster, or joining one that runs."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import ConfigError
from liftpy_log.errors import DataDirError
from liftpy_log.storage.disk import OsDisk
from liftpy_server.consensus.settings import RaftSettings, TlsFiles, Voter
from liftpy_server.consensus.storage.journal import has_journal
from liftpy_server.consensus.storage.snapshot import SnapshotError
from liftpy_server.consensus.store import RaftMetadataStore
from liftpy_server.consensus.wire.transport import RaftTransport
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.metadata.errors import JournalError, MetadataUnavailableError, NewerJournalError
from liftpy_server.node.joining import JoinError, ask_to_join

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from liftpy_log.clock import Clock
    from liftpy_log.data_dir import DataDir
    from liftpy_server.metadata.state import MetadataState
    from liftpy_server.settings.cluster import ClusterConfig
    from liftpy_server.settings.config import NodeConfig

__all__ = ["open_metadata"]

logger = logging.getLogger(__name__)

_FOLDER: Final = "metadata"
_NEVER_RELEASED: Final = "metadata.db"
_JOIN_TIMEOUT_S: Final = 60.0
_ADVICE: Final = (
    "Where other nodes keep the cluster's metadata: remove this node from the cluster, empty its data directory and "
    "let it join again. Where it is the only one: restore the data directory from a backup"
)


async def open_metadata(
    config: NodeConfig,
    data_dir: DataDir,
    clock: Clock,
    refusals: ListenerRefusals | None = None,
    on_applied: Callable[[MetadataState, MetadataState, int], None] = lambda _before, _after, _now_ns: None,
) -> RaftMetadataStore:
    """Open the metadata of a node, and take part in its cluster.

    A node that stays alone, or that joins, has the state of its cluster when this returns. One of a cluster of several
    may still be waiting for the others: `read` tells.

    Args:
        config: Configuration of the node.
        data_dir: Data directory, opened.
        clock: Stamps the commands.
        refusals: Counts strangers.
        on_applied: See `RaftMetadataStore`.

    Raises:
        LiftError: it can not be opened, and why.
    """
    folder = data_dir.root / _FOLDER
    own = _own_address(config)
    if own.port == 0 and config.cluster.port is not None:
        own = Voter(own.node_id, own.host, _free_port(config.cluster.host))
    try:
        await asyncio.to_thread(_prepare, data_dir.root, folder)
        refusals = refusals or ListenerRefusals()
        settings = await _settings(config, folder, own, refusals)
        store = RaftMetadataStore(
            settings,
            clock,
            make_transport=lambda given: RaftTransport(given, refusals),
            on_applied=on_applied,
        )
        await store.start()
    except OSError as error:
        raise DataDirError(f"data directory {data_dir.root} can not be used: {error}") from error
    except NewerJournalError:
        raise
    except (JournalError, SnapshotError) as error:
        raise JournalError(f"{error}. {_ADVICE}") from error
    try:
        _check_members(config, store, own)
        if settings.cluster_id:
            await _wait_for_cluster(store, settings, own)
    except BaseException:
        await store.stop()
        raise
    return store


def _own_address(config: NodeConfig) -> Voter:
    """As the peers are told of it; else as it listens. Port 0 when it does not listen, or where it is left open."""
    cluster = config.cluster
    for peer in cluster.parsed_peers:
        if peer.node_id == config.node_id:
            return Voter(peer.node_id, peer.host, peer.port)
    return Voter(config.node_id, cluster.reachable_host, cluster.port or 0)


def _free_port(host: str) -> int:
    """The others must be told a port before it is opened. Another program may take it in between; that is an error."""
    with socket.create_server((host, 0)) as found:
        return int(found.getsockname()[1])


def _prepare(root: Path, folder: Path) -> None:
    old = root / _NEVER_RELEASED
    if old.exists():
        raise DataDirError(
            f"{old} holds the metadata of a liftpy from before the first release, and this one does not read it: start "
            "with another data directory"
        )
    OsDisk().make_directory(folder)


async def _settings(config: NodeConfig, folder: Path, own: Voter, refusals: ListenerRefusals) -> RaftSettings:
    cluster = config.cluster
    cluster_id, voters = "", tuple(Voter(peer.node_id, peer.host, peer.port) for peer in cluster.parsed_peers) or (own,)
    secret = cluster.read_key()
    if cluster.join and not has_journal(folder, OsDisk()):
        assert secret is not None, "who joins listens, and who listens has one"
        cluster_id, others = await ask_to_join(config.nats, own, secret, _JOIN_TIMEOUT_S, refusals)
        voters = others
    return RaftSettings(
        node_id=config.node_id,
        voters=voters,
        folder=folder,
        cluster_id=cluster_id,
        bind_host=cluster.host,
        bind_port=None if cluster.port is None else (cluster.port or own.port),
        cluster_key=secret,
        tls=_tls_files(cluster),
    )


def _tls_files(cluster: ClusterConfig) -> TlsFiles | None:
    cluster.check_certificates()
    if cluster.tls_paths is None:
        return None
    certificate, key, authority = cluster.tls_paths
    return TlsFiles(certificate=certificate, key=key, authority=authority)


def _check_members(config: NodeConfig, store: RaftMetadataStore, own: Voter) -> None:
    """What the data directory says goes before the settings; where they differ, say so."""
    members = {voter.node_id for voter in (*store.voters, *store.learners)}
    others = members - {own.node_id}
    if others and config.cluster.port is None:
        raise ConfigError(
            "cluster.port",
            f"this node belongs to a cluster with {', '.join(sorted(others))}, and must listen for them",
        )
    if config.cluster.join and not others:
        logger.warning("cluster.join is set, and this data directory is that of a cluster of one, which it stays")
    named = {peer.node_id for peer in config.cluster.parsed_peers}
    if named and named != members:
        logger.warning(
            "cluster.peers names %s, and the cluster of this data directory has %s: what counts is the latter",
            ", ".join(sorted(named)),
            ", ".join(sorted(members)),
        )


async def _wait_for_cluster(store: RaftMetadataStore, settings: RaftSettings, own: Voter) -> None:
    try:
        await store.read()
    except MetadataUnavailableError as error:
        raise JoinError(
            f"the cluster took {own.node_id!r} in, and does not reach it at {own.host}:{own.port} within "
            f"{settings.propose_timeout_s:g} s: check cluster.advertise_host, firewalls, the key and "
            "certificates, and start it again; or take it out with: liftpy node remove "
            f"{own.node_id}"
        ) from error
