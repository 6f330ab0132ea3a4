"""The root of the `liftpy` command, and its connection options."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from liftpy.cli import group, node, spark, stream, tier
from liftpy.cli.consume import CONSUME_EXAMPLES, consume
from liftpy.cli.demo import demo
from liftpy.cli.dev import dev
from liftpy.cli.option_values import seconds_of
from liftpy.cli.parsing import Commands, wants_json
from liftpy.cli.publish import publish
from liftpy.cli.reassign import reassign
from liftpy.cli.restore import restore
from liftpy.cli.run import Connection, stdout
from liftpy.cli.server import server
from liftpy.cli.status import status
from liftpy.cli.table import table

__all__ = ["app"]

app = typer.Typer(
    name="liftpy",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable streams for the NATS you already run.",
)
stream.app.command("reassign")(reassign)
app.add_typer(stream.app, name="stream")
app.add_typer(group.app, name="group")
app.add_typer(node.app, name="node")
app.add_typer(tier.app, name="tier")
app.add_typer(spark.app, name="spark")
app.command("publish")(publish)
app.command("consume", epilog=CONSUME_EXAMPLES)(consume)
app.command("table", epilog="Example: liftpy table prices --key EURUSD")(table)
app.command("status")(status)
app.command("restore")(restore)
app.command("server")(server)
app.command("dev")(dev)
app.command("demo")(demo)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's way of calling
    if value:
        stdout.print(f"liftpy {version('liftpy')}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    server_url: Annotated[
        str | None, typer.Option("--server", "-s", help="NATS address.", envvar="NATS_URL", show_default=False)
    ] = None,
    context: Annotated[str | None, typer.Option(help="A context of the nats CLI.", envvar="NATS_CONTEXT")] = None,
    creds: Annotated[str | None, typer.Option(help="A credentials file.", envvar="NATS_CREDS")] = None,
    nkey: Annotated[str | None, typer.Option(help="A file with an nkey seed.", envvar="NATS_NKEY")] = None,
    user: Annotated[str | None, typer.Option(help="User name.", envvar="NATS_USER")] = None,
    password: Annotated[str | None, typer.Option(help="Its password.", envvar="NATS_PASSWORD")] = None,
    token: Annotated[str | None, typer.Option(help="A token.", envvar="NATS_TOKEN")] = None,
    tlscert: Annotated[str | None, typer.Option(help="TLS certificate.", envvar="NATS_CERT")] = None,
    tlskey: Annotated[str | None, typer.Option(help="Its key.", envvar="NATS_KEY")] = None,
    tlsca: Annotated[str | None, typer.Option(help="TLS authorities to trust.", envvar="NATS_CA")] = None,
    timeout: Annotated[str | None, typer.Option(help="For requests, such as 5s.", envvar="NATS_TIMEOUT")] = None,
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
