"""What every command shares: how it connects, how it runs, how it fails."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from liftpy_client.errors import AdminError, GroupRefusedError, PullError, UsageError
from liftpy_envelope.ack import PublishRefusedError
from liftpy_envelope.errors import ConfigError, LiftError, NameInvalidError, SubjectInvalidError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from liftpy_client.admin.admin import Admin
    from liftpy_client.client import Lift
    from liftpy_client.connection.nats_options import NatsOptions

__all__ = [
    "Connection",
    "Force",
    "JsonFlag",
    "confirm",
    "fail",
    "open_admin",
    "open_lift",
    "print_json",
    "run",
    "stderr",
    "stdout",
    "tell_warnings",
]

T = TypeVar("T")

stdout = Console(highlight=False, emoji=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)

Force = Annotated[
    bool, typer.Option("--yes", "-y", "--force", "-f", help="Do not ask for confirmation.", show_default=False)
]
JsonFlag = Annotated[bool, typer.Option("--json", "-j", help="Print JSON, for scripts.", show_default=False)]

_IN_CLI_WORDS: Final = (
    ("pass on_lost='earliest', 'latest' or 'new'", "--on-lost earliest, latest or new"),
    ("`reset_group` moves it elsewhere", "liftpy group reset moves it elsewhere"),
    ("pass a larger bytes_max, or partitions=[...] for a part of the stream", "Lift.table in Python can hold more"),
)
"""What errors of the client advise in Python, and what that is on the command line."""

_USAGE_EXIT = 2
_FAILURE_EXIT = 1
_INTERRUPT_EXIT = 130
_TERMINATED_EXIT = 143


class Connection:
    """The connection options of the whole command line, set once by the root command."""

    options: dict[str, Any]
    context: str | None

    def __init__(self, context: str | None = None, **options: Any) -> None:
        self.context = context
        self.options = {name: value for name, value in options.items() if value is not None}


@asynccontextmanager
async def open_lift(ctx: typer.Context, name: str = "liftpy cli") -> AsyncIterator[Lift]:
    """Connect as the command line says; others see the name."""
    from liftpy_client.client import connect_as

    async with connect_as(_nats_options(ctx), name=name) as lift:
        yield lift


@asynccontextmanager
async def open_admin(ctx: typer.Context) -> AsyncIterator[Admin]:
    """Connect as the command line says, for requests alone: without what only messages need."""
    from liftpy_client.admin.admin import connect_admin

    async with connect_admin(_nats_options(ctx), name="liftpy cli") as admin:
        yield admin


def _nats_options(ctx: typer.Context) -> NatsOptions:
    from liftpy_client.connection.nats_options import NatsOptions

    connection: Connection = ctx.find_root().obj
    return NatsOptions.resolve(context=connection.context, **connection.options)


def run(work: Coroutine[Any, Any, T], *, as_json: bool) -> T:
    """Run a command to its end. What is the user's or the cluster's fault becomes a message and an exit code."""
    import asyncio

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPT_EXIT) from None
    except asyncio.CancelledError:  # SIGTERM, where a command has something to finish first
        raise typer.Exit(_TERMINATED_EXIT) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has seen enough
        raise typer.Exit(0) from None
    except _expected() as error:
        fail(error, as_json=as_json)


def _expected() -> tuple[type[Exception], ...]:
    """What is the user's fault, the cluster's or the system's."""
    from nats.errors import Error

    return LiftError, Error, OSError


def fail(error: Exception, *, as_json: bool) -> NoReturn:
    """Say what went wrong, and end with 2 for a wrong argument and 1 for everything else."""
    code = (
        _USAGE_EXIT
        if isinstance(error, (ConfigError, NameInvalidError, SubjectInvalidError, UsageError))
        else _FAILURE_EXIT
    )
    text = "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    for python, cli in _IN_CLI_WORDS:
        text = text.replace(python, cli)
    if as_json:
        body: dict[str, Any] = {"kind": type(error).__name__, "message": text}
        if isinstance(error, (AdminError, GroupRefusedError, PullError, PublishRefusedError)):
            body["code"] = int(error.code)
        sys.stderr.write(json.dumps({"error": body}) + "\n")
    else:
        stderr.print(f"[bold red]error:[/] {escape(text)}")
    raise typer.Exit(code) from None


def confirm(question: str, *, force: bool) -> None:
    """Ask before something is done that cannot be undone; whoever does not say yes ends the command with 1."""
    if not force and not typer.confirm(question, default=False, err=True):
        raise typer.Exit(1)


def tell_warnings(warnings: Iterable[str]) -> None:
    """What one should know of something that was done."""
    for warning in warnings:
        stderr.print(f"[yellow]note:[/] {escape(warning)}")


def print_json(value: Any) -> None:
    """One JSON value and a line feed on the standard output."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
