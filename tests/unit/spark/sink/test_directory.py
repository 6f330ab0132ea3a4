"""Rows staged in a directory: durable when a task says so, found again by every driver; nobody else's are touched."""

from __future__ import annotations

import errno
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest

from liftpy_bucket.errors import ObjectMissingError, StagingDamagedError, StagingDirectoryError
from liftpy_bucket.staging import directory as staging_directory
from liftpy_bucket.staging.directory import check_path
from liftpy_bucket.staging.section import RowChunk, Section
from liftpy_bucket.staging.source import load_section
from liftpy_spark.jobs.collect.directory import collect_directory
from liftpy_spark.options.values import OptionError
from liftpy_spark.sink import directory as sink_directory
from liftpy_spark.sink import writing
from liftpy_spark.sink.decision import Decision, SinkBatch
from liftpy_spark.sink.directory import DirectoryPlace, prepare
from liftpy_spark.sink.errors import SinkRowError
from liftpy_spark.sink.staging import stage
from liftpy_spark.sink.writing import stage_rows
from support.fault_store import Crash
from support.simdisk import ROOT, Order, SimDisk
from support.sink_kit import SinkWorld, Target, batch_of, layout_of

ROWS = [(b"k%d" % (number % 17), b"value-%04d-" % number + bytes(40)) for number in range(60)]
ONCE = Counter(value for _, value in ROWS)
CHUNK = RowChunk(0, "s.x", pa.record_batch({"value": [b"one", b"two"]}))
FOREIGN = (
    "notes.txt",
    "a~b~c~d.arrows",
    f"{'ab' * 16}~app~{0:020d}~00000-{'0' * 32}.arrows.bak",
    f"{'ab' * 16}~..x~{0:020d}~00000-{'0' * 32}.arrows",
    f"{'AB' * 16}~app~{0:020d}~00000-{'0' * 32}.arrows",
)


def names(directory):
    return [path.name for path in directory.iterdir()]


def key_of(batch=None, task=0):
    nonce = uuid4().hex
    return f"{(batch or batch_of()).staging_prefix}{task:05d}-{nonce}.arrows", nonce


def staged_in(place, batch=None):
    key, nonce = key_of(batch)
    (section,) = stage(place, key, [CHUNK], nonce)
    return section


@pytest.mark.parametrize("order", list(Order))
def test_what_a_task_has_staged_is_there_after_the_power_went(order):
    for seed in range(10):
        disk = SimDisk()
        section = staged_in(DirectoryPlace(str(ROOT), disk))
        after = DirectoryPlace(str(ROOT), disk.crash(random.Random(seed), order))
        assert list(load_section(after, section)) == [CHUNK]


def test_what_is_not_synced_is_not_told_as_staged():
    for kind in ("write", "sync", "sync_directory"):
        disk = SimDisk()
        disk.fail(kind, code=errno.ENOSPC)
        with pytest.raises(StagingDirectoryError, match=r"can not use the directory /sim .*No space left on device"):
            staged_in(DirectoryPlace(str(ROOT), disk))
        assert disk.names(ROOT) == [], "on a full disk nothing may be in the way of the next attempt"
        assert not disk.open_files


def test_files_are_told_by_their_names(tmp_path):
    place = DirectoryPlace(str(tmp_path))
    first, second = staged_in(place), staged_in(place, batch_of(1))
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"not ours")
    link = tmp_path / Path(place.name(key_of()[0]).split()[-1]).name
    link.symlink_to(tmp_path / FOREIGN[0])
    (tmp_path / Path(place.name(key_of()[0]).split()[-1]).name).mkdir()
    assert [entry.key for entry in place.entries("spark/staging/")] == sorted((first.key, second.key))
    (entry,) = place.entries(batch_of(1).staging_prefix)
    assert (entry.key, entry.size) == (second.key, second.length)
    place.delete([first.key, first.key])
    with pytest.raises(ObjectMissingError):
        place.read(first.key, 0, 1)
    assert list(load_section(place, second)) == [CHUNK]
    assert {*FOREIGN, link.name} < set(names(tmp_path))


@pytest.mark.parametrize(
    "key",
    [
        "spark/staging/../../etc/passwd",
        f"spark/staging/{'ab' * 16}/../{0:020d}/00000-{'0' * 32}.arrows",
        f"spark/staging/{'ab' * 16}/app/{0:020d}/00000-{'0' * 32}.arrows\n",
        "/etc/passwd",
        "notes.txt",
    ],
)
def test_nothing_is_reached_by_other_names(tmp_path, key):
    (tmp_path / "notes.txt").write_bytes(b"not ours")
    place = DirectoryPlace(str(tmp_path))
    for reach in (lambda: place.read(key, 0, 1), lambda: place.delete([key]), lambda: place.create(key, [b"x"], key)):
        with pytest.raises(StagingDirectoryError, match="is no name that tasks stage under"):
            reach()
    assert names(tmp_path) == ["notes.txt"]


