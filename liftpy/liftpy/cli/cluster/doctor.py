"""`liftpy doctor`: is this server, its NATS, its cluster and its bucket what nodes need, and what to do if not."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import typer

from liftpy.cli.cluster.findings import (
    Finding,
    judge_clocks,
    judge_files,
    judge_fsync,
    judge_nats,
    judge_space,
    judge_versions,
)
from liftpy.cli.cluster.health import problems_of
from liftpy.cli.cluster.server import ConfigFile, load_settings
from liftpy.cli.run import JsonFlag, print_json, run, stdout
from liftpy_envelope.errors import LiftError
from liftpy_envelope.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from liftpy_client.client import Lift
    from liftpy_server.settings.config import NodeConfig

__all__ = ["app", "doctor"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_FSYNCS: Final = 200
_FSYNC_BYTES: Final = bytes(4096)
_FSYNC_S: Final = 10.0
_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "dim"}


@app.command()
def doctor(
    ctx: typer.Context,
    config: ConfigFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a server, its NATS, cluster and bucket, and advise.

    Run it on a server with the settings of its node (--config, LIFTPY_* variables). It writes a small file next to the
    data, and small objects to the bucket, and removes them. The exit code is 1 if there is a problem.
    """
    connection = ctx.find_root().obj
    flags = {f"nats.{name}": value for name, value in connection.options.items()}
    settings = load_settings(config, os.environ, flags, context=connection.context, as_json=as_json)

    async def work() -> list[Finding]:
        return [each async for each in _examine(settings)]

    found = run(work(), as_json=as_json)
    if as_json:
        print_json({"ok": not _is_bad(found), "findings": [each._asdict() for each in found]})
    else:
        for each in found:
            _print(each)
    if _is_bad(found):
        raise typer.Exit(1)


def _is_bad(found: list[Finding]) -> bool:
    return any(each.state == "problem" for each in found)


def _print(finding: Finding) -> None:
    stdout.print(f"{finding.state:<8}", style=_STYLES[finding.state], end=" ", markup=False)
    stdout.print(f"{finding.check}: {finding.text}", markup=False)
    if finding.advice:
        stdout.print(f"         {finding.advice}", markup=False)


async def _examine(settings: NodeConfig) -> AsyncIterator[Finding]:
    for each in await asyncio.to_thread(lambda: list(_host(settings))):
        yield each
    async for each in _nats(settings):
        yield each
    if settings.tier.url is not None:
        for each in await asyncio.to_thread(lambda: list(_bucket(settings))):
            yield each


def _host(settings: NodeConfig) -> Iterator[Finding]:
    yield judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    directory = next(each for each in (settings.data_path, *settings.data_path.resolve().parents) if each.is_dir())
    disk = os.statvfs(directory)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    yield judge_space(free, total, settings.storage.disk_reserve_bytes)
    try:
        yield judge_fsync(_measure_fsync(directory))
    except OSError as error:
        advice = "run it as the user of the node"
        yield Finding("fsync", "unknown", f"{directory} can not be written: {error.strerror}", advice)


def _measure_fsync(directory: Path) -> list[float]:
    """Seconds that each of some appends took until the disk had it."""
    durations: list[float] = []
    end_s = time.monotonic() + _FSYNC_S
    with tempfile.TemporaryFile(dir=directory) as file:
        while len(durations) < _FSYNCS and (not durations or time.monotonic() < end_s):
            began_s = time.perf_counter()
            file.write(_FSYNC_BYTES)
            file.flush()
            os.fdatasync(file.fileno())
            durations.append(time.perf_counter() - began_s)
    return durations


async def _nats(settings: NodeConfig) -> AsyncIterator[Finding]:
    from nats.errors import Error

    from liftpy_client.client import connect_as

    try:
        async with connect_as(settings.nats, name="liftpy doctor") as lift:
            began_s = time.perf_counter()
            await lift.nats.flush()
            rtt_s = time.perf_counter() - began_s
            limits = await _ask_limits(lift)
            for each in judge_nats(_shown(lift.nats.connected_server_version), rtt_s, limits):
                yield each
            async for each in _cluster(lift):
                yield each
    except (LiftError, Error, OSError) as error:
        yield Finding("NATS", "problem", str(error), "start nats-server, or set nats.url")


