"""Answers fetches of consumers: waits for news of their session, leaves out what they do not want, and sends it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from liftpy_envelope.bodies import unpack_body
from liftpy_envelope.frames import encode_response
from liftpy_envelope.pull import FetchRequest, FetchResponse
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import unpin_all
from liftpy_server.pull.checking import pin_news, verified
from liftpy_server.pull.filtering import SCAN_COST_MAX, Filtering, filtered, matcher_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from liftpy_envelope.frames import Request
    from liftpy_envelope.pull import FetchResult, PartitionKey
    from liftpy_log.histogram import Histogram
    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache
    from liftpy_server.pull.sending import Piece, ResponseSender
    from liftpy_server.pull.session import FetchFound, FetchSession

__all__ = ["FetchAnswers"]


class _Part(NamedTuple):
    """What is said of one partition, and sent of it."""

    result: FetchResult
    pieces: Sequence[Piece]
    is_news: bool = True


class _Round(NamedTuple):
    """What a look at the session brought; `cost` is that of what was looked through for subjects."""

    parts: list[_Part]
    pinned: Sequence[tuple[File, Slice]]
    cost: int = 0


class FetchAnswers:
    """Answers fetches of consumers on one connection.

    Args:
        session: Session of the connection.
        sender: Sender to the peer.
        files: The node's open files.
        executor: Reads from the disk.
        is_urgent: Whether the peer has asked for something else meanwhile, so that waiting ends.
        fetch_s: Counts how long answers took, once there was news.
    """

    def __init__(
        self,
        *,
        session: FetchSession,
        sender: ResponseSender,
        files: FileCache,
        executor: Executor,
        is_urgent: Callable[[], bool],
        fetch_s: Histogram,
    ) -> None:
        self._session = session
        self._sender = sender
        self._files = files
        self._executor = executor
        self._is_urgent = is_urgent
        self._fetch_s = fetch_s

    async def answer(self, request: Request) -> None:
        """Answer a fetch.

        Raises:
            FrameError: it is not one.
            TimeoutError: the peer is too slow.
            OSError: the connection broke.
        """
        fetch = unpack_body(FetchRequest, request.body)
        self._session.look_at_followers(asyncio.get_running_loop().time())
        self._session.apply(fetch, matcher_of(fetch.subjects))
        found = await self._wait_for_news(fetch)
        began_s = asyncio.get_running_loop().time()
        try:
            told = FetchResponse(tuple([part.result for part in found.parts]))
            total = sum(part.result.body_bytes for part in found.parts)
            pieces = [piece for part in found.parts for piece in part.pieces]
            await self._sender.send(encode_response(request.correlation_id, told, body_length=total), pieces)
            if found.parts:
                self._fetch_s.observe(asyncio.get_running_loop().time() - began_s)
        finally:
            unpin_all(self._files, found.pinned)

    async def _wait_for_news(self, fetch: FetchRequest) -> _Round:
        """News, waited for as long as the request says, or until the peer asks for something else.

        That a partition had nothing of what is wanted is no news, unless the reader has caught up with it: it is told
        when the waiting ends, or when so much was looked through that others are to have a turn.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + fetch.wait_ms_max / 1000
        skipped: dict[PartitionKey, _Part] = {}
        cost_left = SCAN_COST_MAX
        while True:
            found = await self._look(fetch, cost_left)
            cost_left -= found.cost
            skipped |= {part.result.key: part for part in found.parts if not part.is_news}
            if any(part.is_news for part in found.parts):
                break
            unpin_all(self._files, found.pinned)
            found = _Round([], ())
            if cost_left <= 0 or self._is_urgent():
                break
            if not await self._wait(deadline_s):
                break
        told = {part.result.key for part in found.parts}
        return found._replace(parts=[*found.parts, *(part for key, part in skipped.items() if key not in told)])

    async def _wait(self, deadline_s: float) -> bool:
        """Wait until there may be news; False when there are none by the deadline."""
        if self._session.has_ready:
            return True
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._session.news.wait()
        except TimeoutError:
            return False
        return True

    async def _look(self, fetch: FetchRequest, cost_max: int) -> _Round:
        """What there is now; the files of what is to be sent are pinned."""
        found, pinned = pin_news(self._session.collect(fetch.bytes_max, cost_max), self._files, self._session)
        try:
            if fetch.verify:
                whole = [news for news in found if news.matcher is None]
                checked = await verified(whole, pinned, self._executor, self._session)
                of_news = dict(zip(map(id, whole), checked, strict=True))
                found = [of_news.get(id(news), news) for news in found]
            return await self._filter(found, pinned, fetch.bytes_max, cost_max)
        except BaseException:
            unpin_all(self._files, pinned)
            raise

    async def _filter(
        self, found: Sequence[FetchFound], pinned: Sequence[tuple[File, Slice]], bytes_max: int, cost_max: int
    ) -> _Round:
        of_slice = {id(piece): (file, piece) for file, piece in pinned}
        bytes_left = bytes_max - sum(news.result.body_bytes for news in found)
        parts: list[_Part] = []
        cost = 0
        for news in found:
            pieces = [of_slice[id(piece)] for piece in news.slices]
            if news.matcher is None or not pieces:
                parts.append(_Part(news.result, pieces))
            elif cost < cost_max and (bytes_left > 0 or not parts):
                filtering = Filtering(news.matcher, pieces, bytes_left, cost_max - cost)
                parts.append(await self._filtered(news, filtering))
                bytes_left -= filtering.body_bytes
                cost += filtering.cost
        return _Round(parts, pinned, cost)

    async def _filtered(self, news: FetchFound, filtering: Filtering) -> _Part:
        try:
            await filtered(filtering, self._executor)
        except (SegmentCorruptError, OSError) as error:
            return _Part(self._session.unreadable(news, error).result, ())
        assert filtering.last is not None, "one batch always fits"
        has_caught_up = self._session.advance(news, filtering.last)
        result = news.result._replace(body_bytes=filtering.body_bytes, next_offset=filtering.next_offset)
        return _Part(result, filtering.pieces, has_caught_up or bool(filtering.pieces))
