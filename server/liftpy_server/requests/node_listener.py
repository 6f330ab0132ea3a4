"""`LIFT.NODE.<node_id>.>`: where the other nodes of the cluster reach this one over NATS, and nobody else.

A node without the cluster's key is alone, and has no such listener.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.micro.request import Request

from liftpy_envelope.errors import ErrorCode
from liftpy_server.requests.answering import refuse
from liftpy_server.requests.between_nodes import NODE_PREFIX
from liftpy_server.requests.budget import Refuser
from liftpy_server.requests.node_key import PROOF_HEADER, SENDER_HEADER, NotProvenError, Replays

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nats.aio.msg import Msg

    from liftpy_server.listeners.refusals import ListenerRefusals
    from liftpy_server.requests.node_key import NodeKey

__all__ = ["NodeListener"]

logger = logging.getLogger(__name__)


class _ProvenRequest(Request):
    """A request of a node; its answer proves the key, too."""

    def __init__(self, message: Msg, key: NodeKey, proof: str) -> None:
        super().__init__(message)
        self._key = key
        self._proof = proof

    async def respond(self, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        await super().respond(data, (headers or {}) | self._key.headers_of_answer(self._proof, data))


class NodeListener:
    """Accepts requests from nodes of the cluster only.

    Args:
        node_id: Id of this node.
        token_of: Gives the token of this run that a request to an endpoint must cover.
        key: Key of the cluster.
        endpoints: What takes requests, by the rest of their subject.
        refusals: Counts strangers.
    """

    def __init__(
        self,
        node_id: str,
        token_of: Callable[[str], str],
        key: NodeKey,
        endpoints: Mapping[str, Callable[[Request], Awaitable[None]]],
        refusals: ListenerRefusals,
    ) -> None:
        self._node_id = node_id
        self._token_of = token_of
        self._key = key
        self._endpoints = endpoints
        self._refusals = refusals
        self._replays = Replays()
        self._refuser = Refuser()
        self.subject = f"{NODE_PREFIX}.{node_id}.>"

    async def accept(self, message: Msg) -> None:
        """Take a message; answered at once if it is refused."""
        endpoint = message.subject.removeprefix(self.subject[:-1])
        with suppress(ValueError, NatsError, OSError):  # no reply subject, or NATS is gone
            try:
                proof = self._check(endpoint, message)
            except NotProvenError as error:
                self._refusals.auth_failed(
                    "node", f"{message.subject} (reply to {message.reply or 'nobody'})", str(error), kind=error.kind
                )
                await self._refuser.refuse(Request(message), ErrorCode.UNAUTHENTICATED, str(error))
                return
            request = _ProvenRequest(message, self._key, proof)
            if endpoint in self._endpoints:
                await self._endpoints[endpoint](request)
            else:
                text = f"this liftpy has no {endpoint}; do all nodes run the same version?"
                await refuse(request, ErrorCode.INVALID_REQUEST, text)

    def _check(self, endpoint: str, message: Msg) -> str:
        """The proof of a request.

        Raises:
            NotProvenError: it has none.
        """
        headers = message.headers or {}
        sender, proof = headers.get(SENDER_HEADER, ""), headers.get(PROOF_HEADER, "")
        if not sender or not proof:
            raise NotProvenError("none", "only nodes of the cluster ask here, and prove its key")
        expected = self._key.proof_of_request(
            sender, self._node_id, self._token_of(endpoint), endpoint, message.reply, message.data
        )
        if not self._key.is_same(proof, expected):
            raise NotProvenError(
                "key",
                f"{sender.partition(' ')[0]!r:.80} does not prove the cluster's key: all nodes of a cluster need the "
                "same cluster.key_file; or it asks an earlier start of this node, which lasts for a moment",
            )
        self._replays.check(sender)
        return proof
