"""Requests from node to node, over NATS: `LIFT.NODE.<node_id>.<endpoint>`, JSON like the public ones.

Numbers about a partition are known to its leader alone, so whichever node is asked something asks the leaders. A node
asks itself without the network: its connection does not hear what it says itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from liftpy_envelope.errors import LiftError
from liftpy_envelope.limits import ADMIN_ANSWER_ITEMS_MAX
from liftpy_envelope.pull import error_code
from liftpy_envelope.unpacking import read_json
from liftpy_server.admin.errors import AdminError, NodeSilentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nats.aio.client import Client

__all__ = ["NODE_PREFIX", "Body", "NodeRequests"]

Body = dict[str, Any]

NODE_PREFIX: Final = "LIFT.NODE"


class NodeRequests:
    """Asks nodes.

    Args:
        node_id: this node.
        local: its own node-addressed endpoints.
        client: gives the NATS connection of the moment.
    """

    def __init__(
        self, node_id: str, local: Mapping[str, Callable[[Body], Awaitable[Body]]], client: Callable[[], Client]
    ) -> None:
        self._node_id = node_id
        self._local = local
        self._client = client

    async def ask(self, node_id: str, endpoint: str, body: Body, timeout_s: float) -> Body:
        """Ask one node.

        Raises:
            NodeSilentError: it does not answer in time.
            AdminError: it refuses, or another `LiftError` when it is this node that does.
        """
        if node_id != self._node_id:
            return await self._ask_other(node_id, endpoint, body, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._local[endpoint](body)
        except TimeoutError:
            raise NodeSilentError(f"node {node_id!r} is not through with it after {timeout_s:.1f} s") from None

    async def _ask_other(self, node_id: str, endpoint: str, body: Body, timeout_s: float) -> Body:
        subject = f"{NODE_PREFIX}.{node_id}.{endpoint}"
        try:
            reply = await self._client().request(subject, json.dumps(body).encode(), timeout=timeout_s)
        except NoRespondersError:
            raise NodeSilentError(f"node {node_id!r} is not there: nobody answers for it over NATS") from None
        except (NatsTimeoutError, TimeoutError):
            raise NodeSilentError(f"node {node_id!r} did not answer within {timeout_s:.1f} s") from None
        except (NatsError, OSError) as error:
            raise NodeSilentError(f"node {node_id!r} can not be asked over NATS: {error}") from error
        try:
            answer = read_json(reply.data, items_max=ADMIN_ANSWER_ITEMS_MAX)
            refusal = answer.get("error")
            if refusal is None:
                return dict(answer)
            code, description = error_code(int(refusal["err_code"])), str(refusal["description"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise NodeSilentError(f"what answers for node {node_id!r} is no node of liftpy: {error}") from error
        raise AdminError(code, description)

    async def ask_all(
        self, nodes: Iterable[str], endpoint: str, body: Body, timeout_s: float
    ) -> dict[str, Body | LiftError]:
        """Ask several nodes the same at once. Those that refuse or are silent are told as the error."""

        async def one(node_id: str) -> Body | LiftError:
            try:
                return await self.ask(node_id, endpoint, body, timeout_s)
            except LiftError as error:
                return error

        asked = list(dict.fromkeys(nodes))
        answers = await asyncio.gather(*(one(node_id) for node_id in asked))
        return dict(zip(asked, answers, strict=True))
