"""What the application has in hand, and who waits until it is put down."""

from __future__ import annotations

import asyncio

from liftpy_client.group.hand import Hand


async def test_one_who_gives_up_waiting_does_not_give_up_for_another():
    hand = Hand()
    hand.since_s = 1.0
    waiting = asyncio.ensure_future(hand.wait_free(0.01))
    await asyncio.sleep(0)
    hand.watch()
    await waiting
    assert not hand.free.is_set()
    hand.put_down()
    assert hand.free.is_set()
