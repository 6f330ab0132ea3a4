"""Cancellations that nobody swallows, and tasks that end when they are cancelled.

nats-py swallows a cancellation while it flushes. `asyncio.wait_for` of Python 3.11, in which nats-py waits for answers,
swallows one that comes in the same tick as the answer. Who was cancelled then goes on for ever: a `close` hangs, and a
time-out is ignored. So every call of nats-py that a cancellation may meet stands in a `KeptCancellation`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = ["KeptCancellation", "end_tasks"]

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
_ENDING_S_MAX: Final = 10.0


class KeptCancellation:
    """Raises CancelledError at its end, if the task was cancelled in it and what was awaited did not say so."""

    __slots__ = ("_before", "_task")

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._task, self._before = task, task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task.cancelling() > self._before and (kind is None or issubclass(kind, Exception)):
            raise asyncio.CancelledError from error


async def end_tasks(tasks: Iterable[asyncio.Future[Any]], *, within_s: float = _ENDING_S_MAX) -> None:
    """Cancel tasks, and wait until they have ended. One that goes on all the same is cancelled again every second.

    Args:
        tasks: Tasks, without the one that calls.
        within_s: Time after which those that do not end are left behind, with a warning, seconds.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    every = list(tasks)
    left = {task for task in every if not task.done()}
    while left and loop.time() < until_s:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=min(_AGAIN_S, within_s))
    if left:
        logger.error("%d tasks did not end within %g s after they were cancelled: %s", len(left), within_s, left)
    for task in every:
        if task.done() and not task.cancelled():
            task.exception()  # who ends it knows, or does not care
