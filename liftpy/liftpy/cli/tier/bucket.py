"""The bucket as commands reach it: by its own address, with no node in between."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

import typer

from liftpy.cli.gathering import gathered
from liftpy.cli.run import fail
from liftpy.cli.variables import tell_misspelt
from liftpy_client.errors import UsageError
from liftpy_envelope.errors import ConfigError, LiftError
from liftpy_envelope.settings import from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from liftpy_bucket.layout import PartitionPath
    from liftpy_bucket.manifest.catalog import CatalogFile, CatalogStream, LoadedCatalog
    from liftpy_bucket.store.counting import CountingStore
    from liftpy_bucket.store.s3_settings import S3Settings

__all__ = [
    "ANYWHERE",
    "Alone",
    "BucketUrl",
    "Endpoint",
    "FoundStream",
    "ObjectBytes",
    "OpenBucket",
    "PartitionOption",
    "Place",
    "Region",
    "Where",
    "at_bucket",
    "check_url",
    "new_id",
    "now_ns",
    "with_bucket",
]

T = TypeVar("T")

_FLAGS: Final = {"url": "bucket"}
_ONLY_VARIABLES: Final = ("addressing_style", "ca_file", "checksums", "quoted_etags", "sign_payload", "verify")

BucketUrl = Annotated[
    str | None,
    typer.Option(
        "--bucket", metavar="S3://...", help="URL of the bucket.", envvar="LIFTPY_TIER_URL", show_default=False
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="Endpoint URL of a store other than AWS.", envvar="LIFTPY_TIER_ENDPOINT", show_default=False),
]
Region = Annotated[
    str | None, typer.Option(help="Region of the bucket.", envvar="LIFTPY_TIER_REGION", show_default=False)
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.", show_default=False)
]
Alone = Annotated[bool, typer.Option("--alone", help="Confirm that no node writes to this bucket.", show_default=False)]
ObjectBytes = Annotated[str, typer.Option("--object-bytes", help="Target size of merged objects.")]

_UUID: Final = re.compile("[0-9a-f]{32}")
_NAMES_SHOWN_MAX: Final = 5
_INTERRUPT_EXIT: Final = 130


class Where(NamedTuple):
    """What the command line says of the bucket."""

    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None


ANYWHERE: Final = Where()
"""Where nothing is said of the bucket."""


def _options() -> list[inspect.Parameter]:
    kinds: dict[str, Any] = {"bucket": BucketUrl, "endpoint": Endpoint, "region": Region}
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]


at_bucket = gathered("where", _options(), lambda given: Where(given["bucket"], given["endpoint"], given["region"]))
"""Gives a command the options of the bucket; it gets them as `where`."""


class FoundStream(NamedTuple):
    """A stream of the catalog."""

    uuid: str
    stream: CatalogStream


class Place(NamedTuple):
    """A partition in the bucket.

    Attributes:
        label: `name/partition`, for people.
        path: Path of the file.
    """

    label: str
    path: PartitionPath


class OpenBucket:
    """A bucket, and what its catalog says.

    Args:
        store: The bucket; requests are counted.
        settings: How it is reached.

    Attributes:
        shown: Name of the bucket, for messages.

    Raises:
        ForeignBucketError: there is nothing of liftpy below this prefix.
        TierError: it cannot be read.
    """

    def __init__(self, store: CountingStore, settings: S3Settings) -> None:
        from liftpy_bucket.errors import ForeignBucketError
        from liftpy_bucket.manifest.catalog import CatalogFile

        self.store = store
        self.settings = settings
        self.shown = settings.shown
        self.catalog_file: CatalogFile = CatalogFile(store, new_id=new_id)
        loaded = self.catalog_file.load()
        if loaded is None:
            raise ForeignBucketError(
                f"{self.shown} has no catalog of liftpy: is the prefix right? A cluster writes its catalog some "
                "seconds after it was started with the bucket"
            )
        self.loaded: LoadedCatalog = loaded

    def stream(self, name: str) -> FoundStream:
        """A stream by its name; by its uuid also one that was deleted.

        Raises:
            LiftError: there is none.
        """
        streams = self.loaded.catalog.streams
        if _UUID.fullmatch(name) and name in streams:
            return FoundStream(name, streams[name])
        for uuid, stream in streams.items():
            if stream.name == name and stream.deleted_ns is None:
                return FoundStream(uuid, stream)
        deleted = [uuid for uuid, stream in streams.items() if stream.name == name]
        if deleted:
            raise LiftError(
                f"stream {name} was deleted; what the bucket still has of it is reached by its uuid, {deleted[-1]}"
            )
        raise LiftError(f"the bucket has no stream {name!r:.100}: {_shown_names(self.streams())}")

    def streams(self) -> list[FoundStream]:
        """All that were not deleted, by name."""
        found = (FoundStream(*each) for each in self.loaded.catalog.streams.items())
        return sorted((each for each in found if each.stream.deleted_ns is None), key=lambda each: each.stream.name)

    def places(self, name: str | None, partition: int | None = None) -> list[Place]:
        """The partitions of a stream, or one of them; of all streams where none is named.

        Raises:
            LiftError: there is no such stream or partition.
        """
        if name is None:
            if partition is not None:
                raise UsageError("--partition: say of which stream")
            return [place for found in self.streams() for place in _places(found, range(found.stream.partitions))]
        found = self.stream(name)
        if partition is not None and partition >= found.stream.partitions:
            raise UsageError(f"stream {found.stream.name} has partitions 0 to {found.stream.partitions - 1}")
        return _places(found, range(found.stream.partitions) if partition is None else [partition])


def _places(found: FoundStream, partitions: Sequence[int]) -> list[Place]:
    from liftpy_bucket.layout import PartitionPath

    return [Place(f"{found.stream.name}/{number}", PartitionPath(found.uuid, number)) for number in partitions]


def _shown_names(streams: Sequence[FoundStream]) -> str:
    names = [each.stream.name for each in streams if not each.stream.name.startswith("__")]
    if not names:
        return "it has none yet"
    more = len(names) - _NAMES_SHOWN_MAX
    return "it has " + ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def new_id() -> str:
    """A name that nobody had before."""
    return uuid4().hex


def _need_packages() -> None:
    """Say what is missing where the packages for the bucket are not installed.

    Raises:
        LiftError: they are not.
    """
    try:
        import liftpy_bucket.reading.version
        import liftpy_bucket.store.s3  # noqa: F401 - here, where it can be said what is missing
    except ImportError as error:
        if (error.name or "").startswith("liftpy"):
            raise  # it is not a package that is missing
        raise LiftError(f"the bucket needs more packages: pip install 'liftpy[s3]' ({error.name})") from None


def check_url(url: str | None) -> None:
    """See that `--bucket` is the address of a bucket, where somebody else opens it.

    Raises:
        ConfigError: it is not.
    """
    from liftpy_bucket.store.s3_settings import S3Settings

    if url is None:
        return
    try:
        S3Settings(url=url)
    except ConfigError as error:
        raise _of_flag(error) from None


def _of_flag(error: ConfigError) -> ConfigError:
    """The same error, of the option that says this setting."""
    return ConfigError(f"--{_FLAGS.get(error.field, error.field)}", str(error).removeprefix(f"{error.field}: "))


def open_bucket(where: Where) -> OpenBucket:
    """Open the bucket that the command line, or the environment, names.

    Raises:
        UsageError: none is named.
        ConfigError: its address is not one.
        TierError: it cannot be read, or is not one of liftpy.
    """
    tell_misspelt(os.environ)
    if not where.url:
        raise UsageError("which bucket? Say --bucket s3://bucket/prefix, or set LIFTPY_TIER_URL")
    _need_packages()
    from liftpy_bucket.store.counting import CountingStore
    from liftpy_bucket.store.s3 import S3Store
    from liftpy_bucket.store.s3_settings import S3Settings

    given = [name for name in _ONLY_VARIABLES if _variable(name) in os.environ]
    plain = {
        "url": where.url,
        "endpoint": where.endpoint or None,
        "region": where.region or None,
        "profile": where.profile,
    }
    try:
        settings = S3Settings.from_plain(
            plain | {name: from_text(S3Settings, name, os.environ[_variable(name)]) for name in given}
        )
        store = S3Store(settings)
    except ConfigError as error:
        if error.field not in given:
            raise _of_flag(error) from None
        raise ConfigError(_variable(error.field), str(error).removeprefix(f"{error.field}: ")) from None
    return OpenBucket(CountingStore(store), settings)


def _variable(name: str) -> str:
    return f"LIFTPY_TIER_{name.upper()}"


def with_bucket(where: Where, work: Callable[[OpenBucket], T], *, as_json: bool) -> T:
    """Do something with the bucket. What is the user's or the store's fault becomes a message and an exit code."""
    try:
        return work(open_bucket(where))
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPT_EXIT) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has seen enough
        raise typer.Exit(0) from None
    except (LiftError, OSError) as error:
        fail(error, as_json=as_json)


def now_ns() -> int:
    """The wall clock, ns since the epoch."""
    return time.time_ns()
