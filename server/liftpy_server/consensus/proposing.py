"""How an entry gets into the log from the event loop: tried again while no leader is known, until its time is up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.consensus.machine import EXPIRED
from liftpy_server.consensus.proposals import Reason
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnavailableError, MetadataUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Proposer"]

_RETRY_S: Final = 0.02
_ATTEMPT_TIMEOUT_S: Final = 1.0
_UNSURE: Final = frozenset({Reason.LEADER_CHANGED, Reason.UNKNOWN_OUTCOME})


class _Answer(NamedTuple):
    result: Any
    reason: int


class Proposer:
    """Made and used on the event loop.

    Args:
        submit: Hands an entry to the tick thread; its callback is called there.
        timeout_s: Time without an answer after which the outcome of an entry is unknown, seconds.
    """

    def __init__(self, submit: Callable[[bytes, Callable[[Any, int], None]], None], timeout_s: float) -> None:
        self._submit = submit
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended: asyncio.Future[str] = self._loop.create_future()

    async def drain(self) -> None:
        """Wait until everything is answered, which is at most the time-out."""
        await self._idle.wait()

    def end(self, why: str) -> None:
        """Answer no more: the voter stopped."""
        if not self._ended.done():
            self._ended.set_result(why)

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call on the event loop, from the tick thread. A closed loop has nobody left to tell."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    async def commit(self, entry: bytes, what: str) -> Any:
        """Bring an entry into the log, whoever leads; again and again until the time is up.

        Returns:
            What the state machine returned for it.

        Raises:
            MetadataRefusedError: the leader does not take it.
            MetadataUnavailableError: there was no leader in time; nothing changed.
            MetadataUnknownError: it may be in the log, or not.
        """
        deadline = self._loop.time() + self._timeout_s
        is_unsure = False
        self._unanswered += 1
        self._idle.clear()
        try:
            while True:
                answer = await self._attempt(entry, min(deadline, self._loop.time() + _ATTEMPT_TIMEOUT_S))
                if answer is None:  # it went to a leader that is none any more, or does not get through
                    is_unsure = True
                    if self._loop.time() < deadline and not self._ended.done():
                        continue
                elif answer.reason == Reason.SUCCESS and answer.result is not EXPIRED:
                    return answer.result
                elif answer.reason == Reason.REQUEST_DENIED and not is_unsure:
                    raise MetadataRefusedError(ErrorCode.INVALID_REQUEST, f"{what}: the leader refuses it")
                else:
                    is_unsure |= answer.reason in _UNSURE
                    is_final = answer.result is EXPIRED or answer.reason == Reason.REQUEST_DENIED
                    if not is_final and self._loop.time() + _RETRY_S < deadline and not self._ended.done():
                        await asyncio.sleep(_RETRY_S)
                        continue
                raise self._undone(what, is_unsure=is_unsure)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._idle.set()

    def _undone(self, what: str, *, is_unsure: bool) -> LiftError:
        silence = f"no answer from a majority of the metadata nodes within {self._timeout_s:g} s"
        why = self._ended.result() if self._ended.done() else silence
        if is_unsure:
            return MetadataUnknownError(f"{what}: {why}; it may have been applied")
        return MetadataUnavailableError(f"{what}: {why}; nothing changed")

    async def _attempt(self, entry: bytes, deadline: float) -> _Answer | None:
        """Submit an entry once. None when no answer came, and none will be waited for."""
        if self._ended.done():
            return _Answer(None, Reason.MISSING_LEADER)
        future: asyncio.Future[_Answer] = self._loop.create_future()

        def answered(answer: _Answer) -> None:
            if not future.done():
                future.set_result(answer)

        self._submit(entry, lambda result, reason: self.on_loop(answered, _Answer(result, reason)))
        try:
            timeout = max(deadline - self._loop.time(), 0)
            ways: set[asyncio.Future[Any]] = {future, self._ended}
            await asyncio.wait(ways, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return future.result() if future.done() else None
        finally:
            future.cancel()
