"""Heartbeats that wait for news: answered as they are when their time is up, or sooner with what there is to tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from liftpy_server.groups.host.limits import WAITING_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.groups import HeartbeatRequest, MembershipResult
    from liftpy_server.groups.host.pending import PendingRequest

__all__ = ["WaitingHeartbeats"]


class _Waiting(NamedTuple):
    pending: PendingRequest
    answer: MembershipResult
    timer: asyncio.TimerHandle


class WaitingHeartbeats:
    """Heartbeats that wait for news, one per member: a newer one takes the place of an older one.

    Args:
        ask_again: Takes a heartbeat that is to get news.
    """

    def __init__(self, ask_again: Callable[[PendingRequest], None]) -> None:
        self._ask_again = ask_again
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, pending: PendingRequest, given: HeartbeatRequest, answer: MembershipResult, wait_s: float) -> None:
        """Keep a heartbeat, and answer it when the assignment changes or its time is up.

        Args:
            pending: The heartbeat.
            given: The same.
            answer: Answer for when nothing happens.
            wait_s: Time limit in seconds.
        """
        key = (given.group, given.member_id)
        self._answer(key)
        if len(self._waiting) >= WAITING_MAX:
            pending.reply(answer)
            return
        timer = self._loop.call_later(wait_s, self._answer, key)
        self._waiting[key] = _Waiting(pending, answer, timer)
        pending.wait(lambda: self._answer_own(key, pending))

    def tell(self, group: str, member_id: str) -> None:
        """There is news for a member; if its heartbeat waits, it is asked again."""
        waiting = self._waiting.pop((group, member_id), None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.pending.may_wait = False
            self._ask_again(waiting.pending)

    def _answer_own(self, key: tuple[str, str], pending: PendingRequest) -> None:
        """Answer a heartbeat that is in a hurry, if it waits still."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.pending is pending:
            self._answer(key)

    def _answer(self, key: tuple[str, str]) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.pending.reply(waiting.answer)

    def take_all(self) -> list[PendingRequest]:
        """Everybody who waits; they wait no longer."""
        everybody, self._waiting = list(self._waiting.values()), {}
        for waiting in everybody:
            waiting.timer.cancel()
        return [waiting.pending for waiting in everybody]
