"""One subscription on which all acks of a client come back."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.cancelling import KeptCancellation
from liftpy_client.errors import NobodyListensError
from liftpy_envelope.ack import Ack, AckUnreadableError, PublishRefusedError, decode_ack

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

__all__ = ["AckInbox"]

_NO_RESPONDERS_ONLY: Final = "-"


class AckInbox:
    """Hands out reply subjects, and acks to those who wait for them.

    Args:
        nats: An open connection.
    """

    def __init__(self, nats: Client) -> None:
        self._nats = nats
        self._prefix = f"{nats.new_inbox()}."
        self._numbers = count()
        self._waiting: dict[str, tuple[asyncio.Future[Ack], str | None]] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Subscribe, if that was not done yet."""
        async with self._opening:
            if self._subscription is None:
                with KeptCancellation():
                    self._subscription = await self._nats.subscribe(f"{self._prefix}*", cb=self._arrived)

    def expect(self, stream: str | None = None) -> tuple[str, asyncio.Future[Ack]]:
        """A reply subject, and the ack that will come on it; with `stream`, acks of other streams are passed over."""
        token = str(next(self._numbers))
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future, stream
        return self._prefix + token, future

    @staticmethod
    def no_responders(subject: str) -> str:
        """A reply subject for a message whose ack comes on `subject`.

        What counts there is that nobody listens, and a refusal of the stream: a node that cannot read an envelope does
        not know where else to answer. JetStream, and services, answer whoever gives a reply subject.
        """
        return subject + _NO_RESPONDERS_ONLY

    def forget(self, subject: str) -> None:
        """Wait no longer for what `expect` announced."""
        waiting = self._waiting.pop(subject.removeprefix(self._prefix), None)
        if waiting is not None and waiting[0].done() and not waiting[0].cancelled():
            waiting[0].exception()  # seen, even when whoever waited was cancelled in the same moment

    async def _arrived(self, message: Msg) -> None:
        token = message.subject.removeprefix(self._prefix)
        waiting = self._waiting.get(token.removesuffix(_NO_RESPONDERS_ONLY))
        if waiting is None or waiting[0].done():
            return
        future, stream = waiting
        if not message.data and message.headers and message.headers.get("Status") == "503":
            future.set_exception(NobodyListensError("nobody listens to this subject"))
            return
        answer: Ack | PublishRefusedError | AckUnreadableError
        try:
            answer = decode_ack(message.data)
        except (PublishRefusedError, AckUnreadableError) as error:
            answer = error
        if not _counts(answer, stream, is_elsewhere=token.endswith(_NO_RESPONDERS_ONLY)):
            return
        if isinstance(answer, Ack):
            future.set_result(answer)
        else:
            future.set_exception(answer)


def _counts(answer: Ack | PublishRefusedError | AckUnreadableError, stream: str | None, *, is_elsewhere: bool) -> bool:
    """Whether an answer is one that is waited for.

    Args:
        answer: What came.
        stream: The stream whose answer counts; None for any.
        is_elsewhere: Whether it came on a subject of `AckInbox.no_responders`.
    """
    if is_elsewhere:
        return isinstance(answer, PublishRefusedError) and stream is not None and answer.stream == stream
    return stream is None or isinstance(answer, AckUnreadableError) or answer.stream in {stream, None}
