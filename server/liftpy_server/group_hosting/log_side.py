"""What the shell of a partition hears from its log: that it is settled, and what became of a batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from liftpy_server.group_hosting.limits import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.errors import AckErrorCode
    from liftpy_server.acks import AckTemplate
    from liftpy_server.partition import Partition

__all__ = ["Notice", "wait_settled"]


class Notice:
    """What the partition owes for a batch: a call, when it is committed or when nobody knows what became of it.

    Args:
        on_commit: everything up to the high watermark is committed.
        on_loss: told why nobody knows.
    """

    def __init__(self, on_commit: Callable[[], None], on_loss: Callable[[str], None]) -> None:
        self._on_commit = on_commit
        self._on_loss = on_loss

    def encode(self, _template: AckTemplate) -> bytes:
        """See `Owed`."""
        self._on_commit()
        return b""

    def encode_error(self, _template: AckTemplate, _code: AckErrorCode, description: str) -> bytes:
        """See `Owed`."""
        self._on_loss(description)
        return b""


async def wait_settled(partition: Partition, is_leading: Callable[[], bool]) -> None:
    """Wait until everything in a log is committed, and what is appended next can be.

    Args:
        partition: whose log.
        is_leading: whether this node leads it; nobody else may append then.
    """
    wake = asyncio.Event()
    while not (
        is_leading()
        and partition.is_settled
        and partition.is_accepting
        and partition.log.failure is None
        and partition.high_watermark == partition.log.log_end
    ):
        wake.clear()
        partition.wait(wake.set)
        try:
            async with asyncio.timeout(LOOK_S):
                await wake.wait()
        except TimeoutError:
            continue
        finally:
            partition.stop_waiting(wake.set)
