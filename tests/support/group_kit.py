"""Members of consumer groups for tests: read by a task, told of in lists."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from liftpy_client.group.options import GroupOptions
from support.cluster import quick_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import liftpy
    from liftpy_client.consumer.options import ConsumeOptions
    from liftpy_client.group.consumer import GroupConsumer

SESSION_S = 20.0  # nobody is put out because a machine is busy; who is to be, says so


def member(
    lift: liftpy.Lift,
    streams: str | list[str],
    group: str,
    *,
    batches: bool = False,
    options: ConsumeOptions | None = None,
    **more: Any,
) -> GroupConsumer:
    """A consumer in a group; quick, unless `more` of its group options says otherwise."""
    times = {"session_timeout_s": SESSION_S, "commit_interval_s": 0.1}
    group_options = GroupOptions(**(times | more))
    consume = lift.consume_batches if batches else lift.consume
    return consume(streams, group=group, options=options or quick_options(), group_options=group_options)


class Reading:
    """A member that a task reads.

    Attributes:
        messages: what it got, in order.
        events: what its callbacks were told, in order: what, and the partitions.
    """

    def __init__(self, lift: liftpy.Lift, streams: str | list[str], group: str, **more: Any) -> None:
        self.events: list[tuple[str, list[tuple[str, int]]]] = []
        told = {
            name: (lambda partitions, name=name: self.events.append((name, partitions)))
            for name in ("on_assigned", "on_revoked", "on_lost_partitions")
        }
        self.consumer = member(lift, streams, group, **(told | more))
        self.messages: list[Any] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.messages]

    @property
    def offsets(self) -> set[tuple[str, int, int]]:
        return {(message.stream, message.partition, message.offset) for message in self.messages}

    def of(self, what: str) -> list[tuple[str, int]]:
        """The partitions that one callback was told of."""
        return [partition for name, partitions in self.events if name == what for partition in partitions]

    async def __aenter__(self) -> Self:
        await self.consumer.__aenter__()
        self.task = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async for message in self.consumer:
            self.messages.append(message)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Leave as an application that ends well."""
        assert self.task is not None
        await self.consumer.__aexit__(None, None, None)
        await asyncio.gather(self.task, return_exceptions=True)

    async def vanish(self) -> None:
        """Be gone without a word, as a process that is killed."""
        membership = self.consumer._membership
        assert membership is not None
        assert self.task is not None
        for task in [*membership._tasks, self.task]:
            task.cancel()
        await asyncio.gather(*membership._tasks, self.task, return_exceptions=True)
        await self.consumer._assigned.close()
        membership._link.close()


@asynccontextmanager
async def reading(lift: liftpy.Lift, streams: str | list[str], group: str, **more: Any) -> AsyncIterator[Reading]:
    """A member that reads."""
    async with Reading(lift, streams, group, **more) as reader:
        yield reader


async def fill(lift: liftpy.Lift, stream: str, count: int, first: int = 0) -> None:
    """Publish numbered messages, spread over the partitions."""
    async with lift.publisher(stream=stream) as publisher:
        for number in range(first, first + count):
            await publisher.publish(f"{stream}.x", b"%d" % number, key=b"%d" % number)
