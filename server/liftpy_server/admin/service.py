"""The micro services: `nats service ls|info|stats` sees them under the names `liftpy` and `liftpy-find`.

nats-py handles one request per endpoint at a time, so requests are handed to tasks at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from nats.micro import add_service
from nats.micro.service import ServiceConfig

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_server.admin.cluster.handlers import NodeHandlers
from liftpy_server.admin.cluster.reassign_handlers import ReassignHandlers
from liftpy_server.admin.cluster.recover_handlers import RecoverHandlers
from liftpy_server.admin.groups.handlers import GroupHandlers, LocalGroupHandlers
from liftpy_server.admin.handlers import Handlers
from liftpy_server.admin.local import LocalHandlers
from liftpy_server.admin.tier.handlers import LocalTierHandlers, TierHandlers
from liftpy_server.admin.tier.restore_handlers import RestoreHandlers
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnavailableError, MetadataUnknownError
from liftpy_server.nats.link import NatsLink
from liftpy_server.repeated_warnings import RepeatedWarnings
from liftpy_server.requests.answering import read_body, refuse
from liftpy_server.requests.between_nodes import NodeRequests
from liftpy_server.requests.budget import Budget, Pace, Shared
from liftpy_server.requests.errors import AdminError, NodeSilentError
from liftpy_server.requests.node_key import NodeKey
from liftpy_server.requests.node_listener import NodeListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from nats.aio.client import Client
    from nats.micro.request import Request

    from liftpy_server.admin.node_parts import NodeParts
    from liftpy_server.requests.between_nodes import Body

    Handle = Callable[[Body], Awaitable[Body]]

__all__ = ["AdminService", "semantic"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "LIFT.API"
_NOT_FINAL: Final = re.compile(r"(\d+\.\d+\.\d+)\.?([a-z])")  # 0.4.0.dev0, 0.4.0rc1
_EVERY_NODE: Final = frozenset({"METADATA", "STREAM.FIND"})
"""What clients need to find the next leader: all nodes answer, and the first answer counts. In one queue group NATS
would go on giving its share to a node that hangs."""
_SHARED: Final = {
    "all nodes": ("CLUSTER.INFO", "GROUP.LIST", "NODE.LIST", "NODE.QUARANTINE", "STREAM.LIST", "TIER.STATUS"),
    "a leader": ("GROUP.INFO", "NODE.INFO", "STREAM.INFO"),
    "nobody": ("METADATA",),
}
"""What is only looked at, by whom this node asks for it; those of one kind share a pace."""
_PACES: Final = {"all nodes": (4, 0.1), "a leader": (16, 0.005), "nobody": (16, 0.005)}


def semantic(version: str) -> str:
    """A version of a Python package as NATS wants that of a service: `0.4.0rc1` becomes `0.4.0-rc1`."""
    return _NOT_FINAL.sub(r"\1-\2", version, count=1)


class AdminService:
    """Answers admin requests.

    Args:
        node: The node to administer.

    Attributes:
        requests: Asks other nodes.
    """

    def __init__(self, node: NodeParts) -> None:
        self._node = node
        node_id, nats = node.config.node_id, node.config.nats
        secret = node.config.cluster.read_key()
        key = None if secret is None else NodeKey(secret)
        # What people ask must keep neither clients from finding leaders, nor nodes from asking each other.
        self._link = NatsLink(nats, f"liftpy {node_id} admin", on_client=self._serve, is_bounded=True)
        self._find_link = NatsLink(nats, f"liftpy {node_id} find", on_client=self._serve_find, is_bounded=True)
        self._nodes_link = (
            None
            if key is None
            else NatsLink(nats, f"liftpy {node_id} nodes", on_client=self._serve_nodes, is_bounded=True)
        )
        self._local = LocalHandlers(node)
        local = self._local.endpoints() | LocalGroupHandlers(node).endpoints() | LocalTierHandlers(node).endpoints()
        local |= node.handover.endpoints()
        self.requests = requests = NodeRequests(
            node_id, local, self._nodes_client, key, lambda other: _token_of(node, other), node.refusals
        )
        self._streams = Handlers(node, requests)
        challenge = secrets.token_hex(16)
        nodes = NodeHandlers(node, requests, challenge)
        groups = GroupHandlers(node, requests)
        restore = RestoreHandlers(node.config, node.metadata, lambda: None if node.tier is None else node.tier.worker)
        self._tasks: set[asyncio.Future[None]] = set()
        self._warnings = RepeatedWarnings(logger)
        self._paces: dict[str, Pace] = {}
        for kind, endpoints in _SHARED.items():
            self._paces |= dict.fromkeys(endpoints, Pace(*_PACES[kind]))
        public = (
            self._streams.endpoints()
            | nodes.endpoints()
            | ReassignHandlers(node, requests).endpoints()
            | RecoverHandlers(node, requests, restore.look).endpoints()
            | groups.endpoints()
            | TierHandlers(node, requests).endpoints()
            | restore.endpoints()
        )
        self._public = {name: self._behind("admin", name, handle) for name, handle in public.items()}
        self._listener: NodeListener | None = None
        if key is not None:
            own = local | nodes.node_endpoints()
            accepting = {name: self._behind("node", name, handle) for name, handle in own.items()}
            tokens = {"NODE.JOIN": challenge}  # who is to join knows no metadata, and was told this one
            self._listener = NodeListener(
                node_id, lambda name: tokens.get(name, node.follow_token), key, accepting, node.refusals
            )

    async def start(self) -> None:
        """Connect and offer the endpoints.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        if self._nodes_link is not None:
            await self._nodes_link.start()
        await self._find_link.start()
        await self._link.start()

    async def stop(self) -> None:
        """Finish what is being done, and leave."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)
        await self._link.stop()
        await self._find_link.stop()
        if self._nodes_link is not None:
            await self._nodes_link.stop()

    def _nodes_client(self) -> Client:
        assert self._nodes_link is not None, "without a key nobody else is asked"
        return self._nodes_link.client

    async def _serve(self, client: Client) -> None:
        self._streams.answer_bytes_max = self._local.answer_bytes_max = client.max_payload
        await self._offer(client, "liftpy", "durable streams for NATS", self._public.keys() - _EVERY_NODE)

    async def _serve_find(self, client: Client) -> None:
        await self._offer(client, "liftpy-find", "where the streams of liftpy are", _EVERY_NODE)

    async def _offer(self, client: Client, name: str, description: str, endpoints: Collection[str]) -> None:
        node_id = self._node.config.node_id
        metadata = {"node_id": node_id}
        own = semantic(version("liftpy"))
        service = await add_service(
            client, ServiceConfig(name=name, version=own, description=description, metadata=metadata)
        )
        for endpoint in sorted(endpoints):
            await service.add_endpoint(
                name=endpoint.replace(".", "-").lower(),
                subject=f"{_PREFIX}.{endpoint}",
                handler=self._public[endpoint],
                queue_group=node_id if endpoint in _EVERY_NODE else None,
            )
        await client.flush()

    async def _serve_nodes(self, client: Client) -> None:
        assert self._listener is not None
        # One subscription for all of them: a NATS server may allow a connection only so many.
        await client.subscribe(self._listener.subject, cb=self._listener.accept)
        await client.flush()

    def _encode(self, answer: dict[str, Any]) -> bytes:
        data = json.dumps(answer).encode()
        limit = self._local.answer_bytes_max
        if len(data) > limit:
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f"the answer has {len(data)} bytes, and the NATS server takes {limit}: ask for fewer streams, "
                "or raise its max_payload",
            )
        return data

    def _behind(self, listener: str, endpoint: str, handle: Handle) -> Callable[[Request], Awaitable[None]]:
        """What takes the requests for a handler."""

        async def make(body: Body) -> bytes:
            return self._encode(await handle(body))

        if listener == "admin" and endpoint in self._paces:
            make = Shared(handle, self._encode, self._paces[endpoint]).answer

        async def answer(request: Request) -> None:
            await self._answer(request, make)

        return Budget(listener, self._tasks, answer, self._node.refusals).accept

    async def _answer(self, request: Request, make: Callable[[Body], Awaitable[bytes]]) -> None:
        try:
            try:
                answer = await make(read_body(request.data))
            except (AdminError, MetadataRefusedError) as error:
                await refuse(request, error.code, str(error))
            except ConfigError as error:
                await refuse(request, ErrorCode.INVALID_CONFIG, str(error))
            except (MetadataUnavailableError, NodeSilentError) as error:
                await refuse(request, ErrorCode.NOT_AVAILABLE, str(error))
            except MetadataUnknownError as error:
                await refuse(request, ErrorCode.OUTCOME_UNKNOWN, str(error))
            except LiftError as error:
                await refuse(request, ErrorCode.INVALID_REQUEST, str(error))
            except asyncio.CancelledError:
                await refuse(request, ErrorCode.NOT_AVAILABLE, "the node is stopping")
                raise
            except Exception as error:  # noqa: BLE001 - one request must not end the others
                self._warn("failed", f"admin request {request.subject:.200} failed", error)
                await refuse(request, ErrorCode.INTERNAL, "the node met an error; its log has the details")
            else:
                await request.respond(answer)
        except (NatsError, OSError, ValueError) as error:  # no reply subject, or NATS is gone
            self._warn("unanswered", f"admin request {request.subject:.200} could not be answered: {error}")

    def _warn(self, kind: str, text: str, error: Exception | None = None) -> None:
        self._warnings.tell(kind, text, asyncio.get_running_loop().time(), error=error)


def _token_of(node: NodeParts, node_id: str) -> str:
    """What a request to a node must cover: the token of its run, as far as this node knows."""
    known = node.metadata.state.nodes.get(node_id)
    return "" if known is None else known.follow_token
