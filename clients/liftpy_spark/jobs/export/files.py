"""Where exported files are: a directory that all machines see, or a prefix of a bucket.

A file appears whole or not at all, whatever happens to who writes it.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from pathlib import Path
from shutil import copyfileobj
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from liftpy_bucket.errors import TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.s3_settings import S3Settings
from liftpy_envelope.errors import ConfigError, LiftError
from liftpy_spark.jobs.access import is_within, store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ExportPlace", "ExportPlaceError", "check_apart", "place_of"]

_S3: Final = "s3://"
_FILE: Final = "file://"
_DRAFT: Final = re.compile(r"\.[0-9a-f]{32}-[0-9]+-[0-9]{20}-[0-9]{20}(-[0-9a-f]{32})?\.parquet\.[0-9a-f]{32}")
_DRAFT_AGE_S: Final = 3_600.0


class ExportPlaceError(LiftError):
    """Files can not be put where they are to go."""


class ExportPlace(NamedTuple):
    """The directory or bucket prefix that receives exported files.

    Attributes:
        directory: An absolute path; "" where it is in a bucket.
        settings: Settings of the bucket.
    """

    directory: str
    settings: S3Settings | None = None

    def names(self) -> Iterator[str]:
        """Names of the files in the place, without further directories.

        Raises:
            StoreError, ExportPlaceError: they can not be listed.
        """
        if self.settings is not None:
            yield from (entry.key for entry in store_of(self.settings).list("") if "/" not in entry.key)
            return
        try:
            yield from (path.name for path in Path(self.directory).iterdir())
        except FileNotFoundError:
            return  # it is made with the first file
        except OSError as error:
            raise self._failure(error) from None

    def has_directory(self, name: str) -> bool:
        """Whether there is a directory of this name.

        Raises:
            StoreError: nobody can tell.
        """
        if self.settings is not None:
            return next(store_of(self.settings).list(f"{name}/"), None) is not None
        return (Path(self.directory) / name).is_dir()

    def put(self, name: str, file: IO[bytes], nonce: str) -> None:
        """Put a file; where there is one of this name, it holds the same records, and one of the two stays.

        Args:
            name: Name of the file.
            file: What it holds; not empty.
            nonce: Nonce of this attempt.

        Raises:
            StoreError, ExportPlaceError: it could not be put there.
        """
        file.flush()
        if self.settings is None:
            self._put_here(name, file, nonce)
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as body:
            try:
                create_once(store_of(self.settings), name, body, nonce)
            except TakenError:
                return  # an earlier attempt at the same range

    def clear(self) -> None:
        """Delete what attempts that were killed left of files in a directory, an hour after they wrote to it last.

        In a bucket there is nothing of the kind.

        Raises:
            ExportPlaceError: it can not be looked at, or not be deleted.
        """
        if self.settings is not None:
            return
        oldest = time.time() - _DRAFT_AGE_S
        try:
            for draft in Path(self.directory).glob(".*"):
                if _DRAFT.fullmatch(draft.name) and draft.stat().st_mtime < oldest:
                    draft.unlink(missing_ok=True)
        except FileNotFoundError:
            return  # who wrote it was at work still, or another export has deleted it
        except OSError as error:
            raise self._failure(error) from None

    def _put_here(self, name: str, file: IO[bytes], nonce: str) -> None:
        directory = Path(self.directory)
        draft = directory / f".{name}.{nonce}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file.seek(0)
            try:
                with draft.open("xb") as sink:
                    copyfileobj(file, sink, 1 << 20)
                    sink.flush()
                    os.fsync(sink.fileno())
                draft.replace(directory / name)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> ExportPlaceError:
        return ExportPlaceError(f"{error.filename or self.directory}: {error.strerror}")

    @property
    def url(self) -> str:
        """URL of the place, for people and other programs."""
        return self.directory if self.settings is None else self.settings.url


def check_apart(place: ExportPlace, bucket: S3Settings) -> None:
    """Check that a place does not lie in the bucket of a cluster, below its prefix.

    Raises:
        ExportPlaceError: it does.
    """
    if place.settings is not None and is_within(place.settings, bucket):
        raise ExportPlaceError(
            f"{place.url} lies below {bucket.shown}, where only liftpy may write: its nodes would refuse a bucket with "
            "objects that are not theirs. Export to another prefix, or to another bucket"
        )


def place_of(url: str, *, endpoint: str | None, region: str | None) -> ExportPlace:
    """What an address names.

    Args:
        url: `s3://bucket/prefix`, `file:///directory` or the path of a directory.
        endpoint: Endpoint of a store that is not AWS.
        region: Region of the bucket.

    Raises:
        ConfigError: it is no such address.
    """
    if url.startswith(_S3):
        try:
            return ExportPlace("", S3Settings(url=url, endpoint=endpoint, region=region))
        except ConfigError as error:
            field = {"url": "target", "endpoint": "--target-endpoint"}.get(error.field, error.field)
            raise ConfigError(field, str(error).removeprefix(f"{error.field}: ")) from None
    path = url.removeprefix(_FILE)
    if not path or "://" in path:
        raise ConfigError("target", f"{url!r:.200} is neither s3://bucket/prefix nor a directory")
    return ExportPlace(str(Path(path).absolute()))
