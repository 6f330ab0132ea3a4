"""The micro service: `nats service ls|info|stats` sees it under the name `liftpy`.

nats-py handles one request per endpoint at a time, so requests are handed to tasks at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from nats.errors import Error as NatsError
from nats.micro import add_service
from nats.micro.service import ServiceConfig

from liftpy_envelope.errors import ConfigError, ErrorCode, LiftError
from liftpy_envelope.limits import ADMIN_REQUEST_ITEMS_MAX
from liftpy_envelope.unpacking import read_json
from liftpy_server.admin.asking import NODE_PREFIX, NodeRequests
from liftpy_server.admin.errors import AdminError, NodeSilentError
from liftpy_server.admin.group_handlers import GroupHandlers, LocalGroupHandlers
from liftpy_server.admin.handlers import Handlers
from liftpy_server.admin.local import LocalHandlers
from liftpy_server.admin.node_handlers import NodeHandlers
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
_DESCRIPTION_CHARACTERS_MAX: Final = 1_000
_HTTP: Final = {
    ErrorCode.UNKNOWN_STREAM: 404,
    ErrorCode.UNKNOWN_GROUP: 404,
    ErrorCode.STREAM_EXISTS: 409,
    ErrorCode.CONFLICT: 409,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_AVAILABLE: 503,
    ErrorCode.OUTCOME_UNKNOWN: 503,
    ErrorCode.TOO_MANY_REQUESTS: 429,
    ErrorCode.SUBSCRIPTION_REFUSED: 403,
}


class AdminService:
    """Answers admin requests.

    Args:
        node: the node to administer.

    Attributes:
        requests: asks other nodes.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._link = NatsLink(node.config.nats, f"liftpy {node.config.node_id} admin", on_client=self._serve)
        self._local = LocalHandlers(node)
        local = self._local.endpoints() | LocalGroupHandlers(node).endpoints() | LocalTierHandlers(node).endpoints()
        self.requests = requests = NodeRequests(node.config.node_id, local, lambda: self._link.client)
        self._streams = Handlers(node, requests)
        nodes = NodeHandlers(node, requests)
        groups = GroupHandlers(node, requests)
        self._public_endpoints = (
            self._streams.endpoints()
            | nodes.endpoints()
            | ReassignHandlers(node).endpoints()
            | groups.endpoints()
            | TierHandlers(node, requests).endpoints()
            | RestoreHandlers(
                node.config.node_id, node.metadata, lambda: None if node.tier is None else node.tier.worker
            ).endpoints()
        )
        # A node can not take its own vote: it asks another to do so.
        self._own_endpoints = local | {"NODE.REMOVE": nodes.remove}
        self._public = _Doors(self._answer)
        self._between_nodes = _Doors(self._answer)

    async def start(self) -> None:
        """Connect and offer the endpoints.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        await self._link.start()

    async def stop(self) -> None:
        """Finish what is being done, and leave."""
        tasks = self._public.tasks | self._between_nodes.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        await self._link.stop()

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
        # One subscription for all of them: a NATS server may allow a connection only so many.
        own = f"{NODE_PREFIX}.{node_id}"
        await service.add_endpoint(name="node", subject=f"{own}.>", handler=self._accept_from_node(f"{own}."))
        await client.flush()

    def _accept_from_node(self, prefix: str) -> Callable[[Request], Awaitable[None]]:
        """What takes requests of other nodes, by the rest of their subject."""
        doors = {endpoint: self._between_nodes.behind(handle) for endpoint, handle in self._own_endpoints.items()}

        async def accept(request: Request) -> None:
            endpoint = request.subject.removeprefix(prefix)
            if endpoint in doors:
                await doors[endpoint](request)
            else:
                text = f"this liftpy has no {endpoint}; do all nodes run the same version?"
                await _refuse(request, ErrorCode.INVALID_REQUEST, text)

        return accept

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
                await request.respond(self._encode(await handle(_body(request.data))))
            except (AdminError, MetadataRefusedError) as error:
                await _refuse(request, error.code, str(error))
            except ConfigError as error:
                await _refuse(request, ErrorCode.INVALID_CONFIG, str(error))
            except (MetadataUnavailableError, NodeSilentError) as error:
                await _refuse(request, ErrorCode.NOT_AVAILABLE, str(error))
            except MetadataUnknownError as error:
                await _refuse(request, ErrorCode.OUTCOME_UNKNOWN, str(error))
            except LiftError as error:
                await _refuse(request, ErrorCode.INVALID_REQUEST, str(error))
            except asyncio.CancelledError:
                await _refuse(request, ErrorCode.NOT_AVAILABLE, "the node is stopping")
                raise
            except Exception:
                logger.exception("admin request %s failed", request.subject)
                await _refuse(request, ErrorCode.INTERNAL, "the node met an error; its log has the details")
        except (NatsError, OSError, ValueError) as error:  # no reply subject, or NATS is gone
            logger.info("admin request %s could not be answered: %s", request.subject, error)


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
                await _refuse(request, ErrorCode.TOO_MANY_REQUESTS, "too many admin requests at once")
                return
            task = asyncio.ensure_future(self._answer(request, handle))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        return accept


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = read_json(data, items_max=ADMIN_REQUEST_ITEMS_MAX) if data.strip() else {}
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is text that nothing can write down
    except (ValueError, RecursionError) as error:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise AdminError(ErrorCode.INVALID_REQUEST, "the request must be a JSON object")
    return body


async def _refuse(request: Request, code: ErrorCode, description: str) -> None:
    if len(description) > _DESCRIPTION_CHARACTERS_MAX:  # it may quote what was asked
        description = f"{description[:_DESCRIPTION_CHARACTERS_MAX]}..."
    status = _HTTP.get(code, 400)
    body = {"error": {"code": status, "err_code": int(code), "description": description}}
    one_line = " ".join(description.split())
    await request.respond_error(str(status), one_line, json.dumps(body).encode())
