"""Claims and uploads: what they leave in the bucket, what they cost, and who is refused."""

from __future__ import annotations

from functools import partial

import pytest

from liftpy_bucket.errors import LineageError, ObjectMissingError, OutcomeUnknownError, OvertakenError, SealedError
from liftpy_bucket.manifest.root.changes import seal
from liftpy_bucket.manifest.root.file import RootFile
from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.errors import SliceGoneError
from support.fault_store import Fault, FaultStore
from support.tier_slices import LogFile, value_of
from support.tier_workers import PATH, Worker, check_whole, history, new_id, root_of


def test_what_is_uploaded_is_there(store, log):
    worker = Worker(store)
    claimed = worker.claim()
    assert (claimed["start"], claimed["end"], claimed["root_end"], claimed["sealed"]) == (0, 0, 0, False)
    answer = worker.upload(log, 0, 500)
    assert (answer["end"], answer["records"]) == (500, 500)
    assert answer["stored_bytes"] == root_of(store).fragments[0].size
    worker.upload(log, 500, 1_000)
    assert history(store) == [(offset, 0, value_of(offset)) for offset in range(1_000)]
    claimed = Worker(store).claim()
    assert (claimed["end"], claimed["root_end"], claimed["records"]) == (1_000, 1_000, 1_000)
    assert claimed["epochs"] == [[0, 0]]


def test_ranges_need_not_be_those_of_batches(store, log):
    worker = Worker(store)
    worker.claim()
    for base, end in [(0, 3), (3, 18), (18, 500), (500, 501), (501, 777)]:
        worker.upload(log, base, end)
    check_whole(store, 777)


def test_in_steady_state_an_upload_is_two_puts(store, log):
    worker = Worker(store)
    worker.claim()
    worker.asked()
    for base in range(0, 1_000, 10):  # also where older fragments are folded into a snapshot
        worker.upload(log, base, base + 10)
        asked = worker.asked()
        assert asked.pop("replace") == 1
        assert asked in ({"create": 1}, {"create": 2}), base
    check_whole(store, 1_000)


def test_a_claim_is_one_put_and_at_most_two_looks(store, log):
    worker = Worker(store)
    worker.claim()
    assert worker.asked() == {"get": 2, "create": 1}
    worker.upload(log, 0, 10)
    worker.asked()
    worker.claim()  # once more the same: what may still be under way is refused from now on
    assert worker.asked() == {"get": 2, "replace": 1}
    worker.claim(epoch=1, epochs=[(0, 0)])
    assert worker.asked() == {"get": 2, "replace": 1}


def test_who_has_no_claim_uploads_nothing(store, log):
    worker = Worker(store)
    with pytest.raises(ObjectMissingError):
        worker.upload(log, 0, 10)
    with pytest.raises(ObjectMissingError):
        worker.claim(create=False)
    worker.claim(epoch=3)
    with pytest.raises(LineageError, match=r"leader epoch 2 has no claim.*in force is of leader epoch 3"):
        worker.upload(log, 0, 10, epoch=2)
    assert store.list("streams/").__next__().key == PATH.root
    assert history(store) == []


def test_what_does_not_follow_on_the_bucket_is_refused(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    with pytest.raises(LineageError, match="ends at offset 100 in the bucket; what begins at 110"):
        worker.upload(log, 110, 200)
    with pytest.raises(OvertakenError, match="up to offset 100, and its leader knows of 90"):
        worker.upload(log, 90, 200)
    assert len(list(store.list(f"{PATH.directory}fragments/"))) == 1


@pytest.mark.parametrize("shared", [False, True], ids=["of its own", "shared"])
def test_a_write_whose_answer_is_lost_and_that_comes_late_is_got_over(log, shared):
    store = FaultStore(MemoryStore())
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 50)
    worker.upload_set([(log, 50, 100, 0)])
    key = "sets/n1/ROOT" if shared else PATH.root
    store.plan = lambda request: Fault.HELD if (request.kind, request.key) == ("replace", key) else None
    write = partial(worker.upload_set, [(log, 100, 150, 0)]) if shared else partial(worker.upload, log, 100, 150)
    with pytest.raises(OutcomeUnknownError):
        write()
    store.plan = None
    assert worker.claim()["end"] == 100
    store.deliver_late()
    worker.call("look", **PATH._asdict(), epochs=[[0, 0]], log_start=0)  # as other jobs of the process, finds it
    try:
        worker.upload(log, 100, 200)
    except OvertakenError:  # never a reason to stop
        worker.upload(log, worker.claim()["end"], 200)
    check_whole(store, 200)


