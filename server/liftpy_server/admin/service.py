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
from liftpy_server.admin.handlers import AdminError, Handlers
from liftpy_server.metadata.store import MetadataRefusedError, MetadataUnavailableError
from liftpy_server.nats_link import NatsLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client
    from nats.micro.request import Request

    from liftpy_server.node import Node

__all__ = ["AdminService"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "LIFT.API"
_REQUESTS_MAX: Final = 256
_DESCRIPTION_CHARACTERS_MAX: Final = 1_000
_HTTP: Final = {
    ErrorCode.UNKNOWN_STREAM: 404,
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
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handlers = Handlers(node)
        self._link = NatsLink(node.config.nats, f"liftpy {node.config.node_id} admin", on_client=self._serve)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect and offer the endpoints.

        Raises:
            NatsRefusedError: the server refuses us.
        """
        await self._link.start()

    async def stop(self) -> None:
        """Finish what is being done, and leave."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await self._link.stop()

    async def _serve(self, client: Client) -> None:
        self._handlers.answer_bytes_max = client.max_payload
        config = ServiceConfig(
            name="liftpy",
            version=version("liftpy"),
            description="durable streams for NATS",
            metadata={"node_id": self._node.config.node_id},
        )
        service = await add_service(client, config)
        for subject, handler in self._handlers.endpoints().items():
            await service.add_endpoint(
                name=subject.replace(".", "-").lower(),
                subject=f"{_PREFIX}.{subject}",
                handler=self._hand_over(handler),
            )
        await client.flush()

    def _encode(self, answer: dict[str, Any]) -> bytes:
        data = json.dumps(answer).encode()
        limit = self._handlers.answer_bytes_max
        if len(data) > limit:
            raise AdminError(
                ErrorCode.INVALID_REQUEST,
                f"the answer has {len(data)} bytes, and the NATS server takes {limit}: ask for fewer streams, "
                "or raise its max_payload",
            )
        return data

    def _hand_over(
        self, handler: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[None]]:
        async def accept(request: Request) -> None:
            if len(self._tasks) >= _REQUESTS_MAX:
                await _refuse(request, ErrorCode.TOO_MANY_REQUESTS, "too many admin requests at once")
                return
            task = asyncio.create_task(self._answer(request, handler))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return accept

    async def _answer(self, request: Request, handler: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        try:
            try:
                await request.respond(self._encode(await handler(_body(request.data))))
            except (AdminError, MetadataRefusedError) as error:
                await _refuse(request, error.code, str(error))
            except ConfigError as error:
                await _refuse(request, ErrorCode.INVALID_CONFIG, str(error))
            except MetadataUnavailableError as error:
                await _refuse(request, ErrorCode.NOT_AVAILABLE, str(error))
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


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data.decode()) if data.strip() else {}
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
