"""`liftpy server`: run a node."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from liftpy.cli.run import Connection, JsonFlag, fail, print_json
from liftpy.cli.variables import tell_misspelt
from liftpy_envelope.errors import LiftError
from liftpy_envelope.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy.cli.cluster.host import HostNode
    from liftpy_server.settings.config import NodeConfig

__all__ = ["HttpPort", "app", "load_settings", "log_to_stderr", "run_loop", "server", "stop_event"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

logger = logging.getLogger("liftpy")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file with the node's settings.", show_default=False)
]
DataDirOption = Annotated[str | None, typer.Option("--data-dir", help="Directory of all data of the node.")]
NodeId = Annotated[str | None, typer.Option("--node-id", help="Name of the node.")]
PullHost = Annotated[str | None, typer.Option("--pull-host", help="Address for consumers.")]
PullPort = Annotated[int | None, typer.Option("--pull-port", help="Port for consumers; 0 chooses a free one.")]
HttpPort = Annotated[int | None, typer.Option("--http-port", help="Port for /metrics, /healthz, /readyz and /varz.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
Rack = Annotated[str | None, typer.Option("--rack", help="Rack of the node. Replicas are spread over racks.")]
ClusterHost = Annotated[str | None, typer.Option("--cluster-host", help="Address for the metadata of other nodes.")]
ClusterPort = Annotated[
    int | None,
    typer.Option("--cluster-port", help="Port for the metadata of other nodes; without it, the node runs alone."),
]
ClusterPeers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NODE@HOST:PORT",
        help="Initial node of a new cluster, including this one. Repeatable.",
        show_default=False,
    ),
]
ClusterKeyFile = Annotated[
    str | None, typer.Option("--cluster-key-file", help="File with the secret that the nodes share.")
]
TierUrl = Annotated[str | None, typer.Option("--tier-url", help="Bucket of the tier: s3://bucket/prefix.")]
TierEndpoint = Annotated[
    str | None, typer.Option("--tier-endpoint", help="Endpoint URL of an S3 server other than AWS.")
]
Processes = Annotated[
    int, typer.Option("--processes", min=1, max=64, help="Nodes on this host, each a process, under one supervisor.")
]
Join = Annotated[bool | None, typer.Option("--join", help="Join a running cluster.", show_default=False)]


def load_settings(
    config: Path | None,
    environment: Mapping[str, str],
    flags: dict[str, Any],
    *,
    context: str | None = None,
    as_json: bool,
) -> NodeConfig:
    """A node's settings; ends the command where they or their files are wrong, or where packages are missing."""
    try:
        import liftpy_server.node.node  # noqa: F401 - here, where it can be said what is missing
        from liftpy_server.settings.config import load_config
    except ImportError as error:
        if (error.name or "").startswith("liftpy"):
            raise  # it is not a package that is missing
        fail(
            LiftError(f"running a node needs more packages: pip install 'liftpy[server]' ({error.name})"),
            as_json=as_json,
        )
    try:
        settings = load_config(config, environment, flags, context=context)
        settings.check_files()
    except LiftError as error:
        fail(error, as_json=as_json)
    tell_misspelt(environment)
    return settings


