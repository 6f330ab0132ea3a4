"""What a fetch is to be sent is pinned, and checked where it is on disk if the reader found it damaged before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_log.errors import SegmentCorruptError
from liftpy_log.reader import pin_all
from liftpy_server.pull.sending import check_slice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from liftpy_log.reader import Slice
    from liftpy_log.storage.disk import File
    from liftpy_log.storage.files import FileCache
    from liftpy_server.pull.session import FetchFound, FetchSession

__all__ = ["pin_news", "verified"]


def pin_news(
    found: list[FetchFound], files: FileCache, session: FetchSession
) -> tuple[list[FetchFound], list[tuple[File, Slice]]]:
    """Pin the files of all slices; a partition whose file can not be opened says so instead."""
    pinned: list[tuple[File, Slice]] = []
    kept = []
    for news in found:
        try:
            pinned += pin_all(files, news.slices)
            kept.append(news)
        except OSError as error:
            kept.append(session.unreadable(news, error))
    return kept, pinned


async def verified(
    found: list[FetchFound], pinned: Sequence[tuple[File, Slice]], executor: Executor, session: FetchSession
) -> list[FetchFound]:
    """Check every batch on disk; a partition with a damaged one says so, and goes offline unless the bucket has it.

    Args:
        found: News of partitions.
        pinned: The files of all their slices.
        executor: Reads from the disk.
        session: Session whose news that is; the partition leaves it.
    """
    files = {id(piece): file for file, piece in pinned}
    loop = asyncio.get_running_loop()
    checked = []
    for news in found:
        try:
            for piece in news.slices:
                await loop.run_in_executor(executor, check_slice, files[id(piece)], piece)
            checked.append(news)
        except SegmentCorruptError as error:
            checked.append(session.unreadable(news, error))
    return checked
