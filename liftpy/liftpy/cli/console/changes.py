"""What the console's forms change, if it was started with `--allow-changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from liftpy.cli.group.reset import make_plan, offsets_of, parse_place
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError
from liftpy_envelope.stream_config import StreamConfig

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from liftpy.cli.console.application import Site

__all__ = ["drain", "pause", "publish", "publish_form", "reset", "settings"]

_HEADERS_MAX: Final = 100


async def publish_form(site: Site, request: Request) -> Response:
    """The form that publishes a message."""
    return await site.render(request, "publish", given={}, error=None, ack=None)


async def publish(site: Site, request: Request) -> Response:
    """Publish a message, and show its ack or why it was refused."""
    given = await site.form(request)
    ack, error = None, None
    try:
        ack = await site.lift.publish(
            given.get("subject", "").strip(),
            given.get("value", "").replace("\r\n", "\n").encode(),
            key=given["key"].encode() if given.get("key") else None,
            headers=_headers_of(given.get("headers", "")),
        )
    except LiftError as refusal:
        error = str(refusal)
    return await site.render(request, "publish", status=400 if error else 200, given=given, error=error, ack=ack)


def _headers_of(text: str) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"headers: {line!r:.80} is not `Name: value`")
        headers.setdefault(name.strip(), []).append(value.strip())
    if len(headers) > _HEADERS_MAX:
        raise UsageError(f"headers: at most {_HEADERS_MAX}")
    return headers


async def settings(site: Site, request: Request) -> Response:
    """Change settings of a stream; those that the form left as they were stay."""
    given = await site.form(request)
    name = request.path_params["name"]
    stream = await site.lift.stream_info(name)
    before = stream.config.to_plain()
    changes = {
        field: _typed(field, text.strip(), before[field])
        for field, text in given.items()
        if field in before and text.strip() != shown(before[field])
    }
    where = request.url.path.removesuffix("/settings")
    if not changes:
        return await site.done(where, "nothing was changed")
    StreamConfig.from_plain(before | changes)
    changed = await site.lift.update_stream(name, expected_version=int(given["version"]), **changes)
    told = ", ".join(f"{field} = {shown(changed.config.to_plain()[field])}" for field in changes)
    return await site.done(where, "; ".join([f"changed: {told}", *changed.warnings]))


def shown(value: Any) -> str:
    """A setting as the form has it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _typed(field: str, text: str, before: Any) -> Any:
    if isinstance(before, bool):
        if text not in {"true", "false"}:
            raise UsageError(f"{field}: must be true or false, not {text!r:.40}")
        return text == "true"
    if field in {"group", "min_isr"} and not text:
        return None
    if isinstance(before, (int, float)) or field == "min_isr":
        try:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise UsageError(f"{field}: must be a number, not {text!r:.40}") from None
    return text


async def pause(site: Site, request: Request) -> Response:
    """Pause a stream, or resume it."""
    given = await site.form(request)
    name = request.path_params["name"]
    where = request.url.path.removesuffix("/pause")
    if given.get("do") == "resume":
        await site.lift.resume_stream(name)
        return await site.done(where, "the stream takes messages again")
    await site.lift.pause_stream(name)
    return await site.done(where, "the stream is paused: it takes no messages, and they are refused")


async def reset(site: Site, request: Request) -> Response:
    """Change what a group has committed; a dry run first."""
    given = await site.form(request)
    name = request.path_params["name"]
    place = parse_place(given.get("to", "").strip())
    stream = given.get("stream", "").strip()
    is_dry = given.get("do") != "apply"
    plan = await make_plan(site.lift, name, place, [stream] if stream else [], [], is_dry=is_dry)
    if is_dry:
        return await site.render(request, "reset", group=name, steps=plan.steps, given=given)
    await site.lift.reset_group(name, offsets_of(plan))
    return await site.done(request.url.path.removesuffix("/reset"), f"the group goes on there: {given['to']}")


async def drain(site: Site, request: Request) -> Response:
    """Move everything off a node, or let it keep and take replicas again."""
    given = await site.form(request)
    name = request.path_params["name"]
    is_cancelled = given.get("do") == "cancel"
    moved = await site.lift.drain_node(name, cancel=is_cancelled)
    text = "the node keeps and takes replicas" if is_cancelled else f"partitions that begin to move: {moved.count}"
    return await site.done("/nodes", "; ".join([text, *moved.warnings]))