def test_a_history_that_differs_is_named(store, log):
    worker = Worker(store)
    worker.claim(epoch=1, epochs=[(0, 0)])
    worker.upload(log, 0, 100, epoch=1, epochs=[(0, 0)])
    with pytest.raises(LineageError, match="from offset 50 on"):
        Worker(store, "n2").claim(epoch=2, epochs=[(0, 0), (2, 50)])
    with pytest.raises(LineageError, match="from offset 50 on"):
        Worker(store, "n2").call("look", **PATH._asdict(), epochs=[[0, 0], [2, 50]], log_start=0)
    assert root_of(store).claims[-1].epoch == 1


def test_a_log_that_is_behind_the_bucket_in_the_same_history_may_be_claimed(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    assert Worker(store, "n2").claim(epoch=1, epochs=[(0, 0)])["end"] == 100


def test_a_log_that_begins_later_agrees_where_both_know(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    assert Worker(store, "n2").claim(epoch=5, epochs=[(0, 60), (5, 100)], log_start=60)["end"] == 100


def test_a_deposed_leader_uploads_nothing_more(store, log, tmp_path):
    old, new = Worker(store, "n1"), Worker(store, "n2")
    old.claim()
    old.upload(log, 0, 100)
    new.claim(epoch=1, epochs=[(0, 0)])
    with pytest.raises(LineageError):  # its root is the one before the claim
        old.upload(log, 100, 200)
    other = LogFile(tmp_path / "other.log", 100)
    other.append(50, epoch=1, tag="new")
    new.upload(other, 100, 150, epoch=1, epochs=[(0, 0), (1, 100)])
    with pytest.raises(LineageError):
        old.upload(log, 100, 200)
    with pytest.raises(LineageError, match="is not its leader any more"):
        old.claim(epoch=0)
    assert [row[1] for row in history(store)] == [0] * 100 + [1] * 50


def test_a_root_that_others_changed_is_looked_at_again(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    file = RootFile(store, PATH, new_id=new_id)
    loaded = file.load()
    other = Worker(store)
    other.claim()
    other.upload(log, 100, 120)  # the same leadership, from a worker that was started again
    assert file.load().root.version == loaded.root.version + 2
    with pytest.raises(OvertakenError):
        worker.upload(log, 100, 200)
    worker.upload(log, 120, 200)
    check_whole(store, 200)


def test_what_is_sealed_takes_nothing_and_is_still_looked_at(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    file = RootFile(store, PATH, new_id=new_id)
    loaded = file.load()
    file.commit(loaded, seal(loaded.root))
    with pytest.raises(SealedError):
        worker.upload(log, 100, 200)
    with pytest.raises(SealedError):
        Worker(store).upload(log, 100, 200)
    claimed = Worker(store, "n2").claim(epoch=1, epochs=[(0, 0)])
    assert (claimed["sealed"], claimed["end"]) == (True, 100)


def test_a_piece_that_is_gone_leaves_nothing_behind(store, log):
    worker = Worker(store)
    worker.claim()
    log.path.unlink()
    with pytest.raises(SliceGoneError):
        worker.upload(log, 0, 100)
    assert [entry.key for entry in store.list("")] == [PATH.root]


def test_counts_are_told(store, log):
    worker = Worker(store)
    worker.claim()
    worker.upload(log, 0, 100)
    told = worker.call("counts")
    assert told["counts"]["create"] == 2
    assert told["bytes_out"] > root_of(store).fragments[0].size
