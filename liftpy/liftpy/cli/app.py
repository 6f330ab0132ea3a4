"""The root of the `liftpy` command, and its connection options.

A command's module is imported when the command is called: help and errors come at once, whatever a command needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from liftpy.cli.option_values import seconds_of
from liftpy.cli.parsing import Commands, wants_json
from liftpy.cli.run import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MODULES", "SUMMARIES", "app"]

SUMMARIES: Final = {
    "stream": "Add, inspect, change and remove streams.",
    "group": "List, inspect, reset and delete consumer groups.",
    "node": "Inspect, drain and remove the nodes of the cluster.",
    "tier": "Inspect and maintain the bucket.",
    "spark": "Run jobs over a whole bucket with Spark.",
    "publish": "Publish messages and wait for their acks.",
    "consume": "Print the messages of streams until interrupted.",
    "replay-dlq": "Publish dead letters again on the subjects of their messages.",
    "table": "Print the last value of every key, one line each.",
    "bench": "Measure publishing and consuming against a running cluster.",
    "status": "Show nodes, streams, consumer groups and alarms.",
    "health": "Print the health of the cluster as one line; fail unless it is ok.",
    "events": "Print what happened to the cluster.",
    "console": "Serve the web console until Ctrl-C.",
    "doctor": "Check a server, its NATS, cluster and bucket, and advise.",
    "canary": "Publish messages, read each back every way, and compare.",
    "support-bundle": "Collect settings, logs, status, metrics and versions in a file.",
    "restore": "Restore all streams of a bucket to a new, empty cluster.",
    "server": "Run a node until SIGTERM or SIGINT.",
    "dev": "Run a local nats-server and nodes, with a live view.",
    "demo": "Store a year of flights, kill the leader, check every record.",
}
"""The first line of each command's help, in the order in which they are listed."""

MODULES: Final = {
    "stream": "liftpy.cli.stream.commands",
    "group": "liftpy.cli.group.commands",
    "node": "liftpy.cli.cluster.node",
    "tier": "liftpy.cli.tier.commands",
    "spark": "liftpy.cli.spark.commands",
    "publish": "liftpy.cli.stream.publish",
    "consume": "liftpy.cli.stream.consume",
    "replay-dlq": "liftpy.cli.stream.replay",
    "table": "liftpy.cli.stream.table",
    "bench": "liftpy.cli.stream.bench",
    "status": "liftpy.cli.cluster.status",
    "health": "liftpy.cli.cluster.health",
    "events": "liftpy.cli.cluster.events",
    "console": "liftpy.cli.console.commands",
    "doctor": "liftpy.cli.cluster.doctor",
    "canary": "liftpy.cli.cluster.canary",
    "support-bundle": "liftpy.cli.cluster.support_bundle",
    "restore": "liftpy.cli.tier.restore",
    "server": "liftpy.cli.cluster.server",
    "dev": "liftpy.cli.dev.commands",
    "demo": "liftpy.demo.command",
}
"""The module of each command."""


class _Modules(Mapping[str, Any]):
    """The commands by name, each from its module, imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        command = get_command(import_module(MODULES[name]).app)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


class _Root(Commands):
    """The root's commands, of which the list shows summaries alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": {}})
        self.commands: Any = _Modules()
        self._is_listed = False

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in order."""
        del ctx
        return list(SUMMARIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or while the list is written what the list says of it."""
        if self._is_listed:
            return TyperCommand(cmd_name, help=SUMMARIES[cmd_name])
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        self._is_listed = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listed = False


app = typer.Typer(
    name="liftpy",
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable streams for the NATS you already run.",
)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's way of calling
    if value:
        from importlib.metadata import version

        typer.echo(f"liftpy {version('liftpy')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    server_url: Annotated[
        str | None, typer.Option("--server", "-s", help="NATS address.", envvar="NATS_URL", show_default=False)
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the nats CLI.", envvar="NATS_CONTEXT")] = None,
    creds: Annotated[str | None, typer.Option(help="Credentials file.", envvar="NATS_CREDS")] = None,
    nkey: Annotated[str | None, typer.Option(help="File with an nkey seed.", envvar="NATS_NKEY")] = None,
    user: Annotated[str | None, typer.Option(help="User name.", envvar="NATS_USER")] = None,
    password: Annotated[str | None, typer.Option(help="Password of --user.", envvar="NATS_PASSWORD")] = None,
    token: Annotated[str | None, typer.Option(help="Token.", envvar="NATS_TOKEN")] = None,
    tlscert: Annotated[str | None, typer.Option(help="Client certificate.", envvar="NATS_CERT")] = None,
    tlskey: Annotated[str | None, typer.Option(help="Key of --tlscert.", envvar="NATS_KEY")] = None,
    tlsca: Annotated[str | None, typer.Option(help="CA certificates to trust.", envvar="NATS_CA")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Time limit of a request, such as 5s.", envvar="NATS_TIMEOUT")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable streams for the NATS you already run."""
    timeout_s = None if timeout is None else seconds_of("--timeout", timeout, as_json=wants_json(ctx))
    ctx.obj = Connection(
        context,
        url=server_url,
        creds=creds,
        nkey=nkey,
        user=user,
        password=password,
        token=token,
        tls_cert=tlscert,
        tls_key=tlskey,
        tls_ca=tlsca,
        timeout_s=timeout_s,
    )
