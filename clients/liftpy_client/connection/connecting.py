"""Opening the connection to NATS on which a client stands."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from nats.aio.client import Client

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_client.connection.closing import close_nats
from liftpy_client.connection.permissions import Permissions
from liftpy_client.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from liftpy_client.connection.nats_options import NatsOptions

__all__ = ["Connecting"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    """What closes more than the connection."""

    async def close(self) -> None:
        """Close it, and the connection."""
        ...


class Connecting(Generic[T]):
    """A client that is not connected yet: `async with` it, or `await` it and close it yourself.

    Args:
        options: Where NATS is, and as whom to connect.
        name: Name of the client, as NATS shows it.
        make: Makes the client of an open connection.
    """

    def __init__(self, options: NatsOptions, name: str, make: Callable[[Client, Permissions], T]) -> None:
        self._options = options
        self._name = name
        self._make = make
        self._nats: Client | None = None
        self._made: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._connect().__await__()

    async def __aenter__(self) -> T:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nats is not None and not self._nats.is_closed:
            with KeptCancellation():
                await (self._made.close() if isinstance(self._made, Closable) else close_nats(self._nats))

    async def _connect(self) -> T:
        client = Client()
        errors: list[Exception] = []
        permissions = Permissions()

        async def note(error: Exception) -> None:
            errors.append(error)
            permissions.note(error)
            logger.debug("NATS: %s", error)

        arguments = self._options.connect_arguments() | {
            "name": self._name,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "allow_reconnect": True,
            "error_cb": note,
        }
        connecting = asyncio.ensure_future(client.connect(**arguments))
        try:
            await asyncio.wait({connecting}, timeout=self._options.timeout_s)
            if connecting.done():
                await connecting
        except Exception as error:  # noqa: BLE001 - nats-py passes on what its parts raise; it is told below
            errors.append(error)
        finally:
            while not connecting.done():  # nats-py may swallow a cancellation, and then tries on for ever
                connecting.cancel()
                await asyncio.wait({connecting}, timeout=0.1)
            await asyncio.gather(connecting, return_exceptions=True)
        if not client.is_connected:
            if client.is_connecting or client.is_reconnecting:
                await client.close()
            raise UnreachableError(f"NATS at {self._options.shown_url} cannot be reached: {_why(errors)}")
        self._nats = client
        permissions.inbox = client.new_inbox().rpartition(".")[0]
        made = self._made = self._make(client, permissions)
        return made


def _why(errors: list[Exception]) -> str:
    """What to tell of several attempts: a refusal explains more than the connection that ended after it."""
    for error in errors:
        if "authorization" in str(error).lower():
            return str(error)
    return str(errors[-1]) or type(errors[-1]).__name__ if errors else "no answer"
