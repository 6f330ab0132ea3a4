"""A stream in the bucket as a view for DuckDB: each object with the predicates that say which rows of it count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from liftpy.cli.tier.checks import Exported
    from liftpy_bucket.upkeep.exporting import ExportedObject

__all__ = ["view_of"]

_HEAD: Final = """\
-- Once per session, for a bucket: INSTALL httpfs; CREATE SECRET (TYPE s3, PROVIDER credential_chain);
-- with ENDPOINT 'host:port', URL_STYLE 'path', USE_SSL false (or true) in the secret where the store is not AWS S3.
-- The stream as it is now: print the view again for what comes later, and where an object is gone.
"""
_UNION: Final = "\nUNION ALL BY NAME\n"


def view_of(name: str, exported: Sequence[Exported], prefix: str) -> str:
    """The statement that makes the view; "" where there is no object.

    Args:
        name: Name of the view.
        exported: The partitions.
        prefix: What the address of every object begins with.
    """
    selects = [select for each in exported for select in _selects(each, prefix)]
    if not selects:
        return ""
    return f"{_HEAD}CREATE OR REPLACE VIEW {_identifier(name)} AS\n{_UNION.join(selects)};"


def _selects(exported: Exported, prefix: str) -> Iterator[str]:
    whole = [each for each in exported.export.objects if each.is_whole]
    if whole:  # of which some may have the column `reply`
        urls = ",\n    ".join(_text(prefix + each.key) for each in whole)
        table = f"read_parquet([\n    {urls}\n], union_by_name = true)"
        yield f"SELECT * FROM {table}"  # noqa: S608  # all of it is quoted
    for each in exported.export.objects:
        if not each.is_whole:
            yield _part(exported, each, prefix)


def _part(exported: Exported, each: ExportedObject, prefix: str) -> str:
    path = exported.place.path
    table = f"FROM read_parquet({_text(prefix + each.key)})\n"
    offsets = f'"offset" >= {each.start} AND "offset" < {each.end}'
    if not each.is_shared:
        return f"SELECT * {table}WHERE {offsets}"
    return (
        f"SELECT * EXCLUDE (stream) {table}"
        f"WHERE stream = {_text(path.uuid)} AND partition = {path.partition} AND {offsets}"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
