"""What `liftpy tier audit` and `scrub --deleted` do: they look at the whole bucket, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.cli.run import print_json, stdout
from liftpy.cli.tier.bucket import now_ns
from liftpy.cli.tier.tables import count_of
from liftpy.cli.units import show_bytes, show_duration
from liftpy_bucket.upkeep.auditing import audit
from liftpy_bucket.upkeep.remains import find_remains

if TYPE_CHECKING:
    from liftpy.cli.tier.bucket import OpenBucket

__all__ = ["tell_audit", "tell_remains"]


def tell_audit(bucket: OpenBucket, *, as_json: bool) -> None:
    """A line for each object that nothing names, and how many objects there are.

    Raises:
        TierError: a manifest can not be read, so nobody knows what it names.
    """
    found = audit(bucket.store, now_ns=now_ns())
    if as_json:
        garbage = [each._asdict() for each in found.garbage]
        print_json({"bucket": bucket.shown, "objects": found.objects, "size": found.size, "garbage": garbage})
        return
    for each in found.garbage:
        text = f"{each.key}  {show_bytes(each.size)}, {show_duration(each.age_s)} old: {each.text}"
        stdout.print(text, markup=False)
    freed = sum(each.size for each in found.garbage)
    garbage_text = f"{count_of(len(found.garbage), 'object')} of them named by nothing, {show_bytes(freed)}"
    stdout.print(f"{count_of(found.objects, 'object')}, {show_bytes(found.size)}; {garbage_text}", markup=False)


def tell_remains(bucket: OpenBucket, *, as_json: bool) -> bool:
    """A line for each run of deleted records that is in the bucket still. Says whether there are any.

    Raises:
        TierError: something can not be read.
    """
    found = find_remains(bucket.store, now_ns=now_ns())
    if as_json:
        rows = [
            {"key": each.key, "uuid": each.path.uuid, "partition": each.path.partition}
            | {"start": each.start, "end": each.end, "age_s": each.age_s}
            for each in found
        ]
        print_json({"bucket": bucket.shown, "remains": rows})
        return bool(found)
    for each in found:
        about = f"offsets {each.start} to {each.end} of stream {each.path.uuid}, partition {each.path.partition}"
        stdout.print(f"{each.key}  {about}; the object is {show_duration(each.age_s)} old", markup=False)
    if not found:
        stdout.print("no deleted record is left in the bucket")
    return bool(found)
