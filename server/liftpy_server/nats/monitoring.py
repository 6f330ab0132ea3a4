"""How much a NATS server holds for a client that is behind, and for how long: asked at its monitoring port.

Clients are not told. Most servers offer `/varz` over HTTP at port 8222 of the same host. The answer counts only when it
is from the server of the connection.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_server.nats.connection import NatsConnection

__all__ = ["MonitoringError", "SlowConsumerLimits", "ask_limits", "ask_limits_of"]

_PORT: Final = 8222
_TIMEOUT_S: Final = 2.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class MonitoringError(LiftError):
    """The monitoring port of a server did not tell; the message says why."""


class SlowConsumerLimits(NamedTuple):
    """What a server allows a client that is behind.

    Attributes:
        max_pending: Bytes that it holds.
        write_deadline_s: Time for which it waits for the client's socket, seconds.
    """

    max_pending: int
    write_deadline_s: float


async def ask_limits(connection: NatsConnection) -> SlowConsumerLimits:
    """Ask the server of an open connection.

    Raises:
        MonitoringError: it did not tell.
    """
    assert connection.address is not None, "it is open"
    return await ask_limits_of(connection.address.host, connection.info.get("server_id"))


async def ask_limits_of(host: str, server_id: str | None = None) -> SlowConsumerLimits:
    """Ask a server by its host.

    Args:
        host: Where it runs.
        server_id: The answer of another server does not count; None takes the answer of any.

    Raises:
        MonitoringError: it did not tell.
    """
    url = f"http://{f'[{host}]' if ':' in host else host}:{_PORT}/varz"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            told = await _get(host, url)
    except TimeoutError:
        raise MonitoringError(f"{url} does not answer") from None
    except (OSError, ValueError) as error:
        raise MonitoringError(f"{url}: {error}") from error
    if server_id is not None and told.get("server_id") != server_id:
        raise MonitoringError(f"{url} is that of another server")
    max_pending, deadline_ns = told.get("max_pending"), told.get("write_deadline")
    if not isinstance(max_pending, int) or not isinstance(deadline_ns, int):
        raise MonitoringError(f"{url} tells neither max_pending nor write_deadline")
    return SlowConsumerLimits(max_pending, deadline_ns / 1e9)


async def _get(host: str, url: str) -> dict[str, Any]:
    """Raises: OSError, ValueError: there is no server, or it does not answer with JSON."""
    reader, writer = await asyncio.open_connection(host, _PORT)
    try:
        writer.write(f"GET {url} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = await _read(reader)
    finally:
        writer.transport.abort()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].split(b" ")
    if len(status) < 2 or status[1] != b"200":
        raise ValueError(f"it answers {head[:40]!r}")
    told = json.loads(body)
    if not isinstance(told, dict):
        raise ValueError("it answers with something else")  # noqa: TRY004 - a value like any other
    return told


async def _read(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    while chunk := await reader.read(65_536):
        answer += chunk
        if len(answer) > _ANSWER_BYTES_MAX:
            raise ValueError("its answer has no end")
    return answer
