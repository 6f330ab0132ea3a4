"""A log of records in an object store, and nothing but the store: see `docs/howto/object-log.md`."""

from liftpy_bucket.object_log.log import ObjectLog, Record

__all__ = ["ObjectLog", "Record"]
