"""The bucket as driver and tasks reach it; credentials come from the environment of each machine."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_bucket.store.s3_settings import S3Settings

__all__ = ["is_within", "store_of"]

_KEPT_MAX: Final = 4


def is_within(inner: S3Settings, outer: S3Settings) -> bool:
    """Whether all that is put into one place lies below the prefix of another; also where both are the same."""
    stores = [(each.bucket, (each.endpoint or "").rstrip("/")) for each in (inner, outer)]
    return stores[0] == stores[1] and inner.prefix.startswith(outer.prefix)


@lru_cache(_KEPT_MAX)
def store_of(settings: S3Settings) -> ObjectStore:
    """The bucket; there is one store per process, as workers are used again.

    Raises:
        ConfigError: a file that the settings name is not here.
        StoreDeniedError: what the environment says of credentials can not be used.
    """
    from liftpy_bucket.store.s3 import S3Store  # noqa: PLC0415 (needs packages that only buckets need)

    return S3Store(settings)
