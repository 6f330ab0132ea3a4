"""Answers to `follow` on one pull connection: waits for news, and sends them with the files held open meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_envelope.follow import FollowRequest, FollowResponse
from liftpy_envelope.frames import encode_response
from liftpy_log.errors import SegmentCorruptError
from liftpy_server.pull.follow_session import FollowSession
from liftpy_server.pull.sending import check_slice, pin_all, unpin_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from liftpy_envelope.errors import ErrorCode
    from liftpy_envelope.frames import Request
    from liftpy_envelope.pull import PartitionKey
    from liftpy_log.disk import File
    from liftpy_log.files import FileCache
    from liftpy_log.reader import Slice
    from liftpy_server.pull.follow_session import FollowedPartition, FollowFound
    from liftpy_server.pull.sending import ResponseSender

__all__ = ["FollowAnswers"]


class FollowAnswers:
    """See the module.

    Args:
        replicas: the partition with a key, or why there is none here.
        heard: told who asks, and when by the loop's clock, at every request.
        files: the node's open files.
        executor: reads from the disk.
        sender: to the follower.
        news: set when some partition may have news, and when the follower sends another request.
        has_request: whether another request waits for its turn.
    """

    def __init__(
        self,
        *,
        replicas: Callable[[PartitionKey], FollowedPartition | ErrorCode],
        heard: Callable[[str, float], None],
        files: FileCache,
        executor: Executor,
        sender: ResponseSender,
        news: asyncio.Event,
        has_request: Callable[[], bool],
    ) -> None:
        self._session = FollowSession(replicas, news)
        self._heard = heard
        self._files = files
        self._executor = executor
        self._sender = sender
        self._news = news
        self._has_request = has_request

    def close(self) -> None:
        """Leave every partition alone."""
        self._session.close()

    async def answer(self, request: Request) -> None:
        """Answer one request.

        Raises:
            FrameError: it is malformed.
            TimeoutError: the follower is too slow; the connection can not be used further.
            OSError: the connection or a file broke.
        """
        follow = FollowRequest.from_body(request.body)
        loop = asyncio.get_running_loop()
        self._heard(follow.node_id, loop.time())
        ends = self._session.apply(follow)
        wait_until_s = loop.time() + (0 if ends else follow.wait_ms_max / 1000)
        found = await self._wait_for_news(follow.bytes_max, request.correlation_id, wait_until_s)
        pinned: list[tuple[File, Slice]] = []
        try:
            told = [await self._prepared(news, pinned) for news in found]
            response = FollowResponse(tuple(news.result for news in told), tuple(ends))
            size = sum(piece.length for _, piece in pinned)
            await self._sender.send(
                encode_response(request.correlation_id, response.to_result(), body_length=size), pinned
            )
        finally:
            unpin_all(self._files, pinned)

    async def _wait_for_news(self, bytes_max: int, correlation_id: int, wait_until_s: float) -> list[FollowFound]:
        """News, waited for as long as the request says, or until the follower asks for something else."""
        loop = asyncio.get_running_loop()
        while not (found := self._session.collect(bytes_max, correlation_id, loop.time())):
            if self._has_request() or loop.time() >= wait_until_s:
                break
            try:
                async with asyncio.timeout_at(min(wait_until_s, self._session.due_s)):
                    await self._news.wait()
            except TimeoutError:
                continue
        return found

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