def _shown(version: Any) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"


async def _ask_limits(lift: Lift) -> str | None:
    from liftpy_server.ingest.slow_consumer import advice_on_pending
    from liftpy_server.nats.monitoring import MonitoringError, ask_limits_of

    url = lift.nats.connected_url
    try:
        limits = await ask_limits_of((url.hostname if url else None) or "127.0.0.1")
    except MonitoringError as error:
        told = advice_on_pending({"max_payload": lift.nats.max_payload}, None)
        return f"max_pending is not known: {error}" if told is None else told
    return advice_on_pending({"max_payload": lift.nats.max_payload}, limits)


async def _cluster(lift: Lift) -> AsyncIterator[Finding]:
    try:
        cluster = await lift.cluster_info(limit=1)
    except LiftError as error:
        yield Finding("cluster", "unknown", str(error), "start the nodes, then run this again")
        return
    problems = problems_of(cluster)
    text = f"nodes: {len(cluster.nodes)}, streams: {cluster.streams}, partitions: {cluster.partitions}"
    if problems:
        yield Finding("cluster", "problem", "; ".join(problems), "see docs/operate/runbooks.md")
    else:
        yield Finding("cluster", "ok", text)
    infos: dict[str, dict[str, Any]] = {}
    offsets: dict[str, tuple[float, float]] = {}
    for node in cluster.nodes:
        if node.unreachable:
            continue
        before_ns = time.time_ns()
        infos[node.node_id] = info = await lift.node_info(node.node_id)
        after_ns = time.time_ns()
        offsets[node.node_id] = (info["now_ns"] - (before_ns + after_ns) / 2) / 1e9, (after_ns - before_ns) / 2e9
    if infos:
        yield judge_versions({node: info["version"] for node, info in infos.items()})
        yield judge_clocks(offsets | {"this server": (0.0, 0.0)})
    for node_id, info in infos.items():
        if not info["nats_connected"]:
            yield Finding(f"node {node_id}", "problem", "it is not connected to NATS", "see its log")
        if info["storage_full"]:
            yield Finding(f"node {node_id}", "problem", "its disk is full: it refuses messages", "free space there")
        if info["partitions_offline"]:
            text = f"{info['partitions_offline']} partitions are offline"
            yield Finding(f"node {node_id}", "problem", text, "see docs/operate/runbooks.md")


def _bucket(settings: NodeConfig) -> Iterator[Finding]:
    from liftpy_bucket.errors import StoreError, StoreUnfitError
    from liftpy_bucket.store.probe import PROBES, probe
    from liftpy_bucket.store.s3 import S3Store
    from liftpy_server.settings.tier import store_settings

    s3 = store_settings(to_plain(settings.tier))
    try:
        store = S3Store(s3)
        began_s = time.perf_counter()
        probe(store, uuid4().hex)
        took_s = time.perf_counter() - began_s
        yield Finding("bucket", "ok", f"{s3.shown} keeps every condition ({took_s:.2f} s for some twenty requests)")
        key = f"{PROBES}{uuid4().hex}"
        try:
            store.create(key, b"what time is it", key)
            here_s = time.time()
            entry = next(entry for entry in store.list(key) if entry.key == key)
        finally:
            store.delete([key])
        ahead_s = entry.modified_ns / 1e9 - here_s
        text = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this server"
        if abs(ahead_s) < 60:
            yield Finding("bucket clock", "ok", text)
        else:
            yield Finding("bucket clock", "problem", text, "set the clocks: S3 refuses requests signed minutes off")
    except StoreUnfitError as error:
        yield Finding("bucket", "problem", str(error), "use another store")
    except (StoreError, LiftError) as error:
        yield Finding("bucket", "problem", str(error), "check url, endpoint, region and credentials")
