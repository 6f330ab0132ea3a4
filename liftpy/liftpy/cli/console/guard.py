"""What keeps strangers out of the console: a password, or the loopback interface alone; and no requests of other sites.

A page shows messages and, if that is allowed, changes the cluster, with the operator's NATS credentials. The browser of
the operator may be told by any web page to send requests here. So a request must name the console's own host, a change
must come from a page of the console, and answers tell the browser to load nothing from elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BODY_BYTES_MAX", "Guard", "is_loopback"]

BODY_BYTES_MAX: Final = 1024 * 1024
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """The outermost layer of the console.

    Args:
        app: What answers.
        password: What the browser must send; None if the console listens on the loopback interface alone.

    Attributes:
        token: What a form must send back, so that it is known to be one of the console's.
    """

    def __init__(self, app: ASGIApp, password: str | None) -> None:
        self._app = app
        self._password = password
        self.token = secrets.token_urlsafe(24)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(dict(scope["headers"]))

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, headers: dict[bytes, bytes]) -> Response | None:
        if self._password is None:
            # A page elsewhere can have its own name resolve to this machine: then the browser sends that name.
            if not is_loopback(_host_of(headers)):
                return PlainTextResponse("the console answers at 127.0.0.1 and localhost alone", 421)
            return None
        if hmac.compare_digest(_password_of(headers).encode(), self._password.encode()):
            return None
        return PlainTextResponse("wrong password", 401, {"www-authenticate": 'Basic realm="liftpy", charset="UTF-8"'})

    def is_own(self, request: Request, token: str) -> bool:
        """Whether a change was sent by a page of the console."""
        site = request.headers.get("sec-fetch-site", "same-origin")
        return site == "same-origin" and hmac.compare_digest(token.encode(), self.token.encode())


def _host_of(headers: dict[bytes, bytes]) -> str:
    try:
        return urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _password_of(headers: dict[bytes, bytes]) -> str:
    kind, _, text = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
