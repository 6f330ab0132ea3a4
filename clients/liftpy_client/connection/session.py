"""What all parts of a client share: the NATS connection, the cluster's metadata, and connections to nodes."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from liftpy_client.connection.cluster import Cluster
from liftpy_client.connection.pull_connection import PullConnection
from liftpy_client.errors import DisconnectedError, PullError
from liftpy_envelope.errors import ErrorCode

if TYPE_CHECKING:
    from nats.aio.client import Client

    from liftpy_client.connection.nats_options import NatsOptions

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The NATS connection and the cluster's metadata of one client.

    Args:
        nats: An open connection.
        options: Options with which it was opened.
        name: Name of this client.
    """

    def __init__(self, nats: Client, options: NatsOptions, name: str) -> None:
        self.nats = nats
        self.options = options
        self.name = name
        self.cluster = Cluster(nats, options.timeout_s)

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
