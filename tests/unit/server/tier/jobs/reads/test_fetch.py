"""Row groups become a file of record batches that covers all offsets of its range, loss-free, with few requests."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_bucket.errors import LineageError, ObjectMissingError
from liftpy_bucket.manifest.root import changes as root_changes
from liftpy_bucket.objects.rows.convert import rows_of
from liftpy_bucket.store.counting import CountingStore
from liftpy_bucket.store.memory import MemoryStore
from liftpy_envelope.batch import HEADER_SIZE, check_body, read_header
from liftpy_log.storage.disk import OsDisk
from liftpy_server.tier.jobs.reads import fetch as fetching
from liftpy_server.tier.reads.chunk import Chunk
from liftpy_server.tier.requests import FetchChunkJob, OffsetAtTimeJob
from support.examples import examples
from support.plain_worker import plainly
from support.tier_history import PATH, TierHistory
from support.tier_rows import histories, plain_records, records_of

MUCH = 1 << 40
SMALL = {"row_group_bytes": 2_000}

fetch = plainly(FetchChunkJob, fetching.fetch)
offset_at_time = plainly(OffsetAtTimeJob, fetching.offset_at_time)


def ask(history, path, offset=0, **arguments):
    """What a fetch brings: its result, the headers, and the records."""
    path.unlink(missing_ok=True)
    wanted = {"end": MUCH, "enough": MUCH, "bytes_max": 1, "codec": "none"} | arguments
    store = arguments.pop("store", history.store)
    wanted.pop("store", None)
    result = fetch(store, {"uuid": PATH.uuid, "partition": 0, "offset": offset, "path": str(path), **wanted})
    data, at, headers, records = path.read_bytes(), 0, [], []
    while at < len(data):
        header = read_header(data, at)
        body = data[at + HEADER_SIZE : at + header.length]
        check_body(header, body)
        headers.append(header)
        records += records_of(rows_of(header, body, keeps_replies=True))
        at += header.length
    assert result["bytes"] == len(data)
    ends = [header.next_offset for header in headers]
    assert [header.base_offset for header in headers] == [result["start"], *ends[:-1]], "there are no holes"
    assert ends[-1] == result["end"]
    assert result["start"] <= offset < result["end"]
    return result, headers, records


@pytest.fixture
def history():
    """Offsets 0 to 299 in three fragments of several row groups each."""
    made = TierHistory()
    for base in (0, 100, 200):
        made.append(plain_records(100, base=base, seed=base), **SMALL)
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chunk.log"


def everything():
    return [record for base in (0, 100, 200) for record in plain_records(100, base=base, seed=base)]


def read_through(history, path, **arguments):
    """All records, chunk by chunk, and how many chunks there were."""
    found, offset, count = [], history.root.start, 0
    while offset < history.root.end:
        result, _, records = ask(history, path, offset, **arguments)
        assert result["start"] == offset, "chunks follow on one another"
        found += records
        offset = result["end"]
        count += 1
    return found, count


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("bytes_max", [1, 10_000, MUCH])
def test_everything_comes_chunk_by_chunk(history, path, codec, bytes_max):
    found, _ = read_through(history, path, codec=codec, bytes_max=bytes_max)
    assert found == everything()


def test_more_comes_where_more_is_asked_for(history, path):
    counts = [read_through(history, path, bytes_max=size)[1] for size in (1, 10_000, 30_000, MUCH)]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0] > 10, counts[-1]) == (True, 1)


def test_what_others_have_compacted_is_read_as_it_is_now(history, path, monkeypatch):
    """The objects of the version before are still there, and stay for a while."""
    ask(history, path, 100)
    (old,) = [each for each in history.root.fragments if each.base == 100]
    new = history.fragment(plain_records(100, base=100, seed=100)[50:], 100, 200, **SMALL)
    history.commit(root_changes.replace(history.root, [old], [new], collected=old.setsum - new.setsum, snapshots={}))
    monkeypatch.setattr(fetching, "_NEW_S", 0.0)
    _, _, records = ask(history, path, 100, bytes_max=MUCH, end=200)
    assert records == everything()[150:200]


def test_a_chunk_begins_with_its_row_group(history, path):
    first, *_ = ask(history, path, 105)
    again, *_ = ask(history, path, 100)
    assert (first["start"], first) == (100, again)


def test_nothing_is_fetched_that_the_log_has(history, path):
    result, _, records = ask(history, path, 0, bytes_max=MUCH, enough=120)
    assert 120 <= result["end"] < 150
    assert records == everything()[: result["end"]]
    result, *_ = ask(history, path, 150, bytes_max=MUCH, enough=120)
    assert result["end"] < 200, "what was asked for comes all the same"


def test_nothing_comes_that_the_leader_does_not_know(history, path):
    result, _, records = ask(history, path, 100, bytes_max=MUCH, end=207)
    assert (result["end"], records) == (207, everything()[100:207])


@pytest.mark.parametrize(("offset", "end"), [(300, MUCH), (49, MUCH), (150, 120)])
def test_what_is_not_there_is_said(history, path, offset, end):
    history.commit(root_changes.Change(root=dataclasses.replace(history.root, version=5, start=50)))
    with pytest.raises(LineageError, match="offsets 50 to 299"):
        ask(history, path, offset, end=end)
    assert not path.exists()


def test_a_partition_that_is_not_there_is_said(path):
    with pytest.raises(ObjectMissingError, match="ROOT"):
        fetch(
            MemoryStore(),
            {"uuid": PATH.uuid, "partition": 3, "offset": 0, "path": str(path)}
            | {"end": 1, "enough": 1, "bytes_max": 1, "codec": "none"},
        )
    assert not path.exists()


def test_holes_are_covered_and_belong_to_the_leader_epoch_that_they_are_of(path):
    """Epoch 3 began at 15, of which key compaction has left nothing before 25; 4 at 40, of which nothing is left."""
    history = TierHistory()
    records = plain_records(30)
    kept = [records[2], records[5], records[25]._replace(epoch=3)]
    history.claim(4)
    history.append(kept, end=35, epochs=((0, 0), (3, 15), (4, 40)), **SMALL)
    empty = history.fragment([], 35, 50)
    history.commit(root_changes.append(history.root, empty, epoch=4, epochs=((0, 0), (3, 15), (4, 40))))
    history.append(plain_records(1, base=50), end=60, epochs=((0, 0), (3, 15), (4, 40)))
    result, headers, found = ask(history, path, 20, bytes_max=MUCH, end=50)
    assert (result["start"], result["end"], found) == (0, 50, kept)
    spans = [(header.leader_epoch, header.base_offset, header.next_offset) for header in headers]
    assert [span[0] for span in spans] == sorted(span[0] for span in spans)
    for epoch, start, end in ((0, 0, 15), (3, 15, 40), (4, 40, 50)):
        mine = [span for span in spans if span[0] == epoch]
        assert (mine[0][1], mine[-1][2]) == (start, end)


def test_a_hole_where_no_object_is_left_is_covered(history, path):
    middle = history.root.fragments[1]
    history.commit(root_changes.replace(history.root, [middle], [], collected=middle.setsum, snapshots={}))
    result, headers, records = ask(history, path, 150, bytes_max=1)
    assert (result["start"], headers[0].base_offset) == (150, 150)
    assert records[0].offset == 200
    result, headers, records = ask(history, path, 150, end=180)
    assert (result["end"], records) == (180, [])
    found, _ = read_through(history, path)
    assert [record.offset for record in found] == [*range(100), *range(200, 300)]


def test_a_merge_under_a_known_version_is_followed(history, path):
    read_through(history, path)
    old = list(history.root.fragments[:2])
    merged = history.fragment(everything()[:200], 0, 200, **SMALL)
    history.commit(
        root_changes.replace(history.root, old, [merged], collected=old[0].setsum - old[0].setsum, snapshots={})
    )
    history.store.delete([PATH.fragment(pointer.name) for pointer in old])
    assert read_through(history, path)[0] == everything()


def test_what_is_appended_later_is_found(history, path):
    ask(history, path, 0)
    history.append(plain_records(10, base=300, seed=300))
    assert ask(history, path, 305)[0]["end"] == 310


def test_reading_on_costs_one_request_for_each_fetch(history, path):
    counting = CountingStore(history.store)
    ask(history, path, 0, store=counting)
    before = sum(counting.counts.values())
    assert before <= 4
    offset, fetches = ask(history, path, 0, store=counting)[0]["end"], 1
    while offset < 100:
        offset = ask(history, path, offset, store=counting)[0]["end"]
        fetches += 1
    assert fetches > 3
    assert sum(counting.counts.values()) == before + fetches
    counting.counts["get_range"] = 0
    ask(history, path, 0, store=counting, bytes_max=100_000, enough=100)
    assert counting.counts["get_range"] == 1, "neighbours come together"


@pytest.mark.parametrize("size", [1, 6_000, 20_000, MUCH])
def test_what_follows_is_foreseen_and_comes_as_it_was(history, path, size):
    first, _, found = ask(history, path, following_bytes=size)
    offset, cuts = first["end"], first["following"]
    assert cuts == sorted(set(cuts))
    assert len(cuts) == 4 or cuts[-1] == 300
    for cut in cuts:
        result, _, records = ask(history, path, offset, bytes_max=size, until=cut)
        assert (result["start"], result["end"]) == (offset, cut)
        found += records
        offset = cut
    assert found == [record for record in everything() if record.offset < offset]


def test_nothing_is_foreseen_that_is_not_to_be_fetched(history, path):
    assert ask(history, path)[0]["following"] == []
    assert ask(history, path, following_bytes=MUCH, end=150)[0]["following"] == [150]
    assert ask(history, path, following_bytes=MUCH, enough=100)[0]["following"] == [100]
    assert ask(history, path, 205, following_bytes=1, bytes_max=MUCH, enough=100)[0]["following"] == []


def test_what_was_foreseen_too_small_comes_in_part(history, path):
    result, *_ = ask(history, path, bytes_max=1, until=300)
    assert result["end"] < 100


def test_what_is_foreseen_ends_before_what_can_not_be_read(history, path):
    history.store.delete([PATH.fragment(history.root.fragments[1].name)])
    offset, foreseen = 0, []
    while offset < 100:
        result, *_ = ask(history, path, offset, following_bytes=1)
        offset = result["end"]
        assert all(cut <= 100 for cut in result["following"])
        foreseen.append(len(result["following"]))
    assert (foreseen[0], foreseen[-1]) == (4, 0)


@pytest.mark.parametrize(("bytes_max", "largest"), [(1, 256 << 10), (8 << 20, 512 << 10), (MUCH, 1 << 20)])
def test_who_reads_much_gets_larger_batches(path, bytes_max, largest):
    history, records = TierHistory(), plain_records(100, size=40_000)
    history.append(records)
    _, headers, found = ask(history, path, bytes_max=bytes_max)
    assert largest - 41_000 < max(header.length for header in headers) < largest + 41_000
    assert found == records


def test_times_are_found(history):
    ask_time = {"uuid": PATH.uuid, "partition": 0}
    first = everything()[0].timestamp
    assert offset_at_time(history.store, ask_time | {"timestamp": first}) == {"offset": 0}
    assert offset_at_time(history.store, ask_time | {"timestamp": 2**62 * 2 - 1}) == {"offset": None}


def test_a_node_can_read_what_was_written(history, path):
    result, *_ = ask(history, path, 0, bytes_max=MUCH)
    chunk = Chunk(OsDisk(), path, (PATH.uuid, 0), result["start"], 1, is_wanted=True)
    chunk.load()
    assert (chunk.next_offset, chunk.size) == (300, path.stat().st_size)


@given(histories(), st.integers(0, 100), st.sampled_from([1, 300, MUCH]), st.sampled_from(["none", "lz4"]))
@examples(40)
def test_whatever_was_stored_comes_back(tmp_path_factory, records, percent, bytes_max, codec):
    path = tmp_path_factory.mktemp("chunks") / "chunk.log"
    start, end = records[0].offset, records[-1].offset + 1
    history = TierHistory(start=start)
    epochs, latest = [(0, start)], 0
    for record in records:
        if record.epoch > latest:
            latest = record.epoch
            epochs.append((latest, record.offset))
    if records[0].epoch:
        epochs = epochs[1:]
    history.claim(latest) if latest else None
    history.append(records, end=end, epochs=tuple(epochs), keeps_replies=True, row_group_bytes=200)
    first = offset = start + (end - 1 - start) * percent // 100
    found = []
    while offset < end:
        result, headers, some = ask(history, path, offset, bytes_max=bytes_max, codec=codec)
        assert [header.leader_epoch for header in headers] == sorted(header.leader_epoch for header in headers)
        found += [record for record in some if record.offset >= offset]
        offset = result["end"]
    assert found == [record for record in records if record.offset >= first]


def hole_at(history, path, offset):
    arguments = {"uuid": PATH.uuid, "partition": 0, "offset": offset, "path": str(path)}
    wanted = {"end": MUCH, "enough": MUCH, "bytes_max": MUCH, "codec": "none"}
    result = fetch(history.store, arguments | wanted)
    assert not path.exists()
    return result["hole"]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_missing_object_is_a_hole_around_which_all_is_read(history, path, is_known):
    if is_known:
        read_through(history, path)
    key = PATH.fragment(history.root.fragments[1].name)
    kept = history.store.get(key).body
    history.store.delete([key])
    assert ask(history, path, 0, bytes_max=MUCH)[2] == everything()[:100]
    path.unlink()
    for offset in (100, 150, 199):
        assert hole_at(history, path, offset) == {
            "start": 100,
            "end": 200,
            "code": "missing",
            "message": f"there is no object {key}",
        }
    assert ask(history, path, 200, bytes_max=MUCH)[2] == everything()[200:]
    history.store.create(key, kept, "again")
    assert ask(history, path, 0, bytes_max=MUCH)[2] == everything()


def test_a_damaged_row_group_is_a_hole_of_its_own(history, path):
    key = PATH.fragment(history.root.fragments[1].name)
    body = bytearray(history.store.get(key).body)
    body[200] ^= 255
    history.store.delete([key])
    history.store.create(key, bytes(body), "damaged")
    hole = hole_at(history, path, 100)
    assert (hole["start"], hole["code"]) == (100, "corrupt")
    assert 100 < hole["end"] < 200
    assert key in hole["message"]
    assert ask(history, path, hole["end"], bytes_max=MUCH)[2] == everything()[hole["end"] :]


def test_a_missing_snapshot_is_a_hole(path):
    history = TierHistory()
    history.append_blank(70, 10)
    history.append(plain_records(10, base=700, seed=1))
    (pointer, *_) = history.root.snapshots
    history.store.delete([PATH.snapshot(pointer.digest)])
    hole = hole_at(history, path, 5)
    assert (hole["start"], hole["end"], hole["code"]) == (0, pointer.end, "missing")
    assert PATH.snapshot(pointer.digest) in hole["message"]
    assert len(ask(history, path, 700)[2]) == 10
