"""What a task of a copy does: objects are read, compared with what the manifest says of them, and written elsewhere.

An object is written whole, with one request, and only where there is none of its name; and only after every record of
it was found to be what the manifest means. If source and destination are places in one store, it is read, and then
copied by the store itself. Otherwise it passes through a file of the worker's machine, so that memory is bounded
whatever it is as large as. One that is there already, of the same size and etag, is not read again; where etags differ,
as between stores of different kinds, what is there is read and compared.
"""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple

from liftpy_bucket.errors import BucketVersionError, ObjectCorruptError, ObjectMissingError, TakenError
from liftpy_bucket.manifest.pointer_format import fragment_plain
from liftpy_bucket.objects.merging import fragment_source, member_source, merge
from liftpy_bucket.objects.pointers import StreamObjectPointer
from liftpy_bucket.reading.version import TierVersion
from liftpy_bucket.store.conditional import create_once
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.upkeep.scrubbing import scrub_piece
from liftpy_spark.jobs.access import store_of
from liftpy_spark.jobs.parts import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liftpy_bucket.objects.merging import Source
    from liftpy_bucket.reading.version import Piece
    from liftpy_bucket.store.object_store import Head, ObjectStore
    from liftpy_bucket.store.s3_settings import S3Settings
    from liftpy_spark.jobs.parts import Part

__all__ = ["CopyItem", "CopyTask", "Outcome", "copy_objects"]

Outcome = Literal["copied", "there", "missing", "corrupt"]

_CHUNK_BYTES: Final = 8 * 1024 * 1024
_ID_CHARS: Final = 32
_SUFFIX: Final = ".parquet"


class CopyItem(NamedTuple):
    """An object that the destination is to have.

    Attributes:
        part: What it is made of: one fragment of the partition's own, which stays as it is; or what lies elsewhere, and
            becomes a fragment of the partition's own.
        base: The first offset it answers for.
        end: The offset after the last one it answers for.
        is_own: Whether it stays as it is.
    """

    part: Part
    base: int
    end: int
    is_own: bool


class CopyTask(NamedTuple):
    """What a task gets.

    Attributes:
        source: Where objects are.
        target: Where they go.
        items: Items with a number of each.
    """

    source: S3Settings
    target: S3Settings
    items: tuple[tuple[int, CopyItem], ...]


def copy_objects(task: CopyTask) -> list[list[Any]]:
    """Copy objects; gives of each [number, outcome, bytes, key, text, pointer].

    The pointer is that of what was made anew, as manifests write it; otherwise None.
    """
    source, target = store_of(task.source), store_of(task.target)
    rows: list[list[Any]] = []
    for number, item in task.items:
        version = version_of(task.source, item.part)
        key = item.part.pieces[0].key if item.part.pieces else version.path.root
        try:
            if item.is_own:
                outcome, size = _copy(source, target, version, item.part.pieces[0])
                rows.append([number, outcome, size, key, "", None])
            else:
                outcome, pointer = _make(target, version, item)
                rows.append([number, outcome, pointer.size, key, "", fragment_plain(pointer)])
        except ObjectMissingError as error:
            rows.append([number, "missing", 0, error.key, str(error), None])
        except (ObjectCorruptError, BucketVersionError) as error:
            rows.append([number, "corrupt", 0, getattr(error, "key", key), str(error), None])
    return rows


def _copy(source: ObjectStore, target: ObjectStore, version: TierVersion, piece: Piece) -> tuple[Outcome, int]:
    head = source.head(piece.key)
    if head.size != piece.size:
        raise ObjectCorruptError(piece.key, f"it has {head.size} bytes, and must have {piece.size}")
    there = _head(target, piece.key)
    if there is not None:
        if (there.size, there.etag) != (head.size, head.etag):
            _check_there(target, version, piece)
        return "there", piece.size
    if target.copies_from(source):
        scrub_piece(source, _read_from(source, version), piece)
        if target.copy_from(source, piece.key, head.etag, _nonce_of(piece.key)):
            return "copied", piece.size
    with TemporaryFile() as file:
        _download(source, piece, file)
        with _mapped(file) as body:
            scrub_piece(here := _Downloaded(source, piece.key, body), _read_from(here, version), piece)
            create_once(target, piece.key, body, _nonce_of(piece.key))
    return "copied", piece.size


