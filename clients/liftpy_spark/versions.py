"""Versions of Spark and pandas that are known not to work: said at once, and not by whatever breaks later."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Final

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["VersionError", "check_versions"]

_SPARK_LEAST: Final = (4, 2)
_PANDAS_BEYOND: Final = (3, 0)


class VersionError(LiftError):
    """A package is installed in a version that does not work here; the message says which does."""


def _installed(package: str) -> str:
    """The version of a package; Spark's own pyspark is not installed by pip, and says it itself.

    Raises:
        PackageNotFoundError: there is none.
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if package != "pyspark":
            raise
    try:
        return str(importlib.import_module(package).__version__)
    except ImportError:
        raise metadata.PackageNotFoundError(package) from None


def check_versions(version_of: Callable[[str], str] = _installed) -> None:
    """Check that the installed versions of Spark and pandas work.

    Executors need no pandas, so it may be missing.

    Args:
        version_of: The version of a package that is installed.

    Raises:
        VersionError: one of them does not work.
    """
    spark = _version("pyspark", version_of)
    if spark is not None and _numbers(spark) < _SPARK_LEAST:
        raise VersionError(
            f"pyspark {spark} is too old: its Python data sources have no Arrow sink and no rate limits; install one "
            "that works: pip install 'pyspark>=4.2,<4.4'"
        )
    pandas = _version("pandas", version_of)
    if pandas is not None and _numbers(pandas) >= _PANDAS_BEYOND:
        raise VersionError(
            f"pandas {pandas} does not work with this pyspark; install one that does: pip install 'pandas>=2.2,<3'"
        )


def _version(package: str, version_of: Callable[[str], str]) -> str | None:
    try:
        return version_of(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: of `4.2.0.dev1` 4 and 2."""
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
