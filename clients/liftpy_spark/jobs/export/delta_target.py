"""Exporting to a Delta table: every commit says up to which offset the table has each partition.

That is the version of an application transaction of the partition. Two exports at the same time can not both commit:
the table refuses the second one.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from liftpy_envelope.errors import LiftError
from liftpy_spark.jobs.export.files import ExportPlaceError
from liftpy_spark.jobs.export.parquet_directory import has_exported
from liftpy_spark.reading.schema import arrow_schema, source_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_spark.jobs.export.driver import ExportRange
    from liftpy_spark.jobs.export.files import ExportPlace
    from liftpy_spark.jobs.export.task import ExportedFile

__all__ = ["DeltaError", "DeltaTarget"]

_REASON_MAX: Final = 300
_DRESS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")  # the package colours what it says, for terminals
_FRAMES: Final = re.compile(r"(?s)\n\s*0: .*")  # and tells where in its own code that was


class DeltaError(LiftError):
    """The Delta table can not be read or written."""


class DeltaTarget:
    """Exports to a Delta table. Each commit records the exported offset of each partition.

    Args:
        place: Where the table is, or is to be made.
        include_headers: Whether it has a column `headers`.
        creates: Whether it is made where there is none.

    Raises:
        DeltaError: it can not be opened, has other columns, or the package is not installed.
        ExportPlaceError: there is no table, but files of an export to Parquet.
        StoreError: the place can not be listed.
    """

    def __init__(self, place: ExportPlace, *, include_headers: bool, creates: bool) -> None:
        self.place = place
        self._schema = arrow_schema(source_schema(include_headers))
        try:
            import deltalake  # noqa: PLC0415 (only these exports need it)
        except ImportError:
            raise DeltaError("an export to Delta needs one more package: pip install deltalake") from None
        self._package = deltalake
        self._table: Any = None
        try:
            if deltalake.DeltaTable.is_deltatable(place.url, self._options()):
                self._table = deltalake.DeltaTable(place.url, storage_options=self._options())
            elif has_exported(place):
                raise ExportPlaceError(
                    f"there are files of another export at {place.url}, which would be read together with those of a "
                    "Delta table: say --format parquet, or export to a place of its own"
                )
            elif creates:
                self._table = deltalake.DeltaTable.create(
                    place.url, self._schema, mode="ignore", storage_options=self._options()
                )
        except (deltalake.exceptions.DeltaError, OSError) as error:
            raise self._failure("opened", error) from None
        self._check_columns()

    def _options(self) -> dict[str, str] | None:
        settings = self.place.settings
        if settings is None:
            return None
        given = {"AWS_ENDPOINT_URL": settings.endpoint, "AWS_REGION": settings.region}
        if settings.endpoint is not None:
            given |= {"AWS_REGION": settings.region or "us-east-1"}
            given |= {"AWS_ALLOW_HTTP": str(settings.endpoint.startswith("http://")).lower()}
        return {name: text for name, text in given.items() if text is not None}

    def _failure(self, what: str, error: Exception) -> DeltaError:
        said = " ".join(_FRAMES.sub("", _DRESS.sub(" ", str(error))).split())
        return DeltaError(f"the Delta table {self.place.url} could not be {what}: {said[:_REASON_MAX]}")

    def _check_columns(self) -> None:
        """See that the table has the columns of an export: whoever reads others would not get what the files have."""
        if self._table is None:
            return
        there, wanted = ({field.name: field.type for field in schema.fields} for schema in self._schemas())
        if there.keys() != wanted.keys():
            raise DeltaError(
                f"the Delta table {self.place.url} has the columns {', '.join(there)}; an export has "
                f"{', '.join(wanted)}: export to a table of its own"
            )
        other = [name for name, kind in wanted.items() if there[name] != kind]
        if other:
            shown = ", ".join(f"{name} is {_kind(there[name])} and not {_kind(wanted[name])}" for name in other)
            raise DeltaError(
                f"the Delta table {self.place.url} has columns of other types: {shown}; export to a table of its own"
            )

    def _schemas(self) -> tuple[Any, Any]:
        return self._table.schema(), self._package.Schema.from_arrow(self._schema)

    def covered(self, path: PartitionPath) -> list[tuple[int, int]]:
        """All up to where the last commit of the partition says."""
        end = None if self._table is None else self._table.transaction_version(_application(path))
        return [] if end is None else [(0, end)]

    def file_name(self, path: PartitionPath, start: int, end: int) -> str:
        """How a file of a range is called; no two attempts have the same."""
        return f"{path.uuid}-{path.partition}-{start:020d}-{end:020d}-{uuid4().hex}.parquet"

    def commit(self, ranges: Sequence[ExportRange], files: Sequence[ExportedFile]) -> None:
        """Commit files, and up to where they go.

        Raises:
            DeltaError: it was not committed: another export was first, or the table can not be written.
        """
        now_ms = time.time_ns() // 10**6
        added = [
            self._package.transaction.AddAction(
                file.name, file.size, {}, now_ms, data_change=True, stats=file.statistics
            )
            for file in files
            if file.records
        ]
        reached = {_application(each.path): each.end for each in ranges}
        properties = self._package.CommitProperties(
            app_transactions=[self._package.Transaction(name, end, now_ms) for name, end in reached.items()]
        )
        try:
            self._table.create_write_transaction(added, "append", self._table.schema(), commit_properties=properties)
            self._table.update_incremental()
        except (self._package.exceptions.DeltaError, OSError) as error:
            raise self._failure("written", error) from None


def _application(path: PartitionPath) -> str:
    return f"liftpy-{path.uuid}-{path.partition}"


def _kind(kind: Any) -> str:
    """A type of a column, for people: those that are not nested have a name."""
    return str(getattr(kind, "type", kind))
