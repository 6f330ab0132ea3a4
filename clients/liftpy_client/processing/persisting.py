"""Publishing until it is acknowledged, however long that takes, unless it is refused for good."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.errors import NodeUnavailableError, PublishTimeoutError
from liftpy_envelope.ack import PublishRefusedError
from liftpy_envelope.errors import AckErrorCode, LiftError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["persist"]

logger = logging.getLogger(__name__)
_RETRIABLE: Final = frozenset(code for code in AckErrorCode if code.retriable)
_WAIT_S: Final = (0.2, 10.0)


async def persist(
    publish: Callable[[], Awaitable[Any]], what: str, is_wanted: Callable[[], bool] = lambda: True
) -> None:
    """Publish, and return when it is acknowledged.

    Args:
        publish: Publishes once. A repetition stores nothing twice.
        what: What is published, for logs and errors.
        is_wanted: Whether to try again.

    Raises:
        LiftError: It was refused for good, or no stream stores it.
    """
    wait_s, longest_s = _WAIT_S
    while True:
        try:
            await publish()
        except (PublishTimeoutError, NodeUnavailableError) as failure:
            why: LiftError = failure
        except PublishRefusedError as failure:
            if failure.code not in _RETRIABLE:
                failure.add_note(f"refused: {what}; the message is not committed")
                raise
            why = failure
        except LiftError as failure:
            failure.add_note(f"not stored: {what}; the message is not committed")
            raise
        else:
            return
        logger.warning("not stored yet: %s: %s", what, why)
        await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - spreads retries
        if not is_wanted():
            return
        wait_s = min(longest_s, wait_s * 2)
