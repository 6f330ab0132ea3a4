"""Outputs of handlers that end in any order, stored in the order of their messages.

A partition stores the outputs of an earlier message never after those of a later one. So of each source partition the
outputs of one message at a time are sent: those of the first that is not finished, when its handler has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_client.group.transaction import Transaction, producer_id
from liftpy_client.processing.dead_letters import dead_letter_headers
from liftpy_client.processing.persisting import persist

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_client.message import Message
    from liftpy_client.processing.schedule import Schedule, Work
    from liftpy_client.publisher.ordered import OrderedDelivery
    from liftpy_envelope.pull import PartitionKey

__all__ = ["Outputs"]


class Outputs:
    """The outputs of one process.

    Args:
        schedule: Knows which message is first.
        delivery: Sends outputs.
        group: Name of the group.
        run: Name of this processing of the streams.
        dead_letter: Subject of the dead letters; None for none.
    """

    def __init__(
        self, schedule: Schedule, delivery: OrderedDelivery, group: str, run: str, dead_letter: str | None
    ) -> None:
        self._schedule = schedule
        self._delivery = delivery
        self._group = group
        self._run = run
        self._dead_letter = dead_letter
        self._producers: dict[PartitionKey, bytes] = {}
        self._sending: dict[PartitionKey, asyncio.Task[None]] = {}

    def begin(self, work: Work) -> Transaction:
        """Return what the handler of a message publishes with."""
        producer = self._producers.get(work.key)
        if producer is None:
            producer = self._producers[work.key] = producer_id(self._group, work.key, self._run)
        return Transaction(self._delivery, producer, work.epoch, work.offset)

    def letter(self, work: Work, error: Exception) -> Transaction:
        """Return the dead letter of a message, in place of its outputs."""
        assert self._dead_letter is not None, "there are dead letters"
        message: Message = work.item
        letter = self.begin(work)
        headers = dead_letter_headers(message, self._group, work.attempts, error)
        letter.publish(self._dead_letter, message.value, key=message.key, headers=headers)
        return letter

    def send_soon(
        self, key: PartitionKey, on_progress: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """Send what is first of a partition, and what follows, if that is not done already."""
        if key not in self._sending and (work := self._schedule.next_to_send(key)) is not None:
            task = self._sending[key] = asyncio.create_task(self._send(work, on_progress), name="process: outputs")
            task.add_done_callback(lambda task: self._sent(key, task, on_progress, on_failure))

    async def _send(self, first: Work, on_progress: Callable[[], None]) -> None:
        work: Work | None = first
        while work is not None:
            this = work
            try:
                what = f"outputs of partition {this.key.partition} offset {this.offset}"
                await persist(this.outputs.send, what, lambda this=this: this.is_wanted)  # type: ignore[misc]
            except BaseException:
                self._schedule.abandon(this)
                raise
            self._schedule.finish(this)
            on_progress()
            work = self._schedule.next_to_send(this.key)

    def _sent(
        self,
        key: PartitionKey,
        task: asyncio.Task[None],
        on_progress: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._sending.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            on_failure(error)
        else:
            self.send_soon(key, on_progress, on_failure)  # the partition may have gone and come back

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is being sent."""
        return list(self._sending.values())
