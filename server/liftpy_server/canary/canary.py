"""The canary: publishes a message now and then, reads every message back by pull, as a group, and from the bucket.

It is a client like any other, with one message at a time under way, and reads only the subject on which it publishes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftpy_envelope.errors import LiftError
from liftpy_server.canary.ledger import BUCKET, Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Mapping, Sequence

    from liftpy_client.admin.details import StreamDetails
    from liftpy_client.client import Lift
    from liftpy_client.message import Message
    from liftpy_server.settings.canary import CanaryConfig

    ReadBucket = Callable[[str, int, Sequence[int]], tuple[int, int, Mapping[int, bytes | None]] | None]

__all__ = ["Canary", "canary_subject"]

logger = logging.getLogger(__name__)

_BUCKET_INTERVAL_S: Final = 15.0
_SETTLE_S: Final = 0.05
_LEAVE_S: Final = 5.0
_WILDCARDS: Final = re.compile(r"(?<=\.)[*>](?=\.|$)|^[*>](?=\.|$)")


def canary_subject(pattern: str) -> str:
    """A literal subject that a stream stores: that of the stream, with `canary` for its wildcards."""
    return _WILDCARDS.sub("canary", pattern)


class Canary:
    """See the module.

    Args:
        lift: The connection.
        config: What to publish, and how long to wait.
        group: Name of the group that it reads as, and deletes at the end.
        read_bucket: Given uuid of the stream, partition and offsets, blocks, and returns where the bucket's part of the
            partition starts and ends, and the values there; None if it has nothing. None: not to be looked at.
        tell: Called after each message.
    """

    def __init__(
        self,
        lift: Lift,
        config: CanaryConfig,
        group: str,
        read_bucket: ReadBucket | None,
        tell: Callable[[Ledger], None],
    ) -> None:
        assert config.stream is not None, "it was asked for"
        run = uuid4().hex[:12]
        timeouts_s = {"pull": config.timeout_s, "group": config.timeout_s}
        if read_bucket is not None:
            timeouts_s[BUCKET] = config.bucket_timeout_s
        self._lift = lift
        self._config = config
        self._stream = config.stream
        self._read_bucket = read_bucket
        self._tell = tell
        self._run = run
        self._group = group
        self._now = asyncio.get_running_loop().time
        self.ledger = Ledger(run, timeouts_s)

    async def run(self, messages: int | None) -> None:
        """Publish so many messages, and wait until each was read or is late; None for without end.

        Raises:
            LiftError: the stream cannot be read; the message says why.
        """
        details = await self._lift.stream_info(self._stream)
        subject = self._config.subject or canary_subject(details.config.subject)
        starts = _ends(details)
        await self._lift.reset_group(self._group, {self._stream: starts})
        try:
            pull = self._lift.consume(self._stream, start=starts, subjects=subject)
            member = self._lift.consume(self._stream, group=self._group, subjects=subject)
            async with pull, member, asyncio.TaskGroup() as tasks:
                readers = [
                    tasks.create_task(self._read("pull", pull)),
                    tasks.create_task(self._read("group", member)),
                ]
                if self._read_bucket is not None:
                    readers.append(tasks.create_task(self._look_into_bucket(details.uuid)))
                await self._publish(subject, messages)
                await self._settle()
                for reader in readers:
                    reader.cancel()
        except ExceptionGroup as group:
            raise _first(group) from None
        finally:
            await self._leave()

    async def _publish(self, subject: str, messages: int | None) -> None:
        sent = 0
        while messages is None or sent < messages:
            began_s = self._now()
            if not self.ledger.is_full:
                await self._publish_one(subject)
                sent += 1
            self.ledger.expire(self._now())
            self._tell(self.ledger)
            if sent != messages:
                await asyncio.sleep(max(0.0, began_s + self._config.interval_s - self._now()))

    async def _publish_one(self, subject: str) -> None:
        number, value = self.ledger.publishing(self._now())
        key = b"%d" % number
        try:
            ack = await self._lift.publish(
                *(subject, value), key=key, message_id=f"{self._run}-{number}", stream=self._stream
            )
        except LiftError as error:
            logger.warning("canary: stream %s: message %d was not acknowledged: %s", self._stream, number, error)
            self.ledger.failed(number)
        else:
            self.ledger.acked(number, ack.partition, ack.offset, self._now())

    async def _read(self, way: str, consumer: AsyncIterable[Message]) -> None:
        async for message in consumer:
            self.ledger.read(way, message.partition, message.offset, message.value, self._now())

    async def _look_into_bucket(self, uuid: str) -> None:
        while True:
            await asyncio.sleep(min(_BUCKET_INTERVAL_S, self._config.bucket_timeout_s / 10))
            for partition, offsets in self.ledger.wanted_of_bucket().items():
                assert self._read_bucket is not None, "there is a bucket"
                try:
                    found = await asyncio.to_thread(self._read_bucket, uuid, partition, offsets)
                except LiftError as error:
                    logger.warning("canary: the bucket cannot be read: %s", error)
                    break  # what it does not show in time is late
                if found is not None:
                    self.ledger.in_bucket(partition, *found, self._now())

    async def _settle(self) -> None:
        while not self.ledger.is_settled:
            await asyncio.sleep(_SETTLE_S)
            self.ledger.expire(self._now())
        self._tell(self.ledger)

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._lift.delete_group(self._group)
        except (LiftError, TimeoutError) as error:
            logger.info("canary: the group %s stays until it expires: %s", self._group, error)


def _ends(details: StreamDetails) -> dict[int, int]:
    ends = {each.partition: each.high_watermark for each in details.partitions}
    silent = sorted(partition for partition, end in ends.items() if end is None)
    if silent:
        raise LiftError(f"stream {details.name} partition {silent[0]}: no leader answers; see liftpy status")
    return {partition: end for partition, end in ends.items() if end is not None}


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
