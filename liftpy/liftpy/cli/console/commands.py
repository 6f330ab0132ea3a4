"""`liftpy console`: the web console."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from liftpy.cli.run import open_lift, run, stderr
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_client.client import Lift

__all__ = ["app", "console", "serve"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PORT: Final = 8474
_REQUESTS_AT_ONCE: Final = 64
_STOP_S: Final = 2
_PASSWORD_MIN: Final = 12


@app.command()
def console(
    ctx: typer.Context,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but the loopback interface needs --password-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for a free one.")] = PORT,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Let pages publish, change streams, reset groups and drain nodes.",
            show_default=False,
        ),
    ] = False,
    password_file: Annotated[
        Path | None,
        typer.Option(help="File with the password that the browser must send, with any user name.", show_default=False),
    ] = None,
) -> None:
    """Serve the web console until Ctrl-C.

    It speaks to the cluster with your NATS credentials: whoever reaches it sees what you may see.
    """

    async def work() -> None:
        password = None if password_file is None else _read_password(password_file)
        _check(host, password)
        async with open_lift(ctx, "liftpy console") as lift:
            await serve(lift, host, port, allows_changes=allow_changes, password=password)

    run(work(), as_json=False)


def _read_password(path: Path) -> str:
    password = path.read_text().strip()
    if len(password) < _PASSWORD_MIN:
        raise UsageError(f"--password-file: {path} must have a password of at least {_PASSWORD_MIN} characters")
    return password


def _check(host: str, password: str | None) -> None:
    try:
        from liftpy.cli.console.guard import is_loopback
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise LiftError(f"the console needs more packages: pip install 'liftpy[console]' ({package})") from None
    if password is None and not is_loopback(host):
        raise UsageError(
            f"--host: others reach {host}, and could read messages with your credentials; add --password-file, or "
            "leave --host at 127.0.0.1"
        )


async def serve(
    lift: Lift, host: str, port: int, *, allows_changes: bool, password: str | None, started: Any = None
) -> None:
    """Serve the console until SIGINT or SIGTERM.

    Args:
        lift: The connection, with the operator's credentials.
        host: Address to listen on.
        port: Port to listen on; 0 for a free one.
        allows_changes: Whether pages may change something.
        password: What the browser must send; None if the host is a loopback address.
        started: Called with the URL when the console listens; by default the URL is printed.

    Raises:
        LiftError: It can not listen there.
    """
    import uvicorn

    from liftpy.cli.console.application import make_app
    from liftpy.cli.console.routes import PAGES

    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}/"
    settings = uvicorn.Config(
        make_app(
            lift,
            PAGES,
            allows_changes=allows_changes,
            password=password,
            is_stopping=lambda: server.should_exit,
        ),
        log_level=logging.WARNING,
        access_log=False,
        limit_concurrency=_REQUESTS_AT_ONCE,
        server_header=False,
        timeout_graceful_shutdown=_STOP_S,
    )
    server = uvicorn.Server(settings)
    (started or _tell)(url)
    with listener:
        await server.serve([listener])
    await asyncio.sleep(0)  # what the signal cancelled ends here


def _listen(host: str, port: int) -> Any:
    import socket

    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise LiftError(f"--port: {host}:{port} can not be listened on: {error.strerror or error}") from None


def _tell(url: str) -> None:
    stderr.print(f"The console is at {url} until Ctrl-C.", markup=False)
