"""Manifests for tests: pointers whose sums are those of records that a plain list knows."""

from __future__ import annotations

import json
from functools import cache
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.json import CHECKSUM, with_checksum
from liftpy_bucket.objects.pointers import Extent, SetMember, SetObjectPointer, StreamObjectPointer
from liftpy_bucket.objects.setsum import Setsum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

PATH = PartitionPath("5a" * 16, 3)
OTHER_PATH = PartitionPath("6b" * 16, 0)
START_NS = 1_790_000_000_000_000_000


def ids(prefix: str = "") -> Callable[[], str]:
    """Ids as long as real ones, the same in every run."""
    numbers = count()
    return lambda: blake2b(f"{prefix}/{next(numbers)}".encode(), digest_size=16).hexdigest()


@cache
def digest_of(offset: int, version: int = 0) -> bytes:
    """The digest of the record at an offset."""
    return blake2b(f"{offset}/{version}".encode(), digest_size=32).digest()


def sum_of(offsets: Iterable[int]) -> Setsum:
    """The sum of the records at some offsets."""
    return Setsum.of_digests(b"".join(digest_of(offset) for offset in offsets))


def fragment(
    base: int, end: int, *, epoch: int = 1, nonce: str = "n", offsets: Iterable[int] | None = None
) -> StreamObjectPointer:
    """A stream object that answers for [base, end); holds the records at `offsets`, by default all."""
    held = [*(range(base, end) if offsets is None else offsets)]
    size = 100 + 1024 * len(held)
    return StreamObjectPointer(
        name=f"{base:020d}-{epoch}-{nonce}.parquet",
        base=base,
        end=end,
        records=len(held),
        size=size,
        footer=size - 60,
        digest="ab" * 32,
        first_timestamp=START_NS + base,
        last_timestamp=START_NS + end - 1,
        setsum=sum_of(held),
    )


def member(
    base: int,
    end: int,
    *,
    tier_epoch: int = 1,
    path: PartitionPath = PATH,
    epochs: Sequence[tuple[int, int]] | None = None,
    start: int = 0,
) -> SetMember:
    """A partition's share of a stream-set object, with all records of [base, end)."""
    return SetMember(
        uuid=path.uuid,
        partition=path.partition,
        tier_epoch=tier_epoch,
        base=base,
        end=end,
        records=end - base,
        extent=Extent(100, 50, "cd" * 32, start=start),
        epochs=((tier_epoch, base),) if epochs is None else tuple(epochs),
        first_timestamp=START_NS + base,
        last_timestamp=START_NS + end - 1,
        setsum=sum_of(range(base, end)),
    )


def set_object(sequence: int, *members: SetMember, nonce: str = "n") -> SetObjectPointer:
    """A stream-set object."""
    name = f"{sequence:020d}-{nonce}.parquet"
    return SetObjectPointer(name=name, size=5000, footer=4000, digest="ab" * 32, members=members)


def edited(body: bytes, change: Callable[[dict], None]) -> bytes:
    """A manifest in which somebody changed something, and then put the checksum right, where it has one."""
    plain = json.loads(body)
    has_checksum = plain.pop(CHECKSUM, None) is not None
    change(plain)
    changed = json.dumps(plain).encode()
    return with_checksum(changed) if has_checksum else changed


def unchecked(body: bytes) -> bytes:
    """A manifest without its checksum."""
    plain = json.loads(body)
    del plain[CHECKSUM]
    return json.dumps(plain, separators=(",", ":")).encode()
