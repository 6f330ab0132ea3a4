"""The micro service: `nats service ls|info|stats` sees it under the name `liftpy`.

nats-py handles one request per endpoint at a time, so requests are handed to tasks at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from nats.micro import add_service
from nats.micro.service import ServiceConfig

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_server.admin.answering import read_body, refuse
from liftpy_server.admin.asking import NodeRequests
from liftpy_server.admin.errors import AdminError, NodeSilentError
from liftpy_server.admin.group_handlers import GroupHandlers, LocalGroupHandlers
from liftpy_server.admin.handlers import Handlers
from liftpy_server.admin.local import LocalHandlers
from liftpy_server.admin.node_door import NodeDoor
from liftpy_server.admin.node_handlers import NodeHandlers
from liftpy_server.admin.node_key import NodeKey
from liftpy_server.admin.reassign_handlers import ReassignHandlers
from liftpy_server.admin.restore_handlers import RestoreHandlers
from liftpy_server.admin.tier_handlers import LocalTierHandlers, TierHandlers
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnavailableError, MetadataUnknownError
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client
    from nats.micro.request import Request

    from liftpy_server.admin.asking import Body
    from liftpy_server.node import Node

    Handle = Callable[[Body], Awaitable[Body]]

__all__ = ["AdminService"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "LIFT.API"
_EVERY_NODE: Final = frozenset({"METADATA", "STREAM.FIND"})
"""What clients need to find the next leader: all nodes answer, and the first answer counts. In one queue group NATS
would go on giving its share to a node that hangs."""
_REQUESTS_MAX: Final = 256


class AdminService:
    """Answers admin requests.

    Args:
        node: the node to administer.

    Attributes:
        requests: asks other nodes.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        node_id, nats = node.config.node_id, node.config.nats
        secret = node.config.cluster.read_key()
        key = None if secret is None else NodeKey(secret)
        self._link = NatsLink(nats, f"liftpy {node_id} admin", on_client=self._serve)
        # On a connection of its own: what people ask must not keep the nodes from hearing each other.
        self._nodes_link = (
            None if key is None else NatsLink(nats, f"liftpy {node_id} nodes", on_client=self._serve_nodes)
        )
        self._local = LocalHandlers(node)
        local = self._local.endpoints() | LocalGroupHandlers(node).endpoints() | LocalTierHandlers(node).endpoints()
        self.requests = requests = NodeRequests(
            node_id, local, self._nodes_client, key, lambda other: _token_of(node, other), node.refusals
        )
        self._streams = Handlers(node, requests)
        challenge = secrets.token_hex(16)
        nodes = NodeHandlers(node, requests, challenge)
        groups = GroupHandlers(node, requests)
        self._public_endpoints = (
            self._streams.endpoints()
            | nodes.endpoints()
            | ReassignHandlers(node).endpoints()
            | groups.endpoints()
            | TierHandlers(node, requests).endpoints()
            | RestoreHandlers(
                node.config, node.metadata, lambda: None if node.tier is None else node.tier.worker
            ).endpoints()
        )
        self._public = _Doors(self._answer)
        self._between_nodes = _Doors(self._answer)
        self._door: NodeDoor | None = None
        if key is not None:
            own = {
                name: self._between_nodes.behind(handle) for name, handle in (local | nodes.node_endpoints()).items()
            }
            tokens = {"NODE.JOIN": challenge}  # who is to join knows no metadata, and was told this one
            self._door = NodeDoor(node_id, lambda name: tokens.get(name, node.follow_token), key, own, node.refusals)

    async def start(self) -> None:
        """Connect and offer the endpoints.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        if self._nodes_link is not None:
            await self._nodes_link.start()
        await self._link.start()

    async def stop(self) -> None:
        """Finish what is being done, and leave."""
        tasks = self._public.tasks | self._between_nodes.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        await self._link.stop()
        if self._nodes_link is not None:
            await self._nodes_link.stop()

    def _nodes_client(self) -> Client:
        assert self._nodes_link is not None, "without a key nobody else is asked"
        return self._nodes_link.client

    async def _serve(self, client: Client) -> None:
        self._streams.answer_bytes_max = self._local.answer_bytes_max = client.max_payload
        node_id = self._node.config.node_id
        config = ServiceConfig(
            name="liftpy",
            version=version("liftpy"),
            description="durable streams for NATS",
            metadata={"node_id": node_id},
        )
        service = await add_service(client, config)
        for endpoint, handle in self._public_endpoints.items():
            await service.add_endpoint(
                name=endpoint.replace(".", "-").lower(),
                subject=f"{_PREFIX}.{endpoint}",
                handler=self._public.behind(handle),
                queue_group=node_id if endpoint in _EVERY_NODE else None,
            )
        await client.flush()

    async def _serve_nodes(self, client: Client) -> None:
        assert self._door is not None
        # One subscription for all of them: a NATS server may allow a connection only so many.
        await client.subscribe(self._door.subject, cb=self._door.accept)
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

    async def _answer(self, request: Request, handle: Handle) -> None:
        try:
            try:
                await request.respond(self._encode(await handle(read_body(request.data))))
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
            except Exception:
                logger.exception("admin request %s failed", request.subject)
                await refuse(request, ErrorCode.INTERNAL, "the node met an error; its log has the details")
        except (NatsError, OSError, ValueError) as error:  # no reply subject, or NATS is gone
            logger.info("admin request %s could not be answered: %s", request.subject, error)


def _token_of(node: Node, node_id: str) -> str:
    """What a request to a node must cover: the token of its run, as far as this node knows."""
    known = node.metadata.state.nodes.get(node_id)
    return "" if known is None else known.follow_token


class _Doors:
    """Hands requests to tasks, not too many at once.

    The public endpoints and those between nodes have doors of their own: public requests wait for other nodes, and
    must not keep the nodes from answering each other.
    """

    def __init__(self, answer: Callable[[Request, Handle], Awaitable[None]]) -> None:
        self._answer = answer
        self.tasks: set[asyncio.Future[None]] = set()

    def behind(self, handle: Handle) -> Callable[[Request], Awaitable[None]]:
        """What takes requests for a handler."""

        async def accept(request: Request) -> None:
            if len(self.tasks) >= _REQUESTS_MAX:
                await refuse(request, ErrorCode.TOO_MANY_REQUESTS, "too many admin requests at once")
                return
            task = asyncio.ensure_future(self._answer(request, handle))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        return accept
