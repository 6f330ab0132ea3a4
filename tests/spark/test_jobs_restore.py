"""Histories copied by Spark, and a cluster restored from the copy: every record, field and offset is as it was."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

import liftpy
from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.reading.version import open_version
from liftpy_client.group.offsets import committed, reset_group
from liftpy_spark.jobs.copy import waves
from liftpy_spark.jobs.copy.driver import copy_history, plan_copy
from liftpy_spark.jobs.copy.roots import CopyRefusedError
from liftpy_spark.jobs.copy.task import copy_objects
from liftpy_spark.jobs.copy.waves import CopyDamagedError
from support.by_value import by_value
from support.cli import Cli
from support.copy_kit import OFFSETS, held_by, make_history, visible
from support.s3_servers import aws_environment, seaweedfs
from support.spark_system import eventually, system_of

GROUPS = {"readers": {"orders": {0: 41, 1: 7}}, "auditors": {"quiet": {0: 3}}}
STREAMS = {
    "orders": {"subject": "orders.>", "partitions": 2, "compression": "zstd"},
    "keyed": {"subject": "keyed", "compact": True, "min_dirty_ratio": 0.1},
    "quiet": {"subject": "quiet.*"},
}
TASK_BYTES = 8 << 20
FEW = 3


@pytest.fixture
def cli(tmp_path):
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    return partial(Cli, home=tmp_path, **aws)


def prefixes(s3, tmp_path):
    """Two places that nobody else uses."""
    name = f"copies/{tmp_path.name}"
    return s3.settings(f"{name}/from"), s3.settings(f"{name}/to"), f"{name}/from", f"{name}/to"


@pytest.fixture
def target(s3, tmp_path):
    return prefixes(s3, tmp_path)[1]


@pytest.fixture
def target_store(s3, tmp_path):
    return s3.store(prefixes(s3, tmp_path)[3])


def test_by_tasks_of_spark(spark, s3, target, target_store):
    history = make_history(s3)
    before, seen = held_by(history.store), []
    plan = plan_copy(history.orders.settings, target)
    assert not any(target_store.list(""))
    progress = partial(lambda *said: seen.append(said))
    done = copy_history(spark, history.orders.settings, target, task_bytes=TASK_BYTES, progress=progress)
    assert held_by(target_store) == before
    assert done.copied == sum(stream.objects for stream in plan.streams)
    assert seen[-1] == (done.copied, done.copied)
    again = copy_history(spark, history.orders.settings, target, task_bytes=TASK_BYTES)
    assert (again.copied, again.there) == (0, done.copied)


def _dies_once(marker, task):
    """Half of a task is done when its worker is gone."""
    if not marker.exists():
        copy_objects(task._replace(items=task.items[:2]))
        marker.write_text("")
        os._exit(1)
    return copy_objects(task)


def test_a_worker_that_dies_is_replaced(spark, s3, target, target_store, tmp_path, monkeypatch):
    history = make_history(s3, objects=FEW)
    monkeypatch.setattr(waves, "copy_objects", partial(by_value(_dies_once), tmp_path / "died"))
    done = copy_history(spark, history.orders.settings, target, task_bytes=TASK_BYTES)
    assert (tmp_path / "died").exists()
    assert done.there >= 2, "what it had done was not done again"
    assert held_by(target_store) == held_by(history.store)


def test_what_is_damaged_is_named_and_nothing_is_seen(spark, s3, target, target_store):
    history = make_history(s3, objects=FEW)
    path = history.orders.paths[1]
    (fragment,) = history.orders.root(1).fragments
    (shared, *_) = (entry.key for entry in history.store.list("sets/n1/objects/"))
    key = path.fragment(fragment.name)
    whole = history.store.get(key).body
    history.orders.damage(key, 300)
    with pytest.raises(CopyDamagedError, match=f"not whole: orders/1 from offset 0 on: object {key} is damaged"):
        copy_history(spark, history.orders.settings, target)
    assert visible(target_store) == {}
    assert not any(entry.key.endswith("ROOT") for entry in target_store.list(""))
    history.orders.rewrite(key, whole)
    body = history.store.get(shared).body
    history.store.delete([shared])
    with pytest.raises(CopyDamagedError, match=f"there is no object {shared}"):
        copy_history(spark, history.orders.settings, target)
    assert visible(target_store) == {}
    history.store.create(shared, body, "back")
    done = copy_history(spark, history.orders.settings, target)
    assert done.there > done.copied, "what was whole was copied before"
    assert held_by(target_store) == held_by(history.store)


def test_another_history_is_refused(spark, s3, target, target_store):
    history = make_history(s3, objects=FEW)
    copy_history(spark, history.orders.settings, target, ["quiet"])
    stranger = make_history(s3, objects=FEW)
    with pytest.raises(CopyRefusedError, match="the destination has another stream quiet, with uuid"):
        copy_history(spark, stranger.orders.settings, target)
    assert visible(target_store).keys() == {"quiet", OFFSETS}


@pytest.fixture
def elsewhere(spark, tmp_path, monkeypatch):
    """A server whose keys are those of a profile, here and where tasks run, and of nobody else."""
    with ExitStack() as stack:
        with aws_environment():  # whose keys the server would take as well
            server = stack.enter_context(seaweedfs(tmp_path))
        keys = {name.lower(): text for name, text in server.environment.items()}
        file = tmp_path / "credentials"
        file.write_text("\n".join(["[backup]", *(f"{name} = {text}" for name, text in keys.items())]))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        monkeypatch.setitem(spark.sparkContext.environment, "AWS_SHARED_CREDENTIALS_FILE", str(file))
        yield server


def test_a_source_with_credentials_of_its_own(elsewhere, s3, target, target_store, tmp_path):
    history = make_history(elsewhere, objects=FEW)
    cli = Cli(None, tmp_path, **{name: text for name, text in os.environ.items() if name.startswith("AWS_")})
    source = ("--from", history.orders.url, "--from-endpoint", elsewhere.endpoint)
    options = ("spark", "restore", *source, "--bucket", target.url, "--endpoint", s3.endpoint, "--copy-only")
    assert "does not know the access key" in cli.error(*options)
    assert "no credentials that can be used (The config profile (b) could" in cli.error(*options, "--from-profile", "b")
    said = cli.out(*options, "--from-profile", "backup")
    assert "orders: 2 partitions, 6 objects, 69 records, " in said
    assert "KiB and 14 records in shared objects" in said
    assert "quiet: 2 partitions, 2 objects, 11 records, all in shared objects" in said
    assert held_by(target_store) == held_by(history.store)
    assert "--from-profile: say --from" in cli.error("spark", "restore", "--from-profile", "backup", code=2)


def test_a_place_below_the_other_is_refused(s3):
    """Nodes refuse a bucket with objects that are not theirs."""
    history = make_history(s3, objects=FEW)
    here = history.orders.settings
    for settings in (replace(here, url=f"{here.url}/copy"), replace(here, url=here.url.rpartition("/")[0])):
        with pytest.raises(CopyRefusedError, match="one lies below the prefix of the other"):
            plan_copy(here, settings)


class Busy:
    """Publishes as long as it lasts."""

    def __init__(self, system):
        self._system = system
        self._is_over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self):
        self._thread.start()
        eventually(lambda: self.count > 3, "something is published")
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join(60)

    def _publish(self):
        while not self._is_over.wait(0.01):
            publish(self._system, 20, f"busy{self.count}")
            self.count += 1


def publish(system, records, tag, size=40):
    numbers = range(records)
    values = pa.array([None if n % 7 == 6 else os.urandom(size) + tag.encode() for n in numbers], pa.binary())
    keys = pa.array([b"k%d" % (n % 5) for n in numbers], pa.binary())
    for subject in ("orders.eu", "orders.us", "keyed", "quiet.x"):
        system.publish(subject, value=values, key=keys)


def offsets_of(url):
    async def ask():
        async with liftpy.connect(url) as lift:
            return {
                (group, stream): await committed(lift._session, group, stream)
                for group, streams in GROUPS.items()
                for stream in streams
            }

    return asyncio.run(ask())


def commit(url):
    async def work():
        async with liftpy.connect(url) as lift:
            for group, offsets in GROUPS.items():
                await reset_group(lift._session, group, offsets)

    asyncio.run(work())


def rows_by_partition(system, stream):
    table = system.records(stream)
    found = {}
    for row in table.drop_columns([name for name in ("stream",) if name in table.column_names]).to_pylist():
        found.setdefault(row["partition"], []).append(row)
    return found


def latest(rows):
    """The last row of each key."""
    return {row["key"]: row for row in rows}


def test_a_live_history_is_copied_and_a_new_cluster_restored(spark, s3, tmp_path, cli):
    source, target, from_prefix, to_prefix = prefixes(s3, tmp_path)
    options = ("spark", "restore", "--from", source.url, "--bucket", target.url, "--endpoint", target.endpoint)
    with system_of(tmp_path / "old", s3, from_prefix) as old:
        for name, settings in STREAMS.items():
            old.lift.create_stream(name, **settings)
        publish(old, 60, "first")
        publish(old, 300, "large", 4_000)  # more than what is shared
        commit(old.url)
        for name in STREAMS:
            old.tiered(name)
        keyed = PartitionPath(old.lift.stream_info("keyed").uuid, 0)
        eventually(lambda: open_version(s3.store(from_prefix), keyed).root.compacted_end, "the bucket is compacted")
        planned = cli(None).json(*options, "--dry-run")
        assert {each["name"] for each in planned["copy"]["streams"]} == {*STREAMS, OFFSETS}
        with Busy(old) as busy:
            first = cli(None).json(*options, "--copy-only", "--hold", "10m")
            counted = busy.count
            eventually(lambda: busy.count > counted, "it was published all the time")
        assert first["copy"]["copied"] > 0
        assert first["scrub"] is first["restore"] is None
        store = s3.store(to_prefix)
        assert visible(store).keys() == {*STREAMS, OFFSETS}
        early = {place: (held.end, len(held.records)) for place, held in held_by(store).items()}
        for name in STREAMS:
            old.tiered(name)
        positions, before = offsets_of(old.url), {name: rows_by_partition(old, name) for name in STREAMS}
        configs = {name: old.lift.stream_info(name).config for name in STREAMS}
    for (name, number), (end, count) in early.items():
        if name in ("orders", "quiet"):
            assert count == len([row for row in before[name].get(number, []) if row["offset"] < end]), "no hole"
    assert any(end for end, _ in early.values())
    kept = {record.offset for record in held_by(s3.store(from_prefix))["keyed", 0].records}
    assert len(kept) < len(before["keyed"][0]), "the bucket is compacted, and the disk is not yet"
    before["keyed"][0] = [row for row in before["keyed"][0] if row["offset"] in kept]
    with system_of(tmp_path / "new", s3, to_prefix) as new:
        said = cli(None).run(*options, "--servers", new.url).stdout
        assert "every partition has a leader, and all that the bucket holds can be read" in said
        assert {name: new.lift.stream_info(name).config for name in STREAMS} == configs
        assert offsets_of(new.url) == positions
        for name in ("orders", "quiet"):
            assert rows_by_partition(new, name) == before[name], name
        (rows,) = rows_by_partition(new, "keyed").values()  # the new node may have compacted further
        assert [row for row in before["keyed"][0] if row in rows] == rows
        assert latest(rows) == latest(before["keyed"][0])
        again = cli(new.url).json(*options)
        assert again["copy"]["copied"] == 0
        assert again["restore"]["restored"] == []
        checked = cli(new.url).json("spark", "restore")
        assert (checked["copy"], checked["scrub"]["problems"], checked["restore"]["amiss"]) == (None, 0, [])
        publish(new, 5, "new")
        assert sum(map(len, rows_by_partition(new, "quiet").values())) == len(before["quiet"][0]) + 5
