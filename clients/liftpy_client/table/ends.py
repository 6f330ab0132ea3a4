"""Where the partitions of a stream end now, as their leaders know it: what a table must have read to be up to date."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from liftpy_client.connection.cluster import is_passing
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import NodeUnavailableError, NoStreamError, PullError, StreamGoneError
from liftpy_envelope.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_client.connection.cluster import StreamPlace
    from liftpy_client.connection.session import Session
    from liftpy_client.consumer.options import ConsumeOptions

__all__ = ["StreamEnds"]

_PAUSE_S: Final = 0.2
_GONE: Final = frozenset({ErrorCode.UNKNOWN_STREAM, ErrorCode.STREAM_RECREATED})


class StreamEnds:
    """Asks about one incarnation of a stream: the one that is there when it is asked first.

    Args:
        session: Connections and the cluster's metadata.
        stream: Name of the stream.
        partitions: Partitions to look at; None for all.
        options: Options of the consumer that reads it.
    """

    def __init__(
        self, session: Session, stream: str, partitions: Sequence[int] | None, options: ConsumeOptions
    ) -> None:
        self._session = session
        self._stream = stream
        self._finder = StartFinder(session, "new", None, partitions, options)
        self._uuid: bytes | None = None

    async def confirm(self) -> None:
        """See that the stream is the one that was there at first.

        Raises:
            NoStreamError: there was none.
            StreamGoneError: it was deleted since.
            LiftError: The leaders could not be asked.
        """
        try:
            self._check(await self._session.cluster.stream(self._stream, fresh=True))
        except NoStreamError:
            if self._uuid is None:
                raise
            raise StreamGoneError(f"stream {self._stream!r} was deleted under its table") from None

    def _check(self, place: StreamPlace) -> None:
        if self._uuid is None:
            self._uuid = place.uuid
        elif place.uuid != self._uuid:
            raise StreamGoneError(
                f"stream {self._stream!r} was deleted and created again under its table; create another table"
            )

    async def ask(self, timeout_s: float) -> dict[int, int]:
        """By partition, the offset after the last committed record.

        Raises:
            StreamGoneError: the stream was deleted.
            NodeUnavailableError: a partition has no leader that answers in time.
            LiftError: a node refuses for good.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            reason = "its leaders do not answer"
            try:
                async with asyncio.timeout_at(until_s):
                    return await self._ask()
            except (NodeUnavailableError, PullError) as error:
                if isinstance(error, PullError) and not is_passing(error.code):
                    raise
                reason = str(error)
            except TimeoutError:
                pass
            if loop.time() + _PAUSE_S >= until_s:
                raise NodeUnavailableError(f"stream {self._stream}: no node reported its end in time: {reason}")
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries

    async def _ask(self) -> dict[int, int]:
        try:
            place, positions = await self._finder.find(self._stream)
        except NoStreamError:
            await self.confirm()
            raise
        except PullError as error:
            if error.code in _GONE:
                await self.confirm()
            raise
        self._check(place)
        return {number: position.offset for number, position in positions.items()}
