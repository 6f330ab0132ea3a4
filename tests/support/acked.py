"""Publishers that remember every ack, and send again under the same id what was not acknowledged."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import nats

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    import liftpy

WINDOW = 100
RESEND_S = 0.5


class AckedPublisher:
    """Publishes numbered messages to one subject until it is told to stop; with a pause after every window of them.

    Attributes:
        sent: how many messages have left at least once.
        acked: offset by message id.
        refused: error codes of refusals, each followed by another try.
        duplicates: acks that said the message had been there before.
    """

    def __init__(self, url: str, subject: str, who: str, size: int = 0, pause_s: float = 0.0) -> None:
        self._url = url
        self._subject = subject
        self._who = who
        self._padding = b"." * size
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._news = asyncio.Event()
        self._unacked: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.acked: dict[str, int] = {}
        self.refused: list[int] = []
        self.duplicates = 0

    def start(self) -> AckedPublisher:
        """Begin."""
        self._task = asyncio.ensure_future(self._run())
        return self

    async def finish(self, timeout_s: float = 60.0) -> None:
        """Send nothing new, and wait until everything is acknowledged."""
        self._stop.set()
        assert self._task is not None
        await asyncio.wait_for(self._task, timeout_s)
        assert len(self.acked) == self.sent

    async def cancel(self) -> None:
        """Give up."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        client = await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore, connect_timeout=5
        )
        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._arrived)
        try:
            while not self._stop.is_set() or self._unacked:
                fresh = []
                while len(self._unacked) < WINDOW and not self._stop.is_set():
                    fresh.append(f"{self._who}-{self.sent}")
                    self._unacked[fresh[-1]] = None
                    self.sent += 1
                await self._publish(client, inbox, fresh)
                self._news.clear()
                try:
                    async with asyncio.timeout(RESEND_S):
                        await self._news.wait()
                except TimeoutError:
                    await self._publish(client, inbox, list(self._unacked))
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
        finally:
            await client.close()

    async def _publish(self, client: nats.NATS, inbox: str, ids: list[str]) -> None:
        for message_id in ids:
            try:
                await client.publish(
                    self._subject,
                    message_id.encode() + self._padding,
                    reply=f"{inbox}.{message_id}",
                    headers={"Nats-Msg-Id": message_id},
                )
            except nats.errors.Error:  # sent again later
                return

    async def _arrived(self, message: Msg) -> None:
        if not message.data:
            return  # nobody listened
        message_id = message.subject.rpartition(".")[2]
        ack = json.loads(message.data)
        if "error" in ack:
            self.refused.append(ack["error"]["err_code"])
            return
        known = self.acked.setdefault(message_id, ack["offset"])
        assert known == ack["offset"], f"{message_id} was acknowledged at {known} and at {ack['offset']}"
        self.duplicates += bool(ack.get("duplicate"))
        self._unacked.pop(message_id, None)
        self._news.set()


async def _ignore(_error: Exception) -> None:
    """Connections come and go in these tests."""


def start_publishers(
    url: str, subjects: list[str], count: int, size: int = 0, pause_s: float = 0.0
) -> list[AckedPublisher]:
    """`count` publishers for each subject."""
    return [
        AckedPublisher(url, subject, f"{subject}-p{n}", size, pause_s).start()
        for subject in subjects
        for n in range(count)
    ]


async def assert_stored_once(lift: liftpy.Lift, stream: str, publishers: list[AckedPublisher]) -> None:
    """Every acknowledged message stands at its offset, nothing is there twice, nothing else is there, no hole."""
    where: dict[str, int] = {}
    expected = 0
    async for message in lift.consume(stream, stop="latest"):
        assert message.offset == expected
        expected += 1
        message_id = (message.value or b"").rstrip(b".").decode()
        assert message_id not in where, f"{message_id} is at {where[message_id]} and at {message.offset}"
        where[message_id] = message.offset
    acked = {message_id: offset for publisher in publishers for message_id, offset in publisher.acked.items()}
    wrong = {key: (offset, where.get(key)) for key, offset in acked.items() if where.get(key) != offset}
    assert not wrong, f"acknowledged and elsewhere or nowhere: {list(wrong.items())[:5]} of {len(wrong)}"
    sent = {f"{publisher._who}-{number}" for publisher in publishers for number in range(publisher.sent)}
    assert set(where) <= sent
