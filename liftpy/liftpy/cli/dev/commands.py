"""`liftpy dev`: a nats-server and one node or several on this machine, for trying things out."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from liftpy.cli.cluster.server import HttpPort, load_settings, log_to_stderr, run_loop, stop_event
from liftpy.cli.cluster.status import show_live
from liftpy.cli.dev.console_process import ConsoleProcess
from liftpy.cli.dev.layout import NODES_MAX, DevLayout
from liftpy.cli.dev.nats_keeper import NatsKeeper
from liftpy.cli.dev.nats_server import NatsServer, NatsServerError, PortTakenError, shipped_config
from liftpy.cli.dev.nodes import DevNodes
from liftpy.cli.dev.seaweed import SeaweedServer
from liftpy.cli.run import JsonFlag, fail, print_json, stderr, stdout
from liftpy.cli.variables import tell_misspelt
from liftpy_client.client import connect_as
from liftpy_client.connection.nats_options import NatsOptions
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from liftpy_server.settings.config import NodeConfig

__all__ = ["app", "dev"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_PULL_PORT = 4270


@app.command()
def dev(
    ctx: typer.Context,
    data_dir: Annotated[str, typer.Option("--data-dir", help="Data directory, kept between runs.")] = "liftpy-data",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=NODES_MAX, help="Number of nodes.")] = 1,
    port: Annotated[int, typer.Option(help="Port of the nats-server; 0 chooses a free one.")] = 4222,
    pull_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the first node for consumers; 0 chooses free ports. By default 4270, or free ports "
            "with several nodes.",
            show_default=False,
        ),
    ] = None,
    http_port: HttpPort = None,
    nats_config: Annotated[Path | None, typer.Option(help="Configuration file for the nats-server.")] = None,
    s3: Annotated[
        bool, typer.Option("--s3", help="Also run an S3 server (SeaweedFS) as the bucket of the tier.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Also serve the web console, whose pages may change things.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print log lines instead of the live view.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a local nats-server and nodes, with a live view.

    Data survives a restart. A single node keeps its data in DATA_DIR/node. Several nodes are separate processes, with
    data in DATA_DIR/node-1 and so on, and logs in DATA_DIR/node-1.log. If a node ends, dev prints the command that
    starts it again; the nats-server it restarts itself. With --s3, the bucket s3://liftpy, its S3 server and the
    credentials are in DATA_DIR/s3.
    """
    root = ctx.find_root()
    sources = [root.get_parameter_source(name) for name in root.params]
    if any(source is not None and source.name == "COMMANDLINE" for source in sources):
        fail(UsageError("dev runs a nats-server of its own; for another one there is liftpy server"), as_json=as_json)
    home = Path(data_dir).expanduser()
    live = not quiet and not as_json and stdout.is_terminal
    with ExitStack() as servers:
        nats = _start_nats(home, port, nats_config, as_json=as_json)
        servers.callback(nats.stop)
        _tell_other_data(home, nodes)
        try:
            bucket = _start_bucket(home, servers) if s3 else None
            pages = _start_console(home, nats, servers) if console else None
            shown = Shown(nats, bucket, pages)
            if nodes == 1:
                flags: dict[str, Any] = {
                    "pull.port": _PULL_PORT if pull_port is None else pull_port,
                    "http.port": http_port,
                }
                flags |= {"data_dir": str(home / "node"), "nats.url": nats.url}
                settings = load_settings(None, _environment(home, bucket), flags, as_json=as_json)
                log_to_stderr("warning" if live else settings.log_level)
                run_loop(_run_one(settings, shown, live=live, as_json=as_json))
            else:
                layout = DevLayout.open(home, nodes)
                tell_misspelt(os.environ)  # the nodes say it in their logs
                ports = [_port_flags(number, pull_port or 0, http_port) for number in range(nodes)]
                command = [sys.executable, "-m", "liftpy", "-s", nats.url, "server", "--json"]
                processes = DevNodes(layout, command, _environment(home, bucket, os.environ), ports)
                run_loop(_run_several(processes, shown, live=live, as_json=as_json))
        except (LiftError, OSError) as error:
            fail(error, as_json=as_json)


def _start_nats(home: Path, port: int, config: Path | None, *, as_json: bool) -> NatsServer:
    try:
        home.mkdir(parents=True, exist_ok=True)
        nats = NatsServer(port, config or shipped_config(), home / "nats-server.log")
        nats.start()
    except PortTakenError as error:
        fail(LiftError(f"{error}; use --port 0 for a free port"), as_json=as_json)
    except FileExistsError:
        fail(UsageError(f"--data-dir: {home} is not a directory"), as_json=as_json)
    except (NatsServerError, OSError) as error:
        fail(error, as_json=as_json)
    return nats


def _start_bucket(home: Path, servers: ExitStack) -> SeaweedServer:
    """The S3 server; its credentials are in our environment afterwards, where boto3 looks for them."""
    server = SeaweedServer(home / "s3", home / "s3.log")
    servers.callback(server.stop)
    server.start()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):  # of an account elsewhere
        os.environ.pop(name, None)
    os.environ.update(server.environment)
    return server


def _start_console(home: Path, nats: NatsServer, servers: ExitStack) -> ConsoleProcess:
    console = ConsoleProcess(nats.url, _environment(home, None, os.environ), home / "console.log")
    servers.callback(console.stop)
    return console


