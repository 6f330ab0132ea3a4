"""A request's body, and a refusal, as both listeners over NATS read and write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ErrorCode
from liftpy_envelope.limits import ADMIN_REQUEST_ITEMS_MAX
from liftpy_envelope.unpacking import read_json
from liftpy_server.requests.errors import AdminError

if TYPE_CHECKING:
    from nats.micro.request import Request

__all__ = ["read_body", "refuse"]

_DESCRIPTION_CHARACTERS_MAX: Final = 1_000
_HTTP: Final = {
    ErrorCode.UNAUTHENTICATED: 401,
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


def read_body(data: bytes) -> dict[str, Any]:
    """The JSON object of a request; nothing is an empty one.

    Raises:
        AdminError: it is none.
    """
    try:
        body = read_json(data, items_max=ADMIN_REQUEST_ITEMS_MAX) if data.strip() else {}
        json.dumps(body, ensure_ascii=False).encode()  # half a surrogate pair is text that nothing can write down
    except (ValueError, RecursionError) as error:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise AdminError(ErrorCode.INVALID_REQUEST, "the request must be a JSON object")
    return body


async def refuse(request: Request, code: ErrorCode, description: str) -> None:
    """Answer with an error.

    Raises:
        ValueError: the request has no reply subject.
        NatsError: NATS is gone.
    """
    if len(description) > _DESCRIPTION_CHARACTERS_MAX:  # it may quote what was asked
        description = f"{description[:_DESCRIPTION_CHARACTERS_MAX]}..."
    status = _HTTP.get(code, 400)
    body = {"error": {"code": status, "err_code": int(code), "description": description}}
    one_line = " ".join(description.split())
    await request.respond_error(str(status), one_line, json.dumps(body).encode())