def test_damage_and_loss_are_told_with_the_file(tmp_path):
    place = DirectoryPlace(str(tmp_path))
    section = staged_in(place)
    path = tmp_path / place.name(section.key).rsplit("/", 1)[-1]
    body = path.read_bytes()
    for damaged in (body[:-1], body[:5] + b"#" + body[6:], b""):
        path.write_bytes(damaged)
        with pytest.raises(StagingDamagedError, match=f"staged file {re.escape(str(path))}.*checksum does not match"):
            list(load_section(place, section))
    path.unlink()
    with pytest.raises(StagingDamagedError, match=f"{re.escape(str(path))}.* it is gone; is its directory mounted"):
        list(load_section(place, section))
    path.mkdir()
    with pytest.raises(StagingDirectoryError, match="Is a directory"):
        list(load_section(place, section))


# Which directory it is.


def test_the_driver_leaves_a_marker_that_tasks_find(tmp_path):
    marker = prepare(str(tmp_path))
    assert prepare(str(tmp_path)) == marker, "it stays, and is found again"
    assert names(tmp_path) == [marker]
    DirectoryPlace(str(tmp_path)).check_seen(marker, "here")
    assert list(DirectoryPlace(str(tmp_path)).entries("")) == []


def test_a_task_that_sees_another_directory_stages_nothing(tmp_path, monkeypatch):
    other = tmp_path / "of another machine"
    other.mkdir()
    prepare(str(other))
    here = sink_directory.socket.gethostname()
    for directory in (other, tmp_path / "missing"):
        plan = plan_of(directory, prepare(str(tmp_path)))
        rows = iter([pa.record_batch({"value": [b"v"]})])
        with pytest.raises(StagingDirectoryError) as caught:
            stage_rows(plan, batch_of(), rows, 0)
        told = str(caught.value)
        assert told.startswith(f"a task on {here} does not see the directory {directory} of the driver on driver-1 (")
        assert (
            "mount one and the same directory there on all machines, or leave the option stagingDirectory out" in told
        )
        assert next(rows, None) is not None, "it looks before it reads a row"
    assert [name for name in names(other) if name.endswith(".arrows")] == []


def plan_of(directory, marker):
    options = SimpleNamespace(staging_directory=str(directory), staging_bytes=1)
    return SimpleNamespace(options=options, marker=marker, driver="driver-1", layout=layout_of(record_bytes_max=100))


def test_a_task_that_fails_leaves_no_files(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, prepare(str(tmp_path)))
    rows = [pa.record_batch({"value": [b"v"]}), pa.record_batch({"value": [bytes(1_000)]})]
    with pytest.raises(SinkRowError):
        stage_rows(plan, batch_of(), rows, 0)
    assert names(tmp_path) == [plan.marker]
    stage_once = writing.stage

    def full(place, key, chunks, nonce):
        if list(place.entries("")):
            raise StagingDirectoryError("no space left")
        return stage_once(place, key, chunks, nonce)

    monkeypatch.setattr(writing, "stage", full)
    with pytest.raises(StagingDirectoryError, match="no space left"):
        stage_rows(plan, batch_of(), [rows[0]] * 2, 0)
    assert names(tmp_path) == [plan.marker]