def _tell_other_data(home: Path, nodes: int) -> None:
    """A node and a cluster in one directory know nothing of each other; who wonders where the data is should."""
    if nodes == 1 and (home / "cluster.json").exists():
        stderr.print(f"[yellow]note:[/] {home} also holds a cluster; --nodes starts that")
    elif nodes > 1 and (home / "node").exists():
        stderr.print(f"[yellow]note:[/] {home}/node, the data of a single node, is no part of the cluster")


def _environment(home: Path, bucket: SeaweedServer | None, rest: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what it says of NATS and of other nodes, which dev has of its own.

    Args:
        home: Takes the place of the user's settings, where the nats CLI's chosen context stands.
        bucket: Takes the place of what the environment says of one.
        rest: What else a process needs.
    """
    ours = ("LIFTPY_NATS_", "LIFTPY_CLUSTER_", "LIFTPY_NODE_ID", "LIFTPY_DATA_DIR")
    kept = {name: text for name, text in (rest or {}).items() if not name.startswith(("NATS_", "LIFTPY_"))}
    for name, text in os.environ.items():
        is_time = name.startswith("LIFTPY_CLUSTER_") and name.endswith("_S")
        if name.startswith("LIFTPY_") and (is_time or not name.startswith(ours)):
            kept[name] = text
    if bucket is not None:
        kept |= {"LIFTPY_TIER_URL": bucket.url, "LIFTPY_TIER_ENDPOINT": bucket.endpoint}
    return kept | {"XDG_CONFIG_HOME": str(home)}


def _port_flags(number: int, pull_port: int, http_port: int | None) -> list[str]:
    flags = ["--pull-port", str(pull_port and pull_port + number)]
    if http_port is not None:
        flags += ["--http-port", str(http_port and http_port + number)]
    return flags


class Shown(NamedTuple):
    """What runs beside the nodes: the nats-server, and if they were asked for the S3 server and the console."""

    nats: NatsServer
    bucket: SeaweedServer | None
    console: ConsoleProcess | None

    def tell(self) -> None:
        """Say to people where it is."""
        url, bucket = self.nats.url, self.bucket
        stderr.print(f"[bold green]liftpy is up[/]: publish and consume at [bold]{url}[/] (Ctrl-C ends it)")
        stderr.print(f"  liftpy -s {url} stream add orders --subject 'orders.>'")
        if bucket is not None:
            stderr.print(f"  bucket {bucket.url} at {bucket.endpoint}, credentials in {bucket.credentials_path}")
        if self.console is not None:
            stderr.print(f"  console at {self.console.url}")

    def to_plain(self) -> dict[str, Any]:
        """For scripts: where the bucket is, where its credentials stand, and where the console is."""
        shown: dict[str, Any] = {}
        if self.bucket is not None:
            paths = {"credentials_file": str(self.bucket.credentials_path), "pid": self.bucket.pid}
            shown["s3"] = {"url": self.bucket.url, "endpoint": self.bucket.endpoint} | paths
        if self.console is not None:
            shown["console_url"] = self.console.url
        return shown


async def _run_one(settings: NodeConfig, shown: Shown, *, live: bool, as_json: bool) -> None:
    from liftpy_server.node.node import Node

    stop = stop_event()
    node = Node(settings)
    await node.start()
    try:
        if as_json:
            ports: dict[str, Any] = {"pull_port": node.pull.port, "http_port": node.http.port}
            told = {"node_id": settings.node_id} | ports | {"cluster_port": None, "pid": os.getpid()}
            print_json({"nats_url": shown.nats.url} | ports | {"nodes": [told]} | shown.to_plain())
        else:
            shown.tell()
        async with _kept(shown.nats, live=live) as keeper:
            if live:
                async with connect_as(settings.nats, name="liftpy dev view") as lift:
                    await show_live(lift, stop, notes=lambda: list(keeper.notes))
            await stop.wait()
    finally:
        await node.stop()


@asynccontextmanager
async def _kept(nats: NatsServer, *, live: bool) -> AsyncIterator[NatsKeeper]:
    """Keep the nats-server running; the live view shows the notes, elsewhere they are printed."""
    keeper = NatsKeeper(nats, None if live else lambda text: stderr.print(text, style="red", markup=False))
    keeping = asyncio.ensure_future(keeper.run())
    try:
        yield keeper
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work; False when it was left because of `stop`."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        await working
        return True
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def _run_several(nodes: DevNodes, shown: Shown, *, live: bool, as_json: bool) -> None:
    stop = stop_event()
    try:
        if not await _until(stop, nodes.start()):
            return
        if as_json:
            print_json({"nats_url": shown.nats.url, "nodes": nodes.shown} | shown.to_plain())
        else:
            shown.tell()
            for node in nodes.shown:
                stderr.print(f"  {node['node_id']}: pid {node['pid']}, consumers at 127.0.0.1:{node['pull_port']}")
        async with _kept(shown.nats, live=live) as keeper:
            if live:
                async with connect_as(NatsOptions(url=shown.nats.url), name="liftpy dev view") as lift:
                    await show_live(lift, stop, notes=lambda: [*keeper.notes, *nodes.obituaries])
            else:
                await _until(stop, _tell_ends(nodes))
    finally:
        await nodes.stop()


async def _tell_ends(nodes: DevNodes) -> None:
    """Say which nodes end, until none is left.

    Raises:
        LiftError: none is left.
    """
    while (obituary := await nodes.next_end()) is not None:
        stderr.print(obituary, style="red", markup=False)
    raise LiftError("all nodes have ended")
