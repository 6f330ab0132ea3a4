"""The pages of the console that show the cluster; each reads from the newest look, or asks for one thing more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException

from liftpy.cli.cluster.health import problems_of
from liftpy.cli.console.showing import spans
from liftpy.cli.group.lags import lags_of, streams_of
from liftpy_bucket.store.counting import costs_usd
from liftpy_envelope.stream_config import INTERNAL_PREFIX, StreamConfig

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from liftpy.cli.console.application import Site
    from liftpy.cli.console.watcher import Snapshot
    from liftpy_client.admin.details import StreamDetails

__all__ = ["bucket", "group", "groups", "node", "nodes", "overview", "stream", "streams"]

_ROWS: Final = 100
_SORTS: Final = {
    "name": lambda row: row["stream"].name,
    "rate": lambda row: -(row["rate"] or 0.0),
    "messages": lambda row: -row["stream"].messages,
    "size": lambda row: -row["stream"].bytes,
}


async def overview(site: Site, request: Request) -> Response:
    """Everything at a glance."""
    seen = await site.watcher.snapshot()
    rows = sorted(_stream_rows(site, seen), key=_SORTS["rate"])
    lagging = sorted((group for group in seen.groups.groups if group.lag), key=lambda group: -(group.lag or 0))
    return await site.render(
        request,
        "overview",
        seen=seen,
        alarms=_alarms(seen),
        rate=site.watcher.rate,
        busiest=rows[:10],
        stream_count=len(rows),
        lagging=lagging[:10],
        bytes=sum(row["stream"].bytes for row in rows),
        messages=sum(row["stream"].messages for row in rows),
    )


def _alarms(seen: Snapshot) -> list[str]:
    found = problems_of(seen.cluster)
    if seen.tier.url is not None and seen.tier.state != "ok":
        found.append(f"the bucket is {seen.tier.state}: {seen.tier.message}")
    if seen.tier.trouble_count:
        found.append(f"partitions whose history has trouble on its way to the bucket: {seen.tier.trouble_count}")
    if seen.quarantine.count:
        found.append(f"things in quarantine on the nodes: {seen.quarantine.count}")
    if seen.groups.error:
        found.append(seen.groups.error)
    offline = [
        f"{stream.name}/{part.partition}: {part.offline}"
        for stream in seen.streams.values()
        for part in stream.partitions
        if part.offline
    ]
    return found + offline[:10]


def _stream_rows(site: Site, seen: Snapshot, *, internal: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "stream": stream,
            "rate": site.watcher.rate_of(name).last,
            "course": site.watcher.rate_of(name),
            "state": _state_of(stream),
            "gaps": len(stream.raw.get("gaps") or ()),
        }
        for name, stream in seen.streams.items()
        if internal or not name.startswith(INTERNAL_PREFIX)
    ]


def _state_of(stream: StreamDetails) -> str:
    if any(part.leader is None for part in stream.partitions):
        return "no leader"
    if any(part.offline for part in stream.partitions):
        return "offline"
    if stream.unreachable_partitions:
        return "leader silent"
    if any(set(part.isr) < set(part.replicas) - set(part.observers) for part in stream.partitions):
        return "under-replicated"
    if stream.paused:
        return "paused"
    return "read-only" if stream.read_only else "ok"


async def streams(site: Site, request: Request) -> Response:
    """All streams; searched and sorted."""
    seen = await site.watcher.snapshot()
    wanted, order = request.query_params.get("q", "").strip(), request.query_params.get("sort", "name")
    rows = [
        row
        for row in _stream_rows(site, seen, internal=request.query_params.get("internal") == "1")
        if wanted in row["stream"].name or wanted in row["stream"].config.subject
    ]
    rows.sort(key=_SORTS.get(order, _SORTS["name"]))
    begin = _page_begin(request, len(rows))
    shown = rows[begin : begin + _ROWS]
    return await site.render(
        request, "streams", rows=shown, total=len(rows), begin=begin, page_rows=_ROWS, sorts=list(_SORTS)
    )


def _page_begin(request: Request, total: int) -> int:
    text = request.query_params.get("begin", "0")
    return min(int(text), max(0, total - 1)) // _ROWS * _ROWS if text.isdecimal() and len(text) < 9 else 0


async def stream(site: Site, request: Request) -> Response:
    """One stream: partitions, replicas, gaps and settings."""
    details = await site.lift.stream_info(request.path_params["name"])
    gaps = details.raw.get("gaps") or []
    defaults = StreamConfig(name=details.name, subject=details.config.subject).to_plain()
    settings = details.config.to_plain()
    now_ns = time.time_ns()
    return await site.render(
        request,
        "stream",
        stream=details,
        state=_state_of(details),
        course=site.watcher.rate_of(details.name),
        gaps=gaps,
        spans=spans(gaps, now_ns),
        settings=settings,
        defaults=defaults,
        counters=details.raw.get("counters") or {},
    )


async def groups(site: Site, request: Request) -> Response:
    """All consumer groups."""
    seen = await site.watcher.snapshot()
    wanted = request.query_params.get("q", "").strip()
    rows = [
        {"group": group.summary, "lag": group.lag, "course": site.watcher.lag_of(group.summary.group)}
        for group in seen.groups.groups
        if wanted in group.summary.group
    ]
    begin = _page_begin(request, len(rows))
    shown = rows[begin : begin + _ROWS]
    return await site.render(
        request, "groups", rows=shown, total=len(rows), begin=begin, page_rows=_ROWS, error=seen.groups.error
    )


async def group(site: Site, request: Request) -> Response:
    """One consumer group: members, and how far it is in each partition."""
    details = await site.lift.group(request.path_params["name"])
    seen = await site.watcher.snapshot()
    rows = lags_of(details, {name: seen.streams[name] for name in streams_of(details) if name in seen.streams})
    return await site.render(
        request,
        "group",
        group=details,
        rows=rows,
        lag=sum(row.lag or 0 for row in rows),
        course=site.watcher.lag_of(details.group),
    )


async def nodes(site: Site, request: Request) -> Response:
    """All nodes, partitions that need attention, and what is being moved."""
    seen = await site.watcher.snapshot()
    cpus = {each.node_id: site.watcher.cpu_of(each.node_id) for each in seen.cluster.nodes}
    return await site.render(request, "nodes", seen=seen, cluster=seen.cluster, cpus=cpus)


async def node(site: Site, request: Request) -> Response:
    """One node, as it tells of itself."""
    name = request.path_params["name"]
    seen = await site.watcher.snapshot()
    place = next((each for each in seen.cluster.nodes if each.node_id == name), None)
    if place is None:
        raise HTTPException(404, f"there is no node {name!r:.100}")
    raw = {} if place.unreachable else await site.lift.node_info(name)
    return await site.render(request, "node", place=place, rows=_flat(raw))


def _flat(value: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """What a node tells, as pairs of a dotted name and a value."""
    rows: list[tuple[str, Any]] = []
    for name, each in value.items():
        if isinstance(each, dict) and each:
            rows += _flat(each, f"{before}{name}.")
        elif isinstance(each, list):
            rows.append((before + name, ", ".join(map(str, each)) or "-"))
        else:
            rows.append((before + name, "-" if each is None else each))
    return rows


async def bucket(site: Site, request: Request) -> Response:
    """What the bucket has, what is on its way there, and what that costs."""
    seen = await site.watcher.snapshot()
    costs = costs_usd(seen.tier.requests, seen.tier.read_requests)
    return await site.render(request, "bucket", tier=seen.tier, costs=costs)
