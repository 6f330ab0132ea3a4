"""The console's routes, and what all of its pages share."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from liftpy.cli.console.guard import BODY_BYTES_MAX, Guard
from liftpy.cli.console.showing import FILTERS
from liftpy.cli.console.watcher import Watcher
from liftpy_client.errors import AdminError, NoStreamError, UsageError
from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError, NameInvalidError, SubjectInvalidError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from liftpy_client.client import Lift

    Handle = Callable[["Site", Request], Awaitable[Response]]

__all__ = ["Page", "Site", "make_app"]

_HERE: Final = Path(__file__).parent
_AWAY: Final = 502
_MISTAKES: Final = (ConfigError, NameInvalidError, SubjectInvalidError, UsageError)
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_STREAM, ErrorCode.UNKNOWN_GROUP})


class Page(NamedTuple):
    """A page or an action of the console.

    Attributes:
        path: Of its URL.
        handle: Answers a request for it.
        method: `GET`, or `POST` for what changes something.
    """

    path: str
    handle: Handle
    method: str = "GET"


class Site:
    """What pages are made with.

    Args:
        lift: The connection, with the operator's credentials.
        allows_changes: Whether pages may change something.
        guard: Knows requests of the console's own pages.
        is_stopping: Whether live tails are to end.

    Attributes:
        watcher: Looks at the cluster.
        is_stopping: Whether live tails are to end.
        tails: How many live tails run.
    """

    def __init__(
        self, lift: Lift, *, allows_changes: bool, guard: Callable[[], Guard], is_stopping: Callable[[], bool]
    ) -> None:
        self.lift = lift
        self.is_stopping = is_stopping
        self.allows_changes = allows_changes
        self.watcher = Watcher(lift)
        self.tails = 0
        self._guard = guard
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters |= FILTERS

    async def render(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """Make a page.

        Args:
            request: What is answered.
            template: Name of its template, without `.html`.
            status: HTTP status.
            values: What the template shows.
        """
        shared = {
            "page": template,
            "path": request.url.path,
            "query": dict(request.query_params),
            "allows_changes": self.allows_changes,
            "token": self._guard().token,
            "stale": self.watcher.error,
            "notice": request.query_params.get("notice", "")[:300],
        }
        text = self._templates.get_template(f"{template}.html").render(**shared | values)
        return HTMLResponse(text, status)

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form that changes something.

        Raises:
            HTTPException: Changes are not allowed, the form is not one of the console's, or it is too large.
        """
        if not self.allows_changes:
            raise HTTPException(403, "changes are not allowed: start the console with --allow-changes")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise HTTPException(413, f"a form has at most {BODY_BYTES_MAX} bytes")
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=200))
        except ValueError:
            raise HTTPException(400, "this is not a form of the console") from None
        if not self._guard().is_own(request, fields.pop("token", "")):
            raise HTTPException(403, "this form is not of this console, or the console was restarted: load it again")
        return fields

    async def done(self, where: str, notice: str) -> Response:
        """Go on to a page after a change, and say there what was changed."""
        await self.watcher.refresh()
        return RedirectResponse(_with_notice(where, notice), 303)


def _with_notice(where: str, notice: str) -> str:
    return f"{where}{'&' if '?' in where else '?'}{urlencode({'notice': notice})}"


def make_app(
    lift: Lift,
    pages: tuple[Page, ...],
    *,
    allows_changes: bool,
    password: str | None,
    is_stopping: Callable[[], bool],
) -> Guard:
    """Make the console.

    Args:
        lift: The connection, with the operator's credentials; it must be open.
        pages: Of the console.
        allows_changes: Whether pages may change something.
        password: What the browser must send; None if the console listens on the loopback interface alone.
        is_stopping: Whether live tails are to end.

    Returns:
        The ASGI application.
    """
    site = Site(lift, allows_changes=allows_changes, guard=lambda: guard, is_stopping=is_stopping)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        async with site.watcher:
            yield

    routes = [Route(page.path, _endpoint(site, page.handle), methods=[page.method]) for page in pages]
    routes.append(Mount("/static", StaticFiles(directory=_HERE / "static")))  # type: ignore[arg-type]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _refused(site), LiftError: _failed(site), Exception: _failed(site)},
    )
    guard = Guard(app, password)
    return guard


def _endpoint(site: Site, handle: Handle) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await handle(site, request)

    return answer


def _refused(site: Site) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = error.detail if error.status_code != 404 or error.detail != "Not Found" else "there is no such page"
        return await site.render(request, "error", status=error.status_code, text=text, is_tried_again=False)

    return answer


def _failed(site: Site) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        is_known = isinstance(error, LiftError)
        text = str(error) if is_known and str(error) else f"the console met an error ({type(error).__name__})"
        status = _status_of(error)
        return await site.render(request, "error", status=status, text=text, is_tried_again=status == _AWAY)

    return answer


def _status_of(error: Exception) -> int:
    if isinstance(error, NoStreamError):
        return 404
    if isinstance(error, AdminError):
        return 404 if error.code in _UNKNOWN else 400
    if isinstance(error, _MISTAKES):
        return 400
    return _AWAY if isinstance(error, LiftError) else 500
