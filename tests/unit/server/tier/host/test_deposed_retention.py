"""Retention of a leader that is deposed while it runs (P4)."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import LineageError
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.memory import MemoryStore
from support.fault_store import FaultStore
from support.tier_slices import LogFile
from support.tier_workers import PATH, Worker, history, new_id


@pytest.mark.parametrize("part", ["GARBAGE", "pins/", "BOUNDARY"])
def test_a_leader_deposed_in_the_middle_of_its_retention_deletes_nothing(tmp_path, part):
    log = LogFile(tmp_path / "0.log")
    log.append(20)
    store = MemoryStore()
    faulty = FaultStore(store)
    worker, other = Worker(faulty), Worker(store, "n2")
    worker.claim(epoch=0)
    worker.upload(log, 0, 10)
    worker.upload(log, 10, 20)

    def deposed(request):
        if part in request.key:
            faulty.before = None
            other.claim(epoch=1, epochs=[(0, 0), (1, 20)])

    faulty.before = deposed
    with pytest.raises(LineageError):
        worker.call("retain", **PATH._asdict(), epoch=0, start=10)
    assert faulty.before is None
    assert RootFile(store, PATH, new_id=new_id).load().root.start == 0
    assert len(history(store)) == 20
    assert other.call("retain", **PATH._asdict(), epoch=1, start=10)["start"] == 10
