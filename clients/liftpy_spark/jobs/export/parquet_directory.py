"""Exporting to a directory of Parquet files: names say which offsets they hold, so that nothing comes twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from liftpy_spark.jobs.export.files import ExportPlaceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_spark.jobs.export.driver import ExportRange
    from liftpy_spark.jobs.export.files import ExportPlace
    from liftpy_spark.jobs.export.task import ExportedFile

__all__ = ["ParquetDirectory", "has_exported"]

_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9]+)-([0-9]{20})-([0-9]{20})\.parquet")
_DELTA_LOG: Final = "_delta_log"


def has_exported(place: ExportPlace) -> bool:
    """Whether there are files of an export to Parquet.

    Raises:
        StoreError, ExportPlaceError: it can not be listed.
    """
    return any(_NAME.fullmatch(name) for name in place.names())


class ParquetDirectory:
    """Exports to a directory of Parquet files. Only one export at a time may write to it.

    Args:
        place: Where it is.

    Raises:
        StoreError, ExportPlaceError: it can not be listed, or there is a Delta table.
    """

    def __init__(self, place: ExportPlace) -> None:
        if place.has_directory(_DELTA_LOG):
            raise ExportPlaceError(
                f"there is a Delta table at {place.url}, whose files would be read together with those of this export: "
                "say --format delta, or export to a place of its own"
            )
        self.place = place
        self._covered: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for name in sorted(place.names()):
            found = _NAME.fullmatch(name)
            if found is not None:
                ranges = self._covered.setdefault((found[1], int(found[2])), [])
                ranges.append((int(found[3]), int(found[4])))

    def covered(self, path: PartitionPath) -> list[tuple[int, int]]:
        """The ranges of a partition that there are files of."""
        return sorted(self._covered.get(path, []))

    def file_name(self, path: PartitionPath, start: int, end: int) -> str:
        """How the file of a range is called."""
        return f"{path.uuid}-{path.partition}-{start:020d}-{end:020d}.parquet"

    def commit(self, ranges: Sequence[ExportRange], files: Sequence[ExportedFile]) -> None:
        """A file is part of it as soon as it is there."""
