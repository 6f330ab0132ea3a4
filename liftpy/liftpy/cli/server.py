"""`liftpy server` and `liftpy dev`: run a node."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from liftpy.cli.nats_server import NatsServer, NatsServerError, PortTakenError, shipped_config
from liftpy.cli.run import Connection, JsonFlag, fail, print_json, stderr, stdout
from liftpy.cli.status import show_live
from liftpy_client.client import connect_as
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError
from liftpy_envelope.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_server.config import NodeConfig

__all__ = ["dev", "server"]

logger = logging.getLogger("liftpy")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file with the node's settings.", show_default=False)
]
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="Where the node keeps everything.")]
NodeId = Annotated[str | None, typer.Option("--node-id", help="Name of the node.")]
PullHost = Annotated[str | None, typer.Option("--pull-host", help="Address for consumers.")]
PullPort = Annotated[int | None, typer.Option("--pull-port", help="Port for consumers; 0 takes a free one.")]
HttpPort = Annotated[int | None, typer.Option("--http-port", help="Port for /metrics, /healthz and /varz.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]


def _load(
    config: Path | None,
    environment: Mapping[str, str],
    flags: dict[str, Any],
    *,
    context: str | None = None,
    as_json: bool,
) -> NodeConfig:
    try:
        import liftpy_server.node  # noqa: F401 - here, where it can be said what is missing
        from liftpy_server.config import load_config
    except ImportError as error:
        fail(
            LiftError(f"running a node needs more packages: pip install 'liftpy[server]' ({error.name})"),
            as_json=as_json,
        )
    try:
        return load_config(config, environment, flags, context=context)
    except LiftError as error:
        fail(error, as_json=as_json)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr, force=True
    )


def server(
    ctx: typer.Context,
    config: ConfigFile = None,
    data_dir: DataDirOption = None,
    node_id: NodeId = None,
    pull_host: PullHost = None,
    pull_port: PullPort = None,
    http_port: HttpPort = None,
    log_level: LogLevel = None,
    check: Annotated[bool, typer.Option("--check", help="Check the settings, print them, and end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a node until SIGTERM or SIGINT.

    Settings come from the TOML file, then LIFTPY_* variables (LIFTPY_DATA_DIR, LIFTPY_PULL_PORT, ...), then flags.
    """
    flags = {
        "data_dir": data_dir,
        "node_id": node_id,
        "pull.host": pull_host,
        "pull.port": pull_port,
        "http.port": http_port,
        "log_level": log_level,
    }
    connection: Connection = ctx.find_root().obj
    flags |= {f"nats.{name}": value for name, value in connection.options.items()}
    settings = _load(config, os.environ, flags, context=connection.context, as_json=as_json)
    if check:
        plain = to_plain(settings)
        plain["nats"] = {"url": settings.nats.shown_url}
        print_json(plain)
        return
    _log_to_stderr(settings.log_level)
    try:
        _run_loop(_serve(settings, as_json=as_json))
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)


def _run_loop(work: Any) -> None:
    try:
        import uvloop
    except ImportError:  # on platforms without it
        asyncio.run(work)
    else:
        uvloop.run(work)


def _stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _serve(settings: NodeConfig, *, as_json: bool) -> None:
    from liftpy_server.node import Node

    stop = _stop_event()
    node = Node(settings)
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    await starting
    if as_json:
        print_json({"node_id": settings.node_id, "pull_port": node.pull.port, "http_port": node.http.port})
    await stopping
    await node.stop()


def dev(
    ctx: typer.Context,
    data_dir: Annotated[str, typer.Option("--data-dir", help="Kept between runs.")] = "liftpy-data",
    port: Annotated[int, typer.Option(help="Port of the nats-server; 0 takes a free one.")] = 4222,
    pull_port: Annotated[int, typer.Option(help="Port for consumers; 0 takes a free one.")] = 4270,
    http_port: HttpPort = None,
    nats_config: Annotated[Path | None, typer.Option(help="Another configuration for the nats-server.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live view, log lines only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a nats-server and a node on this machine, with a live view. Data survives a restart."""
    root = ctx.find_root()
    sources = [root.get_parameter_source(name) for name in root.params]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        fail(UsageError("dev runs a nats-server of its own; for another one there is liftpy server"), as_json=as_json)
    home = Path(data_dir).expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        nats = NatsServer(port, nats_config or shipped_config(), home / "nats-server.log")
        nats.start()
    except PortTakenError as error:
        fail(LiftError(f"{error}; --port 0 takes a free one"), as_json=as_json)
    except NatsServerError as error:
        fail(error, as_json=as_json)
    except FileExistsError:
        fail(UsageError(f"--data-dir: {home} is not a directory"), as_json=as_json)
    except OSError as error:
        fail(error, as_json=as_json)
    try:
        flags = {"data_dir": str(home / "node"), "pull.port": pull_port, "http.port": http_port, "nats.url": nats.url}
        settings = _load(None, _dev_environment(home), flags, as_json=as_json)
        live = not quiet and not as_json and stdout.is_terminal
        _log_to_stderr("warning" if live else settings.log_level)
        _run_loop(_dev(settings, nats, live=live, as_json=as_json))
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)
    finally:
        nats.stop()


def _dev_environment(home: Path) -> dict[str, str]:
    """The environment without what it says of NATS, the chosen context included: dev has a nats-server of its own."""
    kept = {name: text for name, text in os.environ.items() if name.startswith("LIFTPY_") and "_NATS_" not in name}
    return kept | {"XDG_CONFIG_HOME": str(home)}


async def _dev(settings: NodeConfig, nats: NatsServer, *, live: bool, as_json: bool) -> None:
    from liftpy_server.node import Node

    stop = _stop_event()
    node = Node(settings)
    await node.start()
    try:
        if as_json:
            print_json({"nats_url": nats.url, "pull_port": node.pull.port, "http_port": node.http.port})
        else:
            stderr.print(f"[bold green]liftpy is up[/]: publish and consume at [bold]{nats.url}[/] (Ctrl-C ends it)")
            stderr.print(f"  liftpy -s {nats.url} stream add orders --subject 'orders.>'")
        if live:
            async with connect_as(settings.nats, name="liftpy dev view") as lift:
                await show_live(lift, stop)
        await stop.wait()
    finally:
        await node.stop()
