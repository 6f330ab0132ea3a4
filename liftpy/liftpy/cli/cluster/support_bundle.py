"""`liftpy support-bundle`: what somebody who helps wants to see, in one file, without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import sys
import tarfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from liftpy.cli.cluster.redacting import Redactor, secrets_in_environment, secrets_in_file
from liftpy.cli.cluster.server import ConfigFile, load_settings
from liftpy.cli.run import JsonFlag, fail, print_json, stdout
from liftpy.cli.units import show_bytes
from liftpy_envelope.errors import LiftError
from liftpy_envelope.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from liftpy_client.client import Lift
    from liftpy_server.settings.config import NodeConfig

__all__ = ["app", "support_bundle"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_ASK_S: Final = 15.0
_STREAMS_MAX: Final = 1_000
_ASKED_MAX: Final = 256  # that a node answers at most
_LOGS_MAX: Final = 20
_LOG_BYTES: Final = 8 * 1024 * 1024
_HTTP_BYTES: Final = 32 * 1024 * 1024
_PAGES: Final = {"metrics": "metrics.txt", "healthz": "healthz.json", "readyz": "readyz.json", "varz": "varz.json"}
_OF_INTEREST: Final = ("LIFTPY_", "NATS_", "AWS_")

LogFiles = Annotated[
    list[Path] | None,
    typer.Option("--log", help="Log file of which to take the end. Repeatable.", show_default=False),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", show_default=False)]


@app.command()
def support_bundle(
    ctx: typer.Context,
    config: ConfigFile = None,
    log: LogFiles = None,
    output: Output = None,
    as_json: JsonFlag = False,
) -> None:
    """Collect settings, logs, status, metrics and versions in a file.

    Run it on a server with the settings of its node (--config, LIFTPY_* variables). Passwords, tokens, keys and
    credentials are left out of all that it collects. No message is in it, but names of streams, subjects and hosts are:
    look through it before you send it. What cannot be asked is named in problems.txt.
    """
    connection = ctx.find_root().obj
    flags = {f"nats.{name}": value for name, value in connection.options.items()}
    settings = load_settings(config, os.environ, flags, context=connection.context, as_json=as_json)
    name = f"liftpy-support-{settings.node_id}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = output or Path(f"{name}.tar.gz")
    bundle = _Bundle(Redactor(_known_secrets(settings)))
    asyncio.run(_collect(bundle, settings, (log or [])[:_LOGS_MAX]))
    try:
        size = bundle.write(path, name)
    except OSError as error:
        fail(error, as_json=as_json)
    if as_json:
        print_json({"path": str(path), "bytes": size, "files": sorted(bundle.files), "problems": bundle.problems})
    else:
        stdout.print(f"{path}: {show_bytes(size)}, {len(bundle.files)} files; look through it before you send it")
        for problem in bundle.problems:
            stdout.print(f"  missing: {problem}", markup=False)


class _Bundle:
    """Files by name, and what could not be had."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []

    def add(self, name: str, content: Any) -> None:
        """Add a text, or a JSON value."""
        if isinstance(content, str):
            text = self._redact.text(content)
        else:
            text = json.dumps(self._redact.plain(content), indent=2, default=str)
        self.files[name] = text.encode()

    def miss(self, name: str, error: BaseException) -> None:
        """Note what could not be had, and why."""
        self.problems.append(self._redact.text(f"{name}: {type(error).__name__}: {error}"))

    def write(self, path: Path, name: str) -> int:
        """Write all of it into a new file, below this directory; its size."""
        if self.problems:
            self.files["problems.txt"] = "\n".join([*self.problems, ""]).encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for each, content in sorted(self.files.items()):
                info = tarfile.TarInfo(f"{name}/{each}")
                info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
                tar.addfile(info, io.BytesIO(content))
        return path.stat().st_size


