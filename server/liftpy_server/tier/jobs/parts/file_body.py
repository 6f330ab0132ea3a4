"""Files without a name that objects are written into, and sent from: those that may be larger than memory."""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from liftpy_server.tier.jobs.parts.context import Context

__all__ = ["body_of"]


@contextmanager
def body_of(context: Context, file: BinaryIO) -> Iterator[memoryview]:
    """What was written to a file, to be sent.

    It is mapped. Its pages count as the worker's while they are sent, so that only some are mapped at a time.

    Args:
        context: What the jobs of the worker share.
        file: Not empty, and not written to meanwhile.
    """
    file.flush()
    size = os.fstat(file.fileno()).st_size
    with (
        context.mapped.hold(size, context.progress),
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as body,
    ):
        yield body
