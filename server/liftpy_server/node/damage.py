"""Errors of the file system, told as what they mean for the data directory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from liftpy_log.errors import DataDirError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_log.data_dir import DataDir

__all__ = ["damage_of"]


@contextmanager
def damage_of(data_dir: DataDir) -> Iterator[None]:
    """What the file system refuses while the node opens its data is told as the data directory's fault."""
    try:
        yield
    except OSError as error:
        raise DataDirError(f"data directory {data_dir.root} can not be used: {error}") from error