async def _collect(bundle: _Bundle, settings: NodeConfig, logs: list[Path]) -> None:
    bundle.add("settings.json", _plain(settings))
    bundle.add("versions.json", _versions())
    bundle.add("environment.json", sorted(name for name in os.environ if name.startswith(_OF_INTEREST)))
    for number, path in enumerate(logs):
        try:
            bundle.add(f"logs/{number}-{path.name}", _end_of(path))
        except OSError as error:
            bundle.miss(str(path), error)
    await _ask_nats(bundle, settings)
    if settings.http.port:
        for page, name in _PAGES.items():
            try:
                text = await asyncio.to_thread(_page, settings, page)
                bundle.add(name, json.loads(text) if name.endswith(".json") else text)
            except (OSError, ValueError) as error:
                bundle.miss(f"/{page}", error)


def _plain(settings: NodeConfig) -> dict[str, Any]:
    return to_plain(settings) | {"nats": to_plain(settings.nats) | {"url": settings.nats.shown_url}}


def _versions() -> dict[str, Any]:
    packages = {each.metadata["Name"]: each.version for each in distributions()}
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(sorted(packages.items(), key=lambda each: each[0].lower())),
    }


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
        content = file.read(_LOG_BYTES)
    # The first line may be the end of one, with a half of a secret.
    return (content if len(content) < _LOG_BYTES else content.partition(b"\n")[2]).decode(errors="replace")


def _page(settings: NodeConfig, page: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.http.host, settings.http.host)  # noqa: S104 - all of them
    shown = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(f"http://{shown}:{settings.http.port}/{page}")
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310
            return str(answer.read(_HTTP_BYTES), errors="replace")
    except urllib.error.HTTPError as error:
        if page == "readyz":  # it says why
            return str(error.read(_HTTP_BYTES), errors="replace")
        raise


async def _ask_nats(bundle: _Bundle, settings: NodeConfig) -> None:
    from nats.errors import Error

    from liftpy_client.client import connect_as

    try:
        async with connect_as(settings.nats, name="liftpy support-bundle") as lift:
            version = lift.nats.connected_server_version
            bundle.add("nats-server.json", {"version": str(version), "max_payload": lift.nats.max_payload})
            for name, ask in _questions(lift):
                try:
                    async with asyncio.timeout(_ASK_S):
                        bundle.add(f"{name}.json", await ask())
                except (LiftError, Error, OSError, TimeoutError) as error:
                    bundle.miss(name, error)
    except (LiftError, Error, OSError, TimeoutError) as error:
        bundle.miss("NATS", error)


def _questions(lift: Lift) -> Iterator[tuple[str, Callable[[], Awaitable[Any]]]]:
    async def streams() -> list[Any]:
        found: list[Any] = []
        async for stream in lift.streams(internal=True):
            if len(found) == _STREAMS_MAX:
                break
            found.append(stream.raw)
        return found

    async def cluster() -> Any:
        return (await lift.cluster_info(limit=_ASKED_MAX)).raw

    async def tier() -> Any:
        return (await lift.tier_status(limit=_ASKED_MAX)).raw

    async def quarantine() -> Any:
        return (await lift.quarantine(limit=_ASKED_MAX)).raw

    async def groups() -> Any:
        return [asdict(group) for group in (await lift.groups())[:_STREAMS_MAX]]

    yield "cluster", cluster
    yield "nodes", lift.nodes
    yield "streams", streams
    yield "groups", groups
    yield "bucket", tier
    yield "quarantine", quarantine


def _known_secrets(settings: NodeConfig) -> Iterator[str]:
    yield from secrets_in_environment(os.environ)
    yield from filter(None, (settings.nats.password, settings.nats.token))
    for url in (*settings.nats.servers, settings.tier.endpoint or ""):
        authority = url.rpartition("://")[2].partition("/")[0]
        user, _, password = authority.rpartition("@")[0].partition(":")
        yield password or user  # a user alone is a token; beside a password it may be a word such as "liftpy"
    aws = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    for name in (settings.nats.creds, settings.nats.nkey, settings.cluster.key_file, aws):
        if name is not None:
            try:
                yield from secrets_in_file(Path(name).expanduser().read_text(errors="replace")[:1_000_000])
            except OSError:
                continue  # nothing of it can be anywhere
