"""What tasks stage: objects, or files, of sections, one or more for each partition, with the chunks of it.

Where they are is for `liftpy_spark.sink.place` to say. Staged objects are garbage as soon as their batch is in the
stream, and from the beginning where no decision names them: those of tasks that failed, or ran twice. What a commit and
an abort leave behind is collected by age.
"""

from __future__ import annotations

import time
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

import google_crc32c

from liftpy_bucket.errors import ObjectMissingError
from liftpy_bucket.staging.section import SECTION_BYTES_MAX, STAGING, SUBJECTS_MAX, Section
from liftpy_bucket.staging.section_format import encode_section
from liftpy_spark.sink.decision import SinkBatch
from liftpy_spark.sink.directory import DirectoryPlace
from liftpy_spark.sink.place import BucketPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from liftpy_bucket.staging.section import RowChunk
    from liftpy_bucket.store.object_store import Entry, ObjectStore
    from liftpy_spark.sink.place import StagingPlace

__all__ = [
    "collect_staging",
    "directory_leftovers",
    "exists",
    "place_of",
    "remove_staged",
    "stage",
    "staging_leftovers",
]

_DELETE_AT_ONCE: Final = 1_000
_SECTION_BYTES: Final = SECTION_BYTES_MAX // 2  # so that there is room for one more chunk
_PLAIN_BYTES: Final = 128 * 1024 * 1024  # before anything is compressed; leaders take twice as much
_TOLD_CHUNK_BYTES_MIN: Final = 4 * 1024  # on average; the message that says where a chunk is has some hundred bytes
_NAMES_IN_KEY: Final = 6  # spark, staging, uuid, application, batch, object


def place_of(store: ObjectStore, directory: str | None) -> StagingPlace:
    """Where rows are staged.

    Args:
        store: Object store of the bucket.
        directory: Directory in place of the bucket; None: the bucket.
    """
    return BucketPlace(store) if directory is None else DirectoryPlace(directory)


def stage(place: StagingPlace, key: str, chunks: Iterable[RowChunk], nonce: str) -> list[Section]:
    """Write chunks as one object; each is taken, encoded and let go before the next one.

    Args:
        place: Place to stage in.
        key: Key of the object; never written twice.
        chunks: Ordered by partition, at least one.
        nonce: Nonce of this write.

    Raises:
        StoreError: it could not be written.
    """
    sections: list[Section] = []

    def encoded() -> Iterator[pa.Buffer | bytes]:
        start = 0
        for partition, share in groupby(chunks, lambda chunk: chunk.partition):
            for first in share:
                draft = _Draft()
                for part in encode_section(draft.chunks(chain([first], share))):
                    draft.length += len(part)
                    draft.crc = google_crc32c.extend(draft.crc, part)
                    yield part
                sections.append(draft.section(key, partition, start))
                start += draft.length

    place.create(key, encoded(), nonce)
    return sections


class _Draft:
    """A section that is written.

    Attributes:
        length: Its bytes so far.
        crc: CRC-32C of them.
    """

    def __init__(self) -> None:
        self.length = self.crc = 0
        self._rows = self._plain = 0
        self._subjects: list[str] = []

    def chunks(self, chunks: Iterable[RowChunk]) -> Iterator[RowChunk]:
        """As many chunks as a leader reads at once; each of them is written before the next one is taken."""
        for chunk in chunks:
            self._rows += chunk.records.num_rows
            self._plain += chunk.records.nbytes
            self._subjects.append(chunk.subject)
            yield chunk
            if self.length >= _SECTION_BYTES or self._plain >= _PLAIN_BYTES:
                return

    def section(self, key: str, partition: int, start: int) -> Section:
        """The section, when it is written."""
        count = len(self._subjects)
        is_told = self.length >= _TOLD_CHUNK_BYTES_MIN * count and count <= SUBJECTS_MAX
        subjects = tuple(self._subjects) if is_told else ()
        return Section(key, partition, start, self.length, self._rows, count, self.crc, subjects)