def log_to_stderr(level: str) -> None:
    """Send what is logged at this level or above to the standard error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr, force=True
    )


@app.command()
def server(
    ctx: typer.Context,
    config: ConfigFile = None,
    data_dir: DataDirOption = None,
    node_id: NodeId = None,
    pull_host: PullHost = None,
    pull_port: PullPort = None,
    http_port: HttpPort = None,
    rack: Rack = None,
    cluster_host: ClusterHost = None,
    cluster_port: ClusterPort = None,
    peer: ClusterPeers = None,
    cluster_key_file: ClusterKeyFile = None,
    join: Join = None,
    tier_url: TierUrl = None,
    tier_endpoint: TierEndpoint = None,
    log_level: LogLevel = None,
    processes: Processes = 1,
    check: Annotated[bool, typer.Option("--check", help="Check and print the settings, then exit.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a node until SIGTERM or SIGINT.

    Settings come from the TOML file, then LIFTPY_* variables (LIFTPY_DATA_DIR, LIFTPY_PULL_PORT, ...), then flags.

    A new cluster: start every node with the same --peer flags, one for each node. A node more: start it with --join.

    With --processes N, the command runs N nodes, and starts those again that end. The peers are hosts then, all with
    the same N. Node ids are NODE_ID, NODE_ID-2 and so on; directories are in DATA_DIR; ports count up.
    """
    flags = {
        "data_dir": data_dir,
        "node_id": node_id,
        "pull.host": pull_host,
        "pull.port": pull_port,
        "http.port": http_port,
        "rack": rack,
        "cluster.host": cluster_host,
        "cluster.port": cluster_port,
        "cluster.peers": peer or None,
        "cluster.key_file": cluster_key_file,
        "cluster.join": join,
        "tier.url": tier_url,
        "tier.endpoint": tier_endpoint,
        "log_level": log_level,
    }
    connection: Connection = ctx.find_root().obj
    flags |= {f"nats.{name}": value for name, value in connection.options.items()}
    settings = load_settings(config, os.environ, flags, context=connection.context, as_json=as_json)
    try:
        variables = _node_variables(settings, processes)
        if check:
            plain = to_plain(settings)
            plain["nats"] = {"url": settings.nats.shown_url}
            print_json(plain | ({"nodes": variables} if variables else {}))
            return
        log_to_stderr(settings.log_level)
        if variables:
            nodes = _host_nodes(config, flags, connection.context, variables)
            run_loop(_serve_host(settings, nodes, as_json=as_json))
        else:
            run_loop(_serve(settings, as_json=as_json))
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)


def _node_variables(settings: NodeConfig, count: int) -> list[dict[str, str]]:
    """What each of several nodes is told besides the settings; nothing for a single one.

    Raises:
        ConfigError: the settings do not do for several nodes.
    """
    if count == 1:
        return []
    from liftpy.cli.cluster.host import node_variables

    return node_variables(settings, count)


def _host_nodes(
    config: Path | None, flags: Mapping[str, Any], context: str | None, variables: list[dict[str, str]]
) -> list[HostNode]:
    """The nodes of a host. What the command line says reaches them as variables, which no other user can read."""
    from liftpy.cli.cluster.host import HostNode

    command = [sys.executable, "-m", "liftpy"]
    command += [] if context is None else ["--context", context]
    command += ["server", "--json"]
    command += [] if config is None else ["--config", str(config)]
    set_flags = {name: value for name, value in flags.items() if value is not None}
    given = {f"LIFTPY_{name.replace('.', '_').upper()}": _as_text(value) for name, value in set_flags.items()}
    return [HostNode(each["LIFTPY_NODE_ID"], command, os.environ | given | each) for each in variables]


def _as_text(value: Any) -> str:
    """How a variable spells the value of a flag."""
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, (list, tuple)) else str(value).lower()


async def _serve_host(settings: NodeConfig, nodes: list[HostNode], *, as_json: bool) -> None:
    from liftpy.cli.cluster.host import Host
    from liftpy.cli.cluster.host_pages import host_pages
    from liftpy_server.admin.http import HttpServer
    from liftpy_server.listeners.refusals import ListenerRefusals

    stop = stop_event()
    host = Host(settings.node_id, nodes)
    http = HttpServer(settings.http, ListenerRefusals(), host_pages(host))
    await http.start()
    try:
        host.start()
        stopping = asyncio.ensure_future(stop.wait())
        failed = asyncio.ensure_future(host.wait_ended())
        up = asyncio.ensure_future(host.wait_up())
        await asyncio.wait({stopping, failed, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done() and as_json:
            shown = [node.ready | {"pid": node.pid} for node in host.nodes]
            print_json({"host": settings.node_id, "http_port": http.port, "nodes": shown})
        await asyncio.wait({stopping, failed}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        stopping.cancel()
        if failed.done():
            failed.result()  # it can only be an error: nobody has stopped the host
    finally:
        await host.stop()
        await http.stop()


def run_loop(work: Any) -> None:
    """Run work in the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:  # on platforms without it
        asyncio.run(work)
    else:
        uvloop.run(work)


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _serve(settings: NodeConfig, *, as_json: bool) -> None:
    from liftpy_server.node.node import Node

    stop = stop_event()
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
        ports = {"pull_port": node.pull.port, "http_port": node.http.port}
        print_json({"node_id": settings.node_id} | ports | {"cluster_port": node.cluster_port or None})
    ends: set[asyncio.Future[Any]] = {stopping, node.ended}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await node.stop()
    if node.ended.done():
        raise LiftError(f"the node has stopped: {node.ended.result()}")
