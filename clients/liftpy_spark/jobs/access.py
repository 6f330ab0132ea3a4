"""The bucket as driver and tasks reach it; credentials come from the environment of each machine."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.store.s3_settings import S3Settings

__all__ = ["is_one_store", "is_within", "store_of"]

_KEPT_MAX: Final = 4


def is_within(inner: S3Settings, outer: S3Settings) -> bool:
    """Whether all that is put into one place lies below the prefix of another; also where both are the same."""
    is_one_bucket = inner.bucket == outer.bucket and is_one_store(inner, outer)
    return is_one_bucket and inner.prefix.startswith(outer.prefix)


def is_one_store(one: S3Settings, other: S3Settings) -> bool:
    """Whether two places are in one store, as far as their addresses tell."""
    return (one.endpoint or "").rstrip("/") == (other.endpoint or "").rstrip("/")


@lru_cache(_KEPT_MAX)
def store_of(settings: S3Settings) -> ObjectStore:
    """The bucket; there is one store per process, as workers are used again.

    Raises:
        ConfigError: a file that the settings name is not here.
        StoreDeniedError: what the environment says of credentials can not be used.
    """
    from liftpy_bucket.store.s3 import S3Store  # noqa: PLC0415 (needs packages that only buckets need)

    return S3Store(settings)
