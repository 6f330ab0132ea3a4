"""The console's pages that show messages: by offset, time, subject and key; one message; a live tail; and downloads."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from liftpy.cli.console.messages import Query, find_messages, get_message
from liftpy.cli.console.showing import brief, time_of
from liftpy.cli.stream.printing import json_printer
from liftpy_client.errors import AdminError, UsageError
from liftpy_envelope.errors import ErrorCode, LiftError, SubjectInvalidError
from liftpy_envelope.events import COMMON_FIELDS, EVENTS_STREAM, KINDS
from liftpy_envelope.stream_config import INTERNAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from liftpy.cli.console.application import Site
    from liftpy_client.message import Message

__all__ = ["download", "events", "message", "messages", "tail", "tail_events", "value"]

_DOWNLOAD_MAX: Final = 20_000
_EVENTS: Final = 200
_EVENT_COLUMNS: Final = frozenset({*COMMON_FIELDS, "kind", "cause"})
_KIND_GROUPS: Final = tuple(dict.fromkeys(kind.partition(".")[0] for kind in KINDS))
_TAILS_MAX: Final = 8
_TAIL_ROWS: Final = 200
_TAIL_PAUSE_S: Final = 0.25
_TAIL_WAIT_S: Final = 1.0  # less than the console waits for its ends


async def messages(site: Site, request: Request) -> Response:
    """Messages of a stream, as a form asks for them."""
    stream = await site.lift.stream_info(request.path_params["name"])
    found, error = None, None
    try:
        found = await find_messages(site.lift, stream, Query.of_fields(request.query_params, len(stream.partitions)))
    except (SubjectInvalidError, UsageError) as refusal:
        error = str(refusal)
    return await site.render(request, "messages", status=400 if error else 200, stream=stream, found=found, error=error)


async def message(site: Site, request: Request) -> Response:
    """One message, whole."""
    stream, found = await _one(site, request)
    return await site.render(
        request, "message", stream=stream, message=found, offset=found.offset, headers=found.headers.all_values()
    )


async def value(site: Site, request: Request) -> Response:
    """The value of one message, as a file."""
    _, found = await _one(site, request)
    name = f"{found.stream}-{found.partition}-{found.offset}.bin"
    return Response(found.value or b"", media_type="application/octet-stream", headers=_attached(name))


async def _one(site: Site, request: Request) -> tuple[Any, Message]:
    name, partition, offset = (request.path_params[field] for field in ("name", "partition", "offset"))
    stream = await site.lift.stream_info(name)
    if partition >= len(stream.partitions):
        raise HTTPException(404, f"stream {name} has partitions 0 to {len(stream.partitions) - 1}")
    found = await get_message(site.lift, name, partition, offset)
    if found is None:
        raise HTTPException(404, f"stream {name} partition {partition} has no message at offset {offset}")
    return stream, found


def _attached(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


async def download(site: Site, request: Request) -> Response:
    """Messages as JSON lines or Parquet; at most `_DOWNLOAD_MAX` of them."""
    fields = dict(request.query_params)
    kind = fields.pop("format", "jsonl")
    stream = await site.lift.stream_info(request.path_params["name"])
    fields["limit"] = str(_DOWNLOAD_MAX)
    found = await find_messages(site.lift, stream, Query.of_fields(fields, len(stream.partitions), _DOWNLOAD_MAX))
    if kind == "jsonl":
        lines = await run_in_threadpool(lambda: b"".join(map(json_printer, found.messages)))
        return Response(lines, media_type="application/jsonl", headers=_attached(f"{stream.name}.jsonl"))
    if kind == "parquet":
        body = await run_in_threadpool(_parquet, found.messages)
        name = f"{stream.name}.parquet"
        return Response(body, media_type="application/vnd.apache.parquet", headers=_attached(name))
    raise HTTPException(400, f"format: must be jsonl or parquet, not {kind!r:.40}")


def _parquet(found: list[Message]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "stream": pa.array([each.stream for each in found], pa.string()),
        "partition": pa.array([each.partition for each in found], pa.int32()),
        "offset": pa.array([each.offset for each in found], pa.int64()),
        "timestamp": pa.array([each.timestamp_ns for each in found], pa.timestamp("ns", "UTC")),
        "subject": pa.array([each.subject for each in found], pa.string()),
        "key": pa.array([each.key for each in found], pa.binary()),
        "headers": pa.array([json.dumps(each.headers.all_values()) for each in found], pa.string()),
        "value": pa.array([each.value for each in found], pa.large_binary()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


async def events(site: Site, request: Request) -> Response:
    """What happened to the cluster, the newest first."""
    wanted = request.query_params.get("kind", "").strip()
    try:
        stream = await site.lift.stream_info(EVENTS_STREAM)
    except AdminError as error:
        if error.code is not ErrorCode.UNKNOWN_STREAM:
            raise
        return await site.render(request, "events", shown=[], groups=_KIND_GROUPS, has_stream=False)
    subject = f"{wanted}.>" if wanted in _KIND_GROUPS else ""
    found = await find_messages(site.lift, stream, Query(subject=subject, limit=_EVENTS))
    told = [json.loads(each.value or b"{}") for each in reversed(found.messages)]
    if request.query_params.get("internal") != "1":
        told = [each for each in told if not str(each.get("stream", "")).startswith(INTERNAL_PREFIX)]
    return await site.render(request, "events", shown=list(map(_event_row, told)), groups=_KIND_GROUPS, has_stream=True)


def _event_row(event: dict[str, Any]) -> dict[str, Any]:
    stream, partition = event.get("stream"), event.get("partition")
    rest = {name: value for name, value in event.items() if name not in _EVENT_COLUMNS}
    return {
        "time_ns": event.get("time_ns"),
        "kind": event.get("kind", ""),
        "stream": stream,
        "partition": partition,
        "node": event.get("node") or "",
        "cause": event.get("cause") or "",
        "rest": ", ".join(f"{name} {json.dumps(value)}" for name, value in rest.items()),
    }


async def tail(site: Site, request: Request) -> Response:
    """The page on which new messages appear."""
    stream = await site.lift.stream_info(request.path_params["name"])
    return await site.render(request, "tail", stream=stream)


async def tail_events(site: Site, request: Request) -> Response:
    """New messages as server-sent events, until the browser goes."""
    stream = await site.lift.stream_info(request.path_params["name"])
    if site.tails >= _TAILS_MAX:
        raise HTTPException(503, f"{_TAILS_MAX} live tails run already; close one")
    subject = request.query_params.get("subject", "").strip() or None
    return StreamingResponse(_tail(site, stream.name, subject), media_type="text/event-stream")


async def _tail(site: Site, stream: str, subject: str | None) -> AsyncIterator[bytes]:
    site.tails += 1
    try:
        async with site.lift.consume(stream, start="new", subjects=subject) as consumer:
            while not site.is_stopping():
                found = await consumer.next_batch(_TAIL_ROWS, _TAIL_WAIT_S)
                # A comment, when nothing came, finds out whether the browser is still there.
                yield _event([_row(each) for each in found]) if found else b": nothing new\n\n"
                await asyncio.sleep(_TAIL_PAUSE_S)
    except LiftError as error:
        yield _event({"error": str(error)})
    finally:
        site.tails -= 1


def _row(found: Message) -> dict[str, Any]:
    return {
        "partition": found.partition,
        "offset": found.offset,
        "time": time_of(found.timestamp_ns),
        "subject": found.subject,
        "key": brief(found.key),
        "value": brief(found.value),
    }


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
