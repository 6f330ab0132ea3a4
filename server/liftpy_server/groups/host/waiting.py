"""Heartbeats that wait for news: answered as they are when their time is up, or sooner with what there is to tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from liftpy_server.groups.host.limits import PARKED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.groups import HeartbeatRequest, MembershipResult
    from liftpy_server.groups.host.pending import Asked

__all__ = ["ParkedHeartbeats"]


class _Parked(NamedTuple):
    asked: Asked
    answer: MembershipResult
    timer: asyncio.TimerHandle


class ParkedHeartbeats:
    """Heartbeats that wait for news, one per member: a newer one takes the place of an older one.

    Args:
        ask_again: takes a heartbeat that is to get news.
    """

    def __init__(self, ask_again: Callable[[Asked], None]) -> None:
        self._ask_again = ask_again
        self._loop = asyncio.get_running_loop()
        self._parked: dict[tuple[str, str], _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, asked: Asked, given: HeartbeatRequest, answer: MembershipResult, wait_s: float) -> None:
        """Keep a heartbeat.

        Args:
            asked: the heartbeat.
            given: the same.
            answer: for when nothing happens.
            wait_s: so long.
        """
        key = (given.group, given.member_id)
        self._answer(key)
        if len(self._parked) >= PARKED_MAX:
            asked.reply(answer)
            return
        timer = self._loop.call_later(wait_s, self._answer, key)
        self._parked[key] = _Parked(asked, answer, timer)
        asked.park(lambda: self._answer_own(key, asked))

    def tell(self, group: str, member_id: str) -> None:
        """There is news for a member; if its heartbeat waits, it is asked again."""
        parked = self._parked.pop((group, member_id), None)
        if parked is not None:
            parked.timer.cancel()
            parked.asked.may_park = False
            self._ask_again(parked.asked)

    def _answer_own(self, key: tuple[str, str], asked: Asked) -> None:
        """Answer a heartbeat that is in a hurry, if it waits still."""
        parked = self._parked.get(key)
        if parked is not None and parked.asked is asked:
            self._answer(key)

    def _answer(self, key: tuple[str, str]) -> None:
        parked = self._parked.pop(key, None)
        if parked is not None:
            parked.timer.cancel()
            parked.asked.reply(parked.answer)

    def take_all(self) -> list[Asked]:
        """Everybody who waits; they wait no longer."""
        everybody, self._parked = list(self._parked.values()), {}
        for parked in everybody:
            parked.timer.cancel()
        return [parked.asked for parked in everybody]
