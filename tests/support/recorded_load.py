"""Publishers and consumers that write down in a history all they do and see, and go on through whatever happens."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Self

import nats

import liftpy
from liftpy_client.errors import CorruptRecordsError, LogDivergedError, OffsetLostError, StreamGoneError
from liftpy_envelope.errors import AckErrorCode, LiftError
from support.cluster import quick_options
from support.history import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from support.history import History

RESEND_S = 1.0
RETRY_S = 0.1
REFUSED_S_MAX = 1.0  # where nothing is taken, sending again and again must not be what keeps the machine busy
OUTSTANDING_MAX = 50
FINISH_TIMEOUT_S = 60.0

NOT_ALLOWED = (CorruptRecordsError, LogDivergedError, OffsetLostError, StreamGoneError)


class _Task:
    """Something that runs until it is told to stop."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Begin."""
        self._task = asyncio.ensure_future(self._run())
        return self

    async def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> None:
        """End in good order."""
        self._stop.set()
        assert self._task is not None
        await asyncio.wait_for(self._task, timeout_s)

    async def cancel(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        raise NotImplementedError


class RecordedPublisher(_Task):
    """Publishes numbered messages, several at once, and sends again what is not acknowledged.

    Args:
        url: of NATS.
        history: where all is written down.
        stream: that takes the messages.
        subject: of a message, by its number.
        who: a name that no other publisher has.
        has_id: messages carry ids.
        rate: messages per second, about.

    Attributes:
        sent: how many messages have left at least once.
        acked: how many were acknowledged.
    """

    def __init__(
        self,
        url: str,
        history: History,
        stream: str,
        subject: Callable[[int], str],
        who: str,
        *,
        has_id: bool = True,
        rate: float = 100.0,
    ) -> None:
        super().__init__()
        self._url = url
        self._history = history
        self.stream = stream
        self._subject = subject
        self.who = who
        self._has_id = has_id
        self._pause_s = 1.0 / rate
        self._sending: set[asyncio.Task[None]] = set()
        self._answers: dict[str, asyncio.Future[bytes]] = {}
        self._tries = 0
        self.sent = 0
        self.acked = 0

    async def _run(self) -> None:
        client = await nats.connect(
            self._url.split(","),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
            connect_timeout=5,
        )
        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._arrived)
        room = asyncio.Semaphore(OUTSTANDING_MAX)
        try:
            while not self._stop.is_set():
                await room.acquire()
                task = asyncio.ensure_future(self._persist(client, inbox, self.sent))
                self.sent += 1
                self._sending.add(task)
                task.add_done_callback(lambda done: (self._sending.discard(done), room.release()))
                await asyncio.sleep(self._pause_s)
            await asyncio.gather(*self._sending)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)
            await client.close()

    async def _persist(self, client: nats.NATS, inbox: str, number: int) -> None:
        content = f"{self.who}-{number}".encode()
        pause_s = RETRY_S
        while True:
            self._tries += 1
            name = str(self._tries)
            self._history.sent(self.stream, content, has_id=self._has_id)
            answer = await self._ask(client, f"{inbox}.{name}", name, self._subject(number), content)
            if answer is not None and self._took(content, answer):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REFUSED_S_MAX)

    async def _ask(self, client: nats.NATS, reply: str, name: str, subject: str, content: bytes) -> bytes | None:
        """The answer; None when there is none in time."""
        waiting = self._answers[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(RESEND_S):
                headers = {"Nats-Msg-Id": content.decode()} if self._has_id else None
                await client.publish(subject, content, reply=reply, headers=headers)
                return await waiting
        except (TimeoutError, nats.errors.Error):
            self._history.unanswered(content)
            return None
        finally:
            del self._answers[name]

    def _took(self, content: bytes, answer: bytes) -> bool:
        """Write an answer down; whether it is an ack."""
        ack = json.loads(answer)
        if "error" in ack:
            code = ack["error"]["err_code"]
            self._history.refused(content, code, is_unknown=code == AckErrorCode.OUTCOME_UNKNOWN)
            return False
        self._history.acked(content, Place(ack["partition"], ack["offset"], ack["epoch"]))
        self.acked += 1
        return True

    async def _arrived(self, message: Msg) -> None:
        waiting = self._answers.get(message.subject.rpartition(".")[2])
        if message.data and waiting is not None and not waiting.done():  # no data: nobody listened
            waiting.set_result(message.data)


class RecordedConsumer(_Task):
    """Reads a stream for ever, beginning anew where it was whenever it is interrupted.

    Args:
        url: of NATS.
        history: where all is written down.
        stream: that is read.
        who: a name that no other consumer has.
        starts: first offsets, by partition.
        life_s: it stops by itself after so long, and begins anew; 0 for never.

    Attributes:
        next_offsets: that come next, by partition.
        restarts: how often it began anew.
    """

    def __init__(
        self, url: str, history: History, stream: str, who: str, starts: dict[int, int], life_s: float = 0.0
    ) -> None:
        super().__init__()
        self._url = url
        self._history = history
        self.stream = stream
        self.who = who
        self._life_s = life_s
        self.next_offsets = dict(starts)
        self.restarts = 0
        for partition, offset in starts.items():
            history.started(who, stream, partition, offset)

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                async with liftpy.connect(self._url, timeout_s=3.0) as lift:
                    await self._live(lift)
            except NOT_ALLOWED as error:
                self._history.broke(self.who, f"{type(error).__name__}: {error}")
                return
            except (LiftError, OSError, TimeoutError) as error:
                self._history.happened(f"{self.who}: {type(error).__name__}: {error}")
                await asyncio.sleep(RETRY_S)
            self.restarts += 1

    async def _live(self, lift: liftpy.Lift) -> None:
        consumer = lift.consume(self.stream, start=dict(self.next_offsets), options=quick_options())
        stop = asyncio.ensure_future(self._stop.wait())
        reading = asyncio.ensure_future(self._read(consumer))
        try:
            await asyncio.wait(
                {stop, reading},
                timeout=self._life_s or None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stop.cancel()
            await consumer.close()
            done, _ = await asyncio.wait({reading}, timeout=RETRY_S)
            if not done:
                reading.cancel()
            await asyncio.gather(stop, reading, return_exceptions=True)
        if not reading.cancelled():
            reading.result()

    async def _read(self, consumer: liftpy.Consumer) -> None:
        async for message in consumer:
            self._history.saw(self.who, self.stream, message.partition, message.offset, message.value or b"")
            self.next_offsets[message.partition] = message.offset + 1


async def _ignore(_error: Exception) -> None:
    """Connections come and go in these tests."""
