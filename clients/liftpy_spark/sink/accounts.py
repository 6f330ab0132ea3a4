"""What the bucket keeps of batches that are written: a mark for each, and how far back there are any.

    spark/commits/<stream uuid>/<application>/<batch:020d>.done   all of it is in the stream, and how far it reaches
    spark/commits/<stream uuid>/<application>/settled             below this number batches are no longer accounted for

A mark may also be made by hand: then it says no more than that it is there.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from liftpy_bucket.errors import ObjectMissingError, PreconditionFailedError, StagingDamagedError, TakenError
from liftpy_bucket.store.conditional import create_once
from liftpy_spark.sink.decision import COMMITS, SinkBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from liftpy_bucket.store.object_store import Entry, ObjectStore

__all__ = ["Mark", "forget", "forget_idle", "mark_before", "mark_of", "settled_below"]

_DELETE_AT_ONCE: Final = 1_000


class Mark(NamedTuple):
    """The mark of a batch that is written.

    Attributes:
        ends: By partition, an offset before which all of the batch is, and all of the batches before it; empty where
            nobody noted it down.
        epochs: By partition, a leader epoch than which no record before that end has a later one; partitions of which
            nobody knows it are missing.
    """

    ends: Mapping[int, int]
    epochs: Mapping[int, int]

    def encode(self) -> bytes:
        """The document."""
        content = {"ends": sorted(self.ends.items()), "epochs": sorted(self.epochs.items())}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> Mark:
        """Read a mark; one that somebody made by hand says nothing."""
        try:
            content = json.loads(body)
            ends = {int(partition): int(end) for partition, end in content["ends"]}
            epochs = {int(partition): int(epoch) for partition, epoch in content.get("epochs", ())}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls({}, {})
        return cls(ends, {partition: epoch for partition, epoch in epochs.items() if partition in ends})


def mark_of(store: ObjectStore, batch: SinkBatch) -> Mark | None:
    """The mark of a batch; None where there is none.

    Raises:
        StoreError: the store does not answer.
    """
    try:
        return Mark.decode(store.get(batch.done_key).body)
    except ObjectMissingError:
        return None


def mark_before(store: ObjectStore, batch: SinkBatch) -> tuple[int, Mark] | None:
    """The newest mark of the application's batches before this one, and whose it is: batches without rows have none.

    Raises:
        StoreError: the store does not answer.
    """
    number = batch.number - 1
    if number < 0:
        return None
    mark = mark_of(store, batch.at(number))  # that of most queries: a list has up to a thousand keys
    if mark is None:
        keys = (entry.key.removeprefix(batch.commits_prefix) for entry in store.list(batch.commits_prefix))
        found = (key.removesuffix(".done") for key in keys if key.endswith(".done"))
        number = max((int(each) for each in found if each.isdigit() and int(each) < number), default=-1)
        mark = None if number < 0 else mark_of(store, batch.at(number))
    return None if mark is None else (number, mark)


def settled_below(store: ObjectStore, batch: SinkBatch) -> int:
    """The number below which the application's batches are settled, and no longer accounted for.

    Raises:
        StagingDamagedError: the document can not be read.
        StoreError: the store does not answer.
    """
    try:
        return _decode(batch, store.get(batch.settled_key).body)
    except ObjectMissingError:
        return 0


def forget(batch: SinkBatch, keep: int, store: ObjectStore, nonce: str) -> list[Entry]:
    """Delete decisions and marks of the application's oldest batches, and note down up to where.

    A batch that was decided and has no mark stays, and so do all that are younger.

    Args:
        batch: One of the application's.
        keep: Number of batches whose documents stay.
        store: Object store of the bucket.
        nonce: Nonce of this call.

    Returns:
        What was deleted.

    Raises:
        StoreError: the store does not do it; the next call goes on.
    """
    below, old = _oldest(batch, keep, store.list(batch.commits_prefix))
    if not old or not _raise(batch, below, store, nonce):
        return []
    _delete(store, old)
    return old


def forget_idle(
    store: ObjectStore, older_than_s: float, now_ns: int, prefix: str = "", *, deletes: bool = True
) -> Iterator[Entry]:
    """Delete documents of applications that have written nothing for long.

    The newest batch of an application stays accounted for: a query that goes on executes no older one again, and a
    batch before it is refused. Of a single batch whose id was made up for it nothing stays, as nobody can name it.

    Args:
        store: Object store of the bucket.
        older_than_s: What counts as long: more than a batch ever takes.
        now_ns: Time by the clock of the store, ns since the epoch.
        prefix: Prefix of the uuids of streams; "": of all.
        deletes: False: only tell what would be deleted.

    Returns:
        What was deleted.

    Raises:
        StoreError: the store does not answer.
    """
    horizon_ns = now_ns - int(older_than_s * 1e9)
    for directory, listed in groupby(store.list(f"{COMMITS}{prefix}"), lambda each: each.key.rpartition("/")[0]):
        documents = list(listed)
        uuid, _, application = directory.removeprefix(COMMITS).partition("/")
        if not application or any(each.modified_ns >= horizon_ns for each in documents):
            continue
        batch = SinkBatch(stream="", uuid=uuid, application=application, number=0)
        if not deletes:
            yield from documents if batch.is_single else _oldest(batch, 1, documents)[1]
        elif batch.is_single:
            _delete(store, documents)
            yield from documents
        else:
            yield from forget(batch, 1, store, uuid4().hex)


def _oldest(batch: SinkBatch, keep: int, documents: Iterable[Entry]) -> tuple[int, list[Entry]]:
    """All but the newest batches: the number below which they are, and their documents.

    The marks come last: a decision without one would be that of a batch that was interrupted.
    """
    found: dict[str, dict[int, Entry]] = {"json": {}, "done": {}}
    for entry in documents:
        number, _, kind = entry.key.removeprefix(batch.commits_prefix).partition(".")
        if number.isdigit() and kind in found:
            found[kind][int(number)] = entry
    decided, marked = found.values()
    numbers = sorted({*decided, *marked})
    if len(numbers) <= keep:
        return 0, []
    below = min([numbers[-keep], *(number for number in decided if number not in marked)])
    return below, [entry for each in (decided, marked) for number, entry in each.items() if number < below]


def _delete(store: ObjectStore, documents: Sequence[Entry]) -> None:
    keys = [each.key for each in documents]
    for first in range(0, len(keys), _DELETE_AT_ONCE):
        store.delete(keys[first : first + _DELETE_AT_ONCE])


def _raise(batch: SinkBatch, below: int, store: ObjectStore, nonce: str) -> bool:
    """Note down that batches below a number are settled; whether that is so now. Another one may be at it, too."""
    body = json.dumps({"below": below}).encode()
    try:
        stored = store.get(batch.settled_key)
        if _decode(batch, stored.body) < below:
            store.replace(batch.settled_key, body, stored.head.etag, nonce)
    except ObjectMissingError:
        try:
            create_once(store, batch.settled_key, body, nonce)
        except TakenError:
            return False
    except PreconditionFailedError:
        return False
    return True


def _decode(batch: SinkBatch, body: bytes) -> int:
    try:
        below = json.loads(body)["below"]
        if type(below) is int and below >= 0:
            return below
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise StagingDamagedError(f"{batch}: {batch.settled_key} in the bucket can not be read: {body!r:.80}")