def remove_staged(place: StagingPlace, batch: SinkBatch) -> None:
    """Delete everything that was staged for a batch, also by tasks that failed.

    Raises:
        StoreError: it can not be done.
    """
    _delete(place, (entry.key for entry in place.entries(batch.staging_prefix)))


def collect_staging(store: ObjectStore, older_than_s: float, now_ns: int | None = None) -> int:
    """Delete staged objects that nobody needs any more, as `staging_leftovers` finds them.

    Args:
        store: Object store of the bucket.
        older_than_s: Age, as for `staging_leftovers`.
        now_ns: Time, as for `staging_leftovers`; by default that of this machine.

    Returns:
        How many objects were deleted.

    Raises:
        StoreError: the store does not do it.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    return _delete(BucketPlace(store), (entry.key for entry in staging_leftovers(store, older_than_s, now_ns)))


def staging_leftovers(store: ObjectStore, older_than_s: float, now_ns: int, prefix: str = "") -> Iterator[Entry]:
    """Staged objects that nobody needs any more: what failed, aborted and repeated batches have left.

    What the decision of a batch that is not done names stays, however old it is, as long as the batch may be executed
    again.

    Args:
        store: Object store of the bucket.
        older_than_s: Younger objects stay, since their batch may still be on its way: more than a batch ever takes.
        now_ns: Time by the clock of the store, ns since the epoch.
        prefix: Prefix of the uuids of streams; "": of all.

    Raises:
        StoreError: the store does not answer.
    """
    return _leftovers(store, store.list(f"{STAGING}{prefix}"), older_than_s, now_ns)


def directory_leftovers(
    store: ObjectStore, directory: str, is_ours: Callable[[str], bool], older_than_s: float, now_ns: int
) -> Iterator[Entry]:
    """Staged files that nobody needs any more, as `staging_leftovers` finds objects.

    Args:
        store: Object store of the bucket that has the decisions.
        directory: Where the files are.
        is_ours: Whether the stream with a uuid is one whose decisions are in this bucket. Clusters may share a
            directory, and this bucket does not tell what another one has decided; so files of other streams stay.
        older_than_s: Age, as for `staging_leftovers`.
        now_ns: Time by the clock of the directory, ns since the epoch.

    Raises:
        StoreError: the store or the directory does not answer.
    """
    entries = DirectoryPlace(directory).entries(STAGING)
    known: dict[str, bool] = {}
    ours = []
    for entry in entries:
        uuid = entry.key.removeprefix(STAGING).partition("/")[0]
        if uuid not in known:
            known[uuid] = is_ours(uuid)
        if known[uuid]:
            ours.append(entry)
    return _leftovers(store, iter(ours), older_than_s, now_ns)


def _leftovers(store: ObjectStore, entries: Iterator[Entry], older_than_s: float, now_ns: int) -> Iterator[Entry]:
    horizon_ns = now_ns - int(older_than_s * 1e9)
    looked_at, is_pending = "", False
    for entry in entries:
        parts = entry.key.split("/")
        if entry.modified_ns >= horizon_ns or len(parts) != _NAMES_IN_KEY or not parts[4].isdigit():
            continue
        batch = SinkBatch(stream="", uuid=parts[2], application=parts[3], number=int(parts[4]))
        if batch.staging_prefix != looked_at:  # those of a batch stand side by side
            looked_at = batch.staging_prefix
            is_pending = (
                not batch.is_single  # which nobody can execute again
                and exists(store, batch.decision_key)
                and not exists(store, batch.done_key)
            )
        if not is_pending:
            yield entry


def exists(store: ObjectStore, key: str) -> bool:
    """Whether there is such an object.

    Raises:
        StoreError: the store does not say.
    """
    try:
        store.head(key)
    except ObjectMissingError:
        return False
    return True


def _delete(place: StagingPlace, keys: Iterator[str]) -> int:
    """Delete what is listed, some at a time: the list itself is as long as it is."""
    found: list[str] = []
    count = 0
    for key in keys:
        found.append(key)
        if len(found) == _DELETE_AT_ONCE:
            place.delete(found)
            count += len(found)
            found = []
    if found:
        place.delete(found)
    return count + len(found)
