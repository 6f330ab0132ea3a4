"""Answers to `follow` on one pull connection, in plain calls wherever nothing has to be waited for.

One request is parked until there is news, or its time is over, or another one takes its place. Requests with the
correlation id 0 are reports: what they say counts, and the request that is parked stays so. Batches in memory go to
the socket at once. Where a file is to be read, or the socket is full, the answer is left to `finish`, and nothing else
is sent meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.errors import FrameError
from liftpy_envelope.follow import FollowRequest, FollowResponse, FollowWhole
from liftpy_envelope.frames import encode_response
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import pin_all, unpin_all
from liftpy_server.pull.follow_session import FollowSession
from liftpy_server.pull.sending import check_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from liftpy_envelope.errors import ErrorCode
    from liftpy_envelope.follow import FollowEnd
    from liftpy_envelope.frames import Request
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache
    from liftpy_server.pull.follow_session import FollowedPartition, FollowFound
    from liftpy_server.pull.sending import Piece, ResponseSender

__all__ = ["FollowAnswers"]

_AGO_S_MAX: Final = 1e9  # nothing is known of any time

logger = logging.getLogger(__name__)


class _Parked(NamedTuple):
    """A request that is not answered."""

    correlation_id: int
    bytes_max: int
    until_s: float
    ends: Sequence[FollowEnd]


class _Unfinished(NamedTuple):
    """What `finish` does: send news for a request, or, where there is none, only wait for the socket."""

    size_bytes: int
    request: _Parked | None = None
    found: Sequence[FollowFound] = ()


class FollowAnswers:
    """Answers `follow` requests on one pull connection.

    Args:
        replicas: The partition with a key, or why there is none here.
        heard: Told who asks, and whether it hears NATS, at every request.
        asked: When NATS was asked a question last that was answered, and how long ago that is, in seconds.
        files: The node's open files.
        executor: Reads from the disk.
        sender: Sender to the follower.
        may_send: Whether nobody else is sending on the connection.
        on_unfinished: Called when `finish` is to be called.
        on_failure: Called when an answer failed for a reason that is ours; the connection can not be used further.
    """

    def __init__(
        self,
        *,
        replicas: Callable[[PartitionKey], FollowedPartition | ErrorCode],
        heard: Callable[[str, bool], None],
        asked: Callable[[], tuple[float, float]],
        files: FileCache,
        executor: Executor,
        sender: ResponseSender,
        may_send: Callable[[], bool],
        on_unfinished: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._session = FollowSession(replicas, self._has_news)
        self._heard = heard
        self._asked = asked
        self._files = files
        self._executor = executor
        self._sender = sender
        self._may_send = may_send
        self._on_unfinished = on_unfinished
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._parked: _Parked | None = None
        self._unfinished: _Unfinished | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._will_look = False
        self._is_closed = False

    def close(self) -> None:
        """Leave every partition alone."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._session.close()

    @property
    def is_unfinished(self) -> bool:
        """Whether `finish` is to be called, before any other request is taken."""
        return self._unfinished is not None

    def take(self, request: Request) -> None:
        """Take a request; it is answered now or later. A follower has one that is not answered; a second one ends that.

        Raises:
            FrameError: it is malformed; nothing has changed.
        """
        follow = unpack_body(FollowRequest, request.body)
        is_report = request.correlation_id == 0
        if is_report and follow.questions:
            raise FrameError("a follow request without a correlation id is not answered, and must not ask anything")
        now_s = self._loop.time()
        self._heard(follow.node_id, follow.hears == 1)
        if self._parked is not None and not is_report:
            parked, self._parked = self._parked, None
            self._answer(parked, self._session.collect(parked.bytes_max, parked.correlation_id, now_s))
        ends = self._session.apply(follow)
        if not is_report:
            until_s = now_s + (0 if ends else follow.wait_ms_max / 1000)
            self._parked = _Parked(request.correlation_id, follow.bytes_max, until_s, ends)
        self.look()

    def look(self) -> None:
        """Answer the request that is parked, if there is news for it, or its time is over."""
        parked = self._parked
        if parked is None or self._unfinished is not None or self._is_closed or not self._may_send():
            return
        now_s = self._loop.time()
        found = self._session.collect(parked.bytes_max, parked.correlation_id, now_s)
        if found or now_s >= parked.until_s:
            self._parked = None
            self._answer(parked, found)
        else:
            self._look_at(min(parked.until_s, self._session.due_s))

    def _has_news(self) -> None:
        if not self._will_look:  # once for all partitions of a pass
            self._will_look = True
            self._loop.call_soon(self._look_safely)

    def _look_at(self, when_s: float) -> None:
        """One timer: an earlier one looks in vain, and sets the next."""
        if self._timer is None or self._timer_s > when_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = when_s  # uvloop's handle for what is due within the millisecond does not know it
            self._timer = self._loop.call_at(when_s, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self._look_safely()

    def _look_safely(self) -> None:
        self._will_look = False
        try:
            self.look()
        except Exception:
            logger.exception("answering a follower failed: it is to connect again")
            self._on_failure()

    def _answer(self, request: _Parked, found: Sequence[FollowFound]) -> None:
        if self._unfinished is not None or not self._sender.is_clear or any(news.slices for news in found):
            assert self._unfinished is None, "one answer at a time"
            self._leave(_Unfinished(0, request, found))
            return
        parts = [b""]
        for news in found:
            if news.producers:
                parts.append(news.producers)
            parts += news.batches
        size_bytes = sum(map(len, parts))
        parts[0] = self._head(request, found, size_bytes)
        if not self._sender.send_now(parts, size_bytes + len(parts[0])):
            self._leave(_Unfinished(size_bytes))

    def _leave(self, rest: _Unfinished) -> None:
        self._unfinished = rest
        self._on_unfinished()

    async def finish(self) -> None:
        """Do what has to be waited for.

        Raises:
            TimeoutError: the follower is too slow; the connection can not be used further.
            OSError: the connection or a file broke.
        """
        rest = self._unfinished
        assert rest is not None, "there is nothing to finish"
        await self._sender.drain(rest.size_bytes)
        if rest.request is not None:
            await self._send(rest.request, rest.found)
        self._unfinished = None

    async def _send(self, request: _Parked, found: Sequence[FollowFound]) -> None:
        pinned: list[tuple[File, Slice]] = []
        pieces: list[Piece] = []
        told = []
        try:
            for news in found:
                before = len(pinned)
                told.append(await self._prepared(news, pinned))
                if told[-1].producers:
                    pieces.append(told[-1].producers)
                pieces += pinned[before:]
                pieces += told[-1].batches
            size_bytes = sum(news.result.size_bytes for news in told)
            await self._sender.send(self._head(request, told, size_bytes), pieces)
        finally:
            unpin_all(self._files, pinned)

    async def _prepared(self, news: FollowFound, pinned: list[tuple[File, Slice]]) -> FollowFound:
        """Pin the files of its slices, check those that are to be; what can not be read says so instead."""
        try:
            ours = pin_all(self._files, news.slices)
        except OSError as error:
            return self._session.unreadable(news, error)
        try:
            for file, piece in ours if news.verify else ():
                await asyncio.get_running_loop().run_in_executor(self._executor, check_slice, file, piece)
        except (SegmentCorruptError, OSError) as error:
            unpin_all(self._files, ours)
            return self._session.unreadable(news, error)
        except BaseException:
            unpin_all(self._files, ours)
            raise
        pinned += ours
        return news

    def _head(self, request: _Parked, found: Sequence[FollowFound], size_bytes: int) -> bytes:
        """The response without its batches; it is sent, or nothing more is on the connection."""
        response = FollowResponse(tuple([news.result for news in found]), tuple(request.ends), self._whole())
        return encode_response(request.correlation_id, response, body_length=size_bytes)

    def _whole(self) -> FollowWhole | None:
        asked_s, ago_s = self._asked()
        told = self._session.whole(asked_s)
        if told is None:
            return None
        ago_s = min(ago_s + asked_s - told[0], _AGO_S_MAX)
        return FollowWhole(int(ago_s * 1e9), tuple(told[1]))
