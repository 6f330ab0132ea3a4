"""The job that reads what the sink of Spark staged: a section becomes batches as publishers send them, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from liftpy_bucket.errors import StagingDamagedError
from liftpy_bucket.staging.directory import DirectorySource
from liftpy_bucket.staging.section import Section
from liftpy_bucket.staging.source import BucketSource, load_section
from liftpy_envelope.envelope import encode_batch
from liftpy_log.storage.disk import OsDisk
from liftpy_server.tier.requests import ReadStagedResult, StagedBatch

if TYPE_CHECKING:
    from liftpy_bucket.staging.source import SectionSource
    from liftpy_bucket.store.object_store import ObjectStore
    from liftpy_log.storage.disk import File
    from liftpy_server.tier.requests import ReadStagedJob

__all__ = ["read_staged"]

_FILE_BYTES_MAX: Final = 256 * 1024 * 1024  # what is compressed may be much smaller in the bucket


def read_staged(store: ObjectStore, request: ReadStagedJob) -> ReadStagedResult:
    """Write the chunks of a section to a file, each as a batch envelope without options.

    Args:
        store: Object store of the bucket.
        request: What is wanted.

    Raises:
        StagingDamagedError: it is gone, or not as it was written, or too large.
        StoreError: the bucket, or the directory, can not be read.
        OSError: the file can not be written; then there is none.
    """
    path = Path(request.path)
    section = Section(request.key, 0, request.start, request.length, 0, request.chunks, request.crc)
    try:
        file = OsDisk().open(path, create=True)
        try:
            return ReadStagedResult(batches=_write(_source(store, request.directory), section, file))
        finally:
            file.close()
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _source(store: ObjectStore, directory: str | None) -> SectionSource:
    return BucketSource(store) if directory is None else DirectorySource(directory, "tier.staging_directory")


def _write(source: SectionSource, section: Section, file: File) -> tuple[StagedBatch, ...]:
    batches: list[StagedBatch] = []
    size = 0
    for chunk in load_section(source, section):
        envelope = encode_batch(dict(zip(chunk.records.schema.names, chunk.records.columns, strict=True)))
        if size + len(envelope) > _FILE_BYTES_MAX:
            raise StagingDamagedError(
                f"{source.name(section.key)}: {section.length} bytes from {section.start} on are more than "
                f"{_FILE_BYTES_MAX} bytes of records, which no sink stages in one piece"
            )
        file.write(size, [envelope])
        batches.append(StagedBatch(subject=chunk.subject, position=size, length=len(envelope)))
        size += len(envelope)
    return tuple(batches)