def _head(store: ObjectStore, key: str) -> Head | None:
    try:
        return store.head(key)
    except ObjectMissingError:
        return None


def _check_there(target: ObjectStore, version: TierVersion, piece: Piece) -> None:
    """See that what is at the destination under the name is what the manifest means, though it is stored otherwise."""
    try:
        scrub_piece(target, _read_from(target, version), piece)
    except ObjectCorruptError as error:
        why = f"at the destination, where it was before: {error.why}; delete it there, and do the same again"
        raise ObjectCorruptError(piece.key, why) from None


def _read_from(store: ObjectStore, version: TierVersion) -> TierVersion:
    return TierVersion(store, version.path, version.root, None)


def _download(source: ObjectStore, piece: Piece, file: IO[bytes]) -> None:
    for start in range(0, piece.size, _CHUNK_BYTES):
        wanted = min(_CHUNK_BYTES, piece.size - start)
        content = source.get_range(piece.key, start, wanted)
        if len(content) != wanted:
            raise ObjectCorruptError(piece.key, f"it ends at byte {start + len(content)} of {piece.size}")
        file.write(content)


@contextmanager
def _mapped(file: IO[bytes]) -> Iterator[memoryview]:
    """The bytes of a file, none of which need be in memory."""
    file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as body:
        yield body


def _nonce_of(key: str) -> str:
    """Of who wrote a fragment: its name says it, also where the source has lost it."""
    return key.removesuffix(_SUFFIX).rpartition("/")[2].split("-", 2)[2]


class _Downloaded(CountingStore):
    """A store of which one object is here.

    Args:
        store: Object store.
        key: Key of the object.
        body: Bytes of the object.
    """

    def __init__(self, store: ObjectStore, key: str, body: memoryview) -> None:
        super().__init__(store)
        self._key = key
        self._body = body

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends before."""
        if key != self._key:
            return super().get_range(key, start, length)
        return bytes(self._body[start : start + length])


def _make(target: ObjectStore, version: TierVersion, item: CopyItem) -> tuple[Outcome, StreamObjectPointer]:
    """Write a fragment of the partition's own with what lies elsewhere, named by the hash of its bytes."""
    path = version.path
    footers = [version.reader(piece).metadata for piece in item.part.pieces]
    with TemporaryFile() as file:
        written = merge(
            _sources(version, item),
            file,
            path=path,
            nonce=_id_of(f"{path.home} {item.base} {item.end}".encode()),
            keeps_replies=any(footer.keeps_replies for footer in footers),
            record_hash=version.root.record_hash,
            cleaned_ns=footers[0].cleaned_ns if len(footers) == 1 else 0,  # shared objects never are
        )
        with _mapped(file) as body:
            nonce = _id_of(body)
            name = f"{item.base:020d}-{version.root.claims[-1].epoch}-{nonce}{_SUFFIX}"
            there = _head(target, key := path.fragment(name))
            is_there = there is not None and there.size == written.extent.size
            if not is_there:
                _create(target, key, body, nonce)
    pointer = written.pointer(name, base=item.base, end=item.end)
    if not written.records and item.part.pieces:  # nothing of it is left: the times are those of what was there
        last = item.part.pieces[-1].pointer.last_timestamp
        pointer = replace(pointer, first_timestamp=last, last_timestamp=last)
    return ("there" if is_there else "copied"), pointer


def _create(target: ObjectStore, key: str, body: memoryview, nonce: str) -> None:
    try:
        create_once(target, key, body, nonce)
    except TakenError:
        raise ObjectCorruptError(key, "at the destination it is another object: delete it there") from None


def _id_of(content: bytes | memoryview) -> str:
    return sha256(content).hexdigest()[:_ID_CHARS]


def _sources(version: TierVersion, item: CopyItem) -> Iterator[Source]:
    for piece in item.part.pieces:
        reader, pointer = version.reader(piece), piece.pointer
        if not isinstance(pointer, StreamObjectPointer):
            yield member_source(reader, pointer, piece.start, piece.end)
        elif (piece.start, piece.end) == (pointer.base, pointer.end):
            yield fragment_source(reader, version.path, pointer)
        else:
            whole = fragment_source(reader, version.path, pointer)
            yield whole._replace(rows=reader.rows(piece.start, piece.end), setsum=None)
