"""What all parts of a client share: the NATS connection, the cluster's metadata, and connections to nodes."""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_client.connection.closing import close_nats
from liftpy_client.connection.cluster import Cluster
from liftpy_client.connection.permissions import Permissions
from liftpy_client.connection.pull_connection import PullConnection
from liftpy_client.errors import DisconnectedError, PullError
from liftpy_client.tracing.interceptors import Interceptors
from liftpy_envelope.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client

    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_client.tracing.interceptors import Interceptor

__all__ = ["Publishing", "Running", "Session", "close_when_dropped"]

logger = logging.getLogger(__name__)

_CLOSING_S_MAX: Final = 30.0
_closing: set[asyncio.Task[None]] = set()


class Running(Protocol):
    """What runs on a connection, and ends before it."""

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


def close_when_dropped(owner: object, running: Running) -> weakref.finalize[..., Any]:
    """Close what runs for an object when nobody refers to the object any more. To be detached if it has ended."""
    finalizer = weakref.finalize(owner, _close_soon, type(owner).__name__, running, asyncio.get_running_loop())
    finalizer.atexit = False
    return finalizer


def _close_soon(name: str, running: Running, loop: asyncio.AbstractEventLoop) -> None:
    if running.is_closed:
        return
    try:
        loop.call_soon_threadsafe(_begin_closing, running)  # the garbage collector runs in any thread
    except RuntimeError:
        text = f"a {name} was not closed, and its event loop is: use it in `async with`, or close it"
        warnings.warn(text, ResourceWarning, stacklevel=2)


def _begin_closing(running: Running) -> None:
    task = asyncio.get_running_loop().create_task(running.close())
    _closing.add(task)  # the loop keeps no reference
    task.add_done_callback(_closed)


def _closed(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.warning("closing what was not closed by the application: %s", error)


class Publishing(Protocol):
    """What may have messages that nobody has acknowledged, and sends them before the connection ends."""

    async def close_within(self, timeout_s: float) -> None:
        """Send all, and take nothing more. What has no ack then is logged."""
        ...


class Session:
    """The NATS connection and the cluster's metadata of one client.

    Args:
        nats: An open connection.
        options: Options with which it was opened.
        name: Name of this client.
        interceptors: What stands around publishes, handlers and commits.
        permissions: What hears of violations; by default nobody does.

    Attributes:
        interceptors: All of them as one.
        running: What is to be closed with the connection (see `Running`).
        publishing: What is to be closed after all that, because handlers publish to the end (see `Publishing`).
    """

    def __init__(
        self,
        nats: Client,
        options: NatsOptions,
        name: str,
        interceptors: Sequence[Interceptor] = (),
        permissions: Permissions | None = None,
    ) -> None:
        self.interceptors = Interceptors(interceptors)
        self.nats = nats
        self.options = options
        self.name = name
        self.permissions = permissions or Permissions()
        self.cluster = Cluster(nats, options.timeout_s, self.permissions)
        self.running: set[Any] = set()
        self.publishing: weakref.WeakSet[Any] = weakref.WeakSet()  # what is unsent keeps its publisher

    async def close(self) -> None:
        """End what runs on the connection, and the connection. Group members commit what was processed, and leave.

        What publishers have gathered is sent, and its acks are awaited.
        """
        tasks = [asyncio.ensure_future(running.close()) for running in list(self.running)]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S_MAX)
            for task in tasks:
                _closed(task) if task.done() else task.cancel()
        if publishing := list(self.publishing):
            await asyncio.gather(*(each.close_within(_CLOSING_S_MAX) for each in publishing))
        if not self.nats.is_closed:
            with KeptCancellation():
                await close_nats(self.nats)

    async def open_pull(self, node_id: str) -> PullConnection:
        """A new connection to a node's pull server.

        Raises:
            OSError, TimeoutError: the node cannot be reached.
            PullError: it refuses us.
        """
        node = self.cluster.node(node_id)
        if node is None:
            raise DisconnectedError(f"node {node_id} is not known here")
        try:
            return await self._open(node_id)
        except PullError as error:
            if error.code is not ErrorCode.UNAUTHENTICATED:
                raise
        await self.cluster.refresh([])  # the node was started anew, and has another token
        return await self._open(node_id)

    async def _open(self, node_id: str) -> PullConnection:
        node = self.cluster.node(node_id)
        if node is None:
            raise DisconnectedError(f"node {node_id} is gone")
        tls = ssl.create_default_context(cafile=self.options.tls_ca) if node.tls else None
        if tls is not None and self.options.tls_cert is not None:
            tls.load_cert_chain(self.options.tls_cert, self.options.tls_key)
        return await PullConnection.open(
            node.host,
            node.port,
            client=self.name,
            token=node.token,
            tls=tls,
            timeout_s=self.options.timeout_s,
        )
