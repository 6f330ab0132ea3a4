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
    check: Annotated[bool, typer.Option("--check", help="Check and print the settings, then exit.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run a node until SIGTERM or SIGINT.

    Settings come from the TOML file, then LIFTPY_* variables (LIFTPY_DATA_DIR, LIFTPY_PULL_PORT, ...), then flags.

    A new cluster: start every node with the same --peer flags, one for each node. A node more: start it with --join.
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
    if check:
        plain = to_plain(settings)
        plain["nats"] = {"url": settings.nats.shown_url}
        print_json(plain)
        return
    log_to_stderr(settings.log_level)
    try:
        run_loop(_serve(settings, as_json=as_json))
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)


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
