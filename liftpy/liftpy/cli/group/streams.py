"""The streams that a consumer group reads, as far as there are any."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.admin.admin import Admin
    from liftpy_client.admin.details import StreamDetails

__all__ = ["find_streams"]

_AT_ONCE: Final = 8


async def find_streams(lift: Admin, names: Iterable[str]) -> dict[str, StreamDetails]:
    """Those of the streams that there are, by name.

    Raises:
        AdminError, NodeUnavailableError: nobody can tell.
    """
    few = asyncio.Semaphore(_AT_ONCE)

    async def find(name: str) -> StreamDetails | None:
        async with few:
            try:
                return await lift.stream_info(name)
            except AdminError as error:
                if error.code is not ErrorCode.UNKNOWN_STREAM:
                    raise
                return None  # what is committed outlives its stream

    found = await asyncio.gather(*map(find, names))
    return {stream.name: stream for stream in found if stream is not None}
