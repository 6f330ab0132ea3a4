"""One connection to one NATS server, from the first byte to the last.

The server answers every PING in its turn, behind everything that it held for us when the question came. So a question
is confirmed by the PONG that belongs to it, and by nothing else; all of them are counted. The connection asks by
itself every second. One on which a question is open and nothing at all arrives is given up after some seconds, with
`abort`: nobody waits for a host that is dead. While its owner does not read, that clock stands still.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from liftpy_envelope.errors import LiftError
from liftpy_server.settings.limits import CONFIRM_INTERVAL_S, QUESTIONS_OPEN_MAX, SILENT_QUESTIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_log.clock import Clock
    from liftpy_server.nats.server_pool import ServerAddress

__all__ = ["LOST", "SILENT", "NatsConnection", "NatsConnectionError", "Question", "TlsUse"]

logger = logging.getLogger(__name__)

_LINE_BYTES_MAX: Final = 1024 * 1024
SILENT: Final = "the NATS server did not answer any more"
LOST: Final = "the NATS connection was lost"  # and the server did not say why


class NatsConnectionError(LiftError):
    """The server can not be reached, or does not let us in.

    Attributes:
        refused: The server's words, when it does not take our credentials.
    """

    def __init__(self, message: str, refused: str = "") -> None:
        super().__init__(message)
        self.refused = refused


class TlsUse(NamedTuple):
    """How connections are encrypted.

    Attributes:
        context: Makes the context, when one is needed.
        first: Whether it is spoken before the server says anything.
        is_preferred: Also with a server that would do without.
    """

    context: Callable[[], ssl.SSLContext]
    first: bool
    is_preferred: bool


class Question(NamedTuple):
    """A PING that waits for its PONG.

    Attributes:
        asked_s: When it was sent, by the clock of elapsed time.
        answered: True with the PONG, False when the connection ends before; None when nobody waits.
    """

    asked_s: float
    answered: asyncio.Future[bool] | None


class NatsConnection(asyncio.Protocol):
    """One connection to one NATS server, from the first byte to the last.

    Args:
        clock: Tells when questions were asked.

    Attributes:
        address: Address of the server, once it is being opened.
        info: What the server said of itself last.
        receive: Takes every chunk; gives the lines that are no messages to `take_lines`. By default that itself.
        on_info: Called with what the server says of itself after the beginning.
        on_error: Called with the text of a `-ERR`.
        on_answer: Called with a question that was answered.
        on_end: Called once when an open connection has ended; `cause` says why.
        cause: Why it ended; empty while it has not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.address: ServerAddress | None = None
        self.info: dict[str, Any] = {}
        self.receive: Callable[[bytes], None] = self.take_lines
        self.on_info: Callable[[dict[str, Any]], None] = lambda _: None
        self.on_error: Callable[[str], None] = lambda _: None
        self.on_answer: Callable[[Question], None] = lambda _: None
        self.on_end: Callable[[], None] = lambda: None
        self.cause = ""
        self._transport: asyncio.Transport | None = None
        self._first_info: asyncio.Future[None] = self._loop.create_future()
        self._half_line = b""
        self._error = ""
        self._is_open = False
        self._questions: deque[Question] = deque()
        self._ticking: asyncio.TimerHandle | None = None
        self._heard = False  # since the last tick
        self._has_spoken = False  # of a certificate that we do not take
        self._silent = 0  # ticks in a row
        self._written = self._drained = 0

    @property
    def is_open(self) -> bool:
        """Whether the server has let us in, and the connection stands."""
        return self._is_open

    @property
    def was_taken(self) -> bool:
        """Whether the server's host took the connection, and the server has not spoken in another way than we want."""
        return self._transport is not None and not self._has_spoken

    @property
    def questions(self) -> deque[Question]:
        """PINGs without a PONG so far, oldest first."""
        return self._questions

    async def open(
        self,
        address: ServerAddress,
        connect_line: Callable[[dict[str, Any]], bytes],
        tls: TlsUse,
        timeout_s: float,
    ) -> None:
        """Connect, encrypt, and be let in.

        Args:
            address: Address of the server.
            connect_line: Makes the `CONNECT` line from what the server says of itself.
            tls: How to encrypt.
            timeout_s: Time for all of it, seconds.

        Raises:
            NatsConnectionError: it did not succeed.
        """
        self.address = address
        try:
            async with asyncio.timeout(timeout_s):
                await self._open(address, connect_line, tls)
        except TimeoutError as error:
            self.end("it did not answer in time")
            raise NatsConnectionError(f"{address.place} does not answer within {timeout_s:g} s") from error
        except (OSError, LiftError) as error:
            self.end(str(error))
            if isinstance(error, NatsConnectionError):
                raise
            raise NatsConnectionError(f"{address.place}: {str(error) or type(error).__name__}") from error
        except BaseException:
            self.end("it was not waited for")
            raise

    async def introduce(self, address: ServerAddress, tls: TlsUse, timeout_s: float) -> dict[str, Any] | None:
        """Connect, hear what the server says of itself to anybody, and leave; None when it says nothing.

        Args:
            address: Address of the server.
            tls: How to encrypt.
            timeout_s: Time for all of it, seconds.
        """
        self.address = address
        try:
            async with asyncio.timeout(timeout_s):
                await self._dial(address, tls)
        except (OSError, LiftError):  # a time-out is one of them
            return None
        finally:
            self.end("it has said who it is")
        return self.info

    async def _dial(self, address: ServerAddress, tls: TlsUse) -> None:
        await self._loop.create_connection(lambda: self, address.host, address.port)
        if tls.first:
            await self._start_tls(address, tls)
        await self._first_info

    async def _start_tls(self, address: ServerAddress, tls: TlsUse) -> None:
        assert self._transport is not None, "it is connected"
        context = tls.context()
        try:
            transport = await self._loop.start_tls(self._transport, self, context, server_hostname=address.tls_name)
        except ssl.SSLError:
            self._has_spoken = True
            raise
        self._transport = cast("asyncio.Transport", transport)

    async def _open(self, address: ServerAddress, connect_line: Callable[[dict[str, Any]], bytes], tls: TlsUse) -> None:
        await self._dial(address, tls)
        if not tls.first:
            await self._encrypt(address, tls)
        self.write(connect_line(self.info))
        if not await self.ask() or self.cause:
            raise self._refusal()
        self._is_open = True
        self._ticking = self._loop.call_later(CONFIRM_INTERVAL_S, self._tick)

    async def _encrypt(self, address: ServerAddress, tls: TlsUse) -> None:
        is_required, is_available = bool(self.info.get("tls_required")), bool(self.info.get("tls_available"))
        if address.wants_tls and not is_required and not is_available:
            raise NatsConnectionError(f"{address.place} does not speak TLS, and its address begins with tls://")
        if is_required or (is_available and (tls.is_preferred or address.wants_tls)):
            await self._start_tls(address, tls)

    def _refusal(self) -> NatsConnectionError:
        assert self.address is not None, "it is being opened"
        text = self._error or self.cause
        lowered = self._error.lower()
        is_refusal = "authorization violation" in lowered or "authentication" in lowered
        return NatsConnectionError(f"{self.address.place}: {text}", self._error if is_refusal else "")

    def write(self, data: bytes) -> bool:
        """Send bytes; False when the connection has ended."""
        transport = self._transport
        if (
            transport is None or transport.is_closing()
        ):  # uvloop closes it before anybody is told, and refuses all calls
            return False
        self._written += len(data)
        transport.write(data)
        return True

    @property
    def unsent_bytes(self) -> int:
        """What the server has not taken yet."""
        transport = self._transport
        return 0 if transport is None or transport.is_closing() else transport.get_write_buffer_size()

    def ask(self) -> asyncio.Future[bool]:
        """Ask whether the server has handled everything that was sent.

        Returns:
            True when it has, and everything that it held for us then has arrived; False when the connection ended.
        """
        answered: asyncio.Future[bool] = self._loop.create_future()
        self._ask(answered)
        return answered

    def _ask(self, answered: asyncio.Future[bool] | None) -> None:
        asked = Question(self._clock.elapsed(), answered)
        if self.write(b"PING\r\n"):
            self._questions.append(asked)
        elif answered is not None:
            answered.set_result(False)

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def end(self, cause: str) -> None:
        """End the connection at once; what was not sent yet is not sent."""
        if self.cause:
            return
        self.cause = cause
        was_open, self._is_open = self._is_open, False
        if self._ticking is not None:
            self._ticking.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self._first_info.done():
            self._first_info.set_exception(NatsConnectionError(f"{self._shown}: {self._error or cause}"))
            self._first_info.exception()  # read, should nobody wait for it
        if was_open:
            self.on_end()
        open_questions, self._questions = self._questions, deque()
        for question in open_questions:
            if question.answered is not None and not question.answered.done():
                question.answered.set_result(False)

    @property
    def _shown(self) -> str:
        return "the NATS server" if self.address is None else self.address.place

    def _tick(self) -> None:
        """Ask again; give up a connection that is silent for too long although something is asked.

        Ticks are counted, not seconds: after a time in which this process stood still, what has arrived is read first.
        """
        transport = self._transport
        assert transport is not None, "the connection is open"
        drained = self._written - self.unsent_bytes
        takes = drained > self._drained and self.unsent_bytes > 0
        self._drained = drained
        if transport.is_reading():
            self._silent = 0 if self._heard or takes or not self._questions else self._silent + 1
        self._heard = False
        if self._silent >= SILENT_QUESTIONS_MAX:
            self.end(SILENT)
            return
        if len(self._questions) < QUESTIONS_OPEN_MAX:
            self._ask(None)
        self._ticking = self._loop.call_later(CONFIRM_INTERVAL_S, self._tick)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        if self.cause:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._heard = True
        if not self.cause:
            self.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc  # says no more than that it was lost
        self.end(f"the NATS server closed the connection: {self._error}" if self._error else LOST)

    def take_lines(self, data: bytes) -> None:
        """Act on lines that are no messages."""
        *lines, self._half_line = (self._half_line + data).split(b"\r\n")
        for line in lines:
            self._take_line(line)
        if len(self._half_line) > _LINE_BYTES_MAX:
            self._end_confused(self._half_line)

    def _take_line(self, line: bytes) -> None:
        verb = line[:4]
        if verb == b"PONG":
            self._take_answer()
        elif verb == b"PING":
            self.write(b"PONG\r\n")
        elif verb == b"INFO":
            self._take_info(line[4:])
        elif verb == b"-ERR":
            self._error = line[4:].decode(errors="replace").strip(" '")
            self.on_error(self._error)
        elif line and not line.startswith(b"+OK"):
            self._end_confused(line)

    def _take_answer(self) -> None:
        if not self._questions:
            logger.debug("%s answers what nobody asked", self._shown)
            return
        question = self._questions.popleft()
        if question.answered is not None and not question.answered.done():
            question.answered.set_result(True)
        self.on_answer(question)

    def _take_info(self, text: bytes) -> None:
        try:
            info = json.loads(text)
        except ValueError:
            info = None
        if not isinstance(info, dict):
            self._end_confused(b"INFO" + text)
            return
        self.info = info
        if self._first_info.done():
            self.on_info(info)
        else:
            self._first_info.set_result(None)

    def _end_confused(self, line: bytes) -> None:
        self.end(f"the NATS server sent what is not its protocol: {line[:100]!r}")
