"""The audit of a bucket tells what nothing names from what others than the history keep there."""

from __future__ import annotations

from liftpy_bucket.upkeep.auditing import audit
from support.tier_history import TierHistory
from support.tier_rows import plain_records

NOW_NS = 2 * 10**18


def test_what_object_logs_and_the_sink_keep_is_no_garbage():
    history = TierHistory()
    history.append(plain_records(5))
    store = history.store
    before = {extra.key for extra in audit(store, now_ns=NOW_NS).garbage}
    uuid = "ab" * 16
    for key in (
        f"spark/commits/{uuid}/app/00000000000000000007.done",
        f"spark/staging/{uuid}/app/00000000000000000007/0-a.arrows",
        "logs/events/00000000000000000000",
        "sparkling.txt",
        "streams/notes.txt",
    ):
        store.create(key, b"x", "n")
    found = audit(store, now_ns=NOW_NS)
    assert {extra.key for extra in found.garbage} - before == {"sparkling.txt", "streams/notes.txt"}
    assert found.objects == len(list(store.list("")))