def test_a_directory_that_can_not_be_used_is_refused_by_the_driver(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    for directory, words in ((tmp_path / "missing", "there is no directory"), (file, "file is not a directory")):
        with pytest.raises(OptionError, match=f"^option 'stagingDirectory': .*{words}"):
            prepare(str(directory))
    prepare(str(tmp_path))
    monkeypatch.setattr(sink_directory.os, "access", lambda _path, mode: not mode & os.W_OK)
    with pytest.raises(OptionError, match=r"^option 'stagingDirectory': .* can not be written to on"):
        prepare(str(tmp_path))
    disk = SimDisk()
    disk.fail("create", code=errno.EROFS)
    monkeypatch.setattr(staging_directory, "OsDisk", lambda: disk)
    with pytest.raises(OptionError, match=r"^option 'stagingDirectory': /sim can not be used .*Read-only file system"):
        prepare(str(ROOT))


def test_paths():
    assert check_path("/data//staging/./of/") == "/data/staging/of"
    for path in ("staging", "file:///staging", "~/staging", "/data/../etc", "/data\0", "/" + 4_000 * "x"):
        with pytest.raises(ValueError, match=r"no absolute path|no plain path"):
            check_path(path)


# What decisions say.


def decision_in(directory, **changes):
    section = Section(key_of()[0], 1, 0, 8, 1, 1, 5)
    return Decision(**{"batch": batch_of(), "ends": (1, 2), "sections": (section,), "directory": directory} | changes)


def test_a_decision_names_its_directory():
    decision = decision_in("/data/staging")
    body = decision.encode()
    assert Decision.decode(batch_of(), body) == decision
    assert b'"version":3' in body, "a liftpy that knows the bucket alone is to refuse it"
    assert b"directory" not in decision_in(None).encode()


@pytest.mark.parametrize("directory", ["staging", "/data/../etc", "/data/", "", "/data\0", 7, None, ["/data"]])
def test_a_decision_with_a_directory_that_is_none(directory):
    body = decision_in("/data").encode()
    changed = body.replace(b'"/data"', json.dumps(directory).encode())
    assert changed != body
    with pytest.raises(StagingDamagedError, match=r"its decision spark/commits/.* can not be read"):
        Decision.decode(batch_of(), changed)


@pytest.mark.parametrize(
    "key", ["/etc/passwd", "spark/staging/a", key_of(batch_of(1))[0], key_of(batch_of(application="other"))[0], 5]
)
def test_a_decision_that_names_files_of_others(key):
    decision = decision_in("/data", sections=(Section(key, 1, 0, 8, 1, 1, 5),))
    with pytest.raises(StagingDamagedError, match=r"is no file that tasks stage for this batch|TypeError"):
        Decision.decode(batch_of(), decision.encode())


# Batches that go on elsewhere.


async def interrupted(world, after=3):
    """A batch that was decided, and in part perhaps published."""
    world.at = {world.effects + after: world.crash}
    with pytest.raises(Crash):
        await world.execute(ROWS, 3)
    world.at = {}


@pytest.mark.parametrize("after", [3, 4, 7])
@pytest.mark.parametrize("now", ["bucket", "another directory"])
async def test_what_was_decided_is_published_from_where_it_is(tmp_path, now, after):
    first, other = tmp_path / "first", tmp_path / "other"
    first.mkdir()
    other.mkdir()
    world = SinkWorld(directory=first)
    await interrupted(world, after)
    world.directory = None if now == "bucket" else other
    await world.execute(ROWS, 5)
    assert world.values() == ONCE
    assert names(first) == names(other) == list(world.memory.list("spark/staging/")) == []


async def test_what_was_decided_in_the_bucket_is_published_from_there(tmp_path):
    world = SinkWorld()
    await interrupted(world)
    world.directory = tmp_path
    await world.execute(ROWS, 5)
    assert world.values() == ONCE
    assert names(tmp_path) == list(world.memory.list("spark/staging/")) == []


async def test_a_machine_that_does_not_have_the_directory_publishes_nothing(tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    world = SinkWorld(directory=first)
    await interrupted(world, after=7)
    before = world.values()
    assert before.total() < len(ROWS)
    first.rename(tmp_path / "unmounted")
    for directory in (None, tmp_path):
        world.directory = directory
        with pytest.raises(StagingDamagedError, match=r"^batch 0 of app into stream s: staged file .*it is gone"):
            await world.execute(ROWS, 2)
    assert world.values() == before
    (tmp_path / "unmounted").rename(first)
    await world.execute(ROWS, 2)
    assert world.values() == ONCE


async def test_files_that_the_driver_does_not_see_are_not_decided_on(tmp_path):
    world = SinkWorld(directory=tmp_path)
    sections = world.stage(batch_of(), ROWS, 3)
    for shorten in (True, False):
        path = Path(world.place().name(sections.sections[0].key).removeprefix("staged file "))
        path.write_bytes(path.read_bytes()[:-1]) if shorten else path.unlink()
        words = "sees .* bytes of" if shorten else "does not see"
        with pytest.raises(StagingDirectoryError, match=f"{words} {re.escape(str(path))}, which a task has staged"):
            await world.commit(batch_of(), sections, world.store(), Target(world))
    assert world.values() == Counter()
    assert list(world.memory.list("spark/commits/")) == []


async def test_files_that_another_one_cleared_up_are_no_loss(tmp_path):
    """It had the same batch, and was done with it before this one has decided."""
    world = SinkWorld(directory=tmp_path)
    sections = world.stage(batch_of(), ROWS, 3)
    await world.execute(ROWS, 2)
    assert world.staged() == []
    assert (await world.commit(batch_of(), sections, world.store(), Target(world))).published == 0
    assert world.values() == ONCE


# Leftovers.


def test_files_of_other_clusters_and_younger_ones_stay(tmp_path):
    world = SinkWorld(directory=tmp_path)
    mine, decided, other = batch_of(0), batch_of(1), SinkBatch(stream="s", uuid="cd" * 16, application="app", number=0)
    keys = [staged_in(world.place(), batch).key for batch in (mine, decided, other)]
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"not ours")
    marker = prepare(str(tmp_path))
    now_ns = 10**19

    def collected(**options):
        usual = {"older_than_s": 60.0, "now_ns": now_ns, "deletes": True}
        return collect_directory(world.memory, str(tmp_path), **{"uuids": ()} | usual | options).objects

    assert collected() == 0, "nothing tells whose the streams are"
    world.memory.create(decided.decision_key, b"{}", "n")
    assert collected(deletes=False) == collected(deletes=False, only=mine.uuid) == 1
    assert collected(now_ns=0) == collected(older_than_s=1e9 * 20) == 0
    assert collected(deletes=False, uuids={mine.uuid, other.uuid}) == 2
    assert collected(only=other.uuid, deletes=False) == 1
    assert world.staged() == sorted(keys)
    assert collected(uuids={mine.uuid}) == 1
    assert world.staged() == sorted(keys[1:])
    world.memory.create(decided.done_key, b"", "n")
    assert collected() == 1
    assert set(names(tmp_path)) == {*FOREIGN, marker, Path(world.place().name(keys[2])).name}
