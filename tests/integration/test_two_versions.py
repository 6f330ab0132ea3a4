"""The version before and this one as nodes of one cluster, at one bucket: they are upgraded one after the other."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.objects.record_hash import RecordHash
from liftpy_bucket.reading.version import open_version
from liftpy_bucket.upkeep.scrubbing import scrub
from support.cluster import eventually, quick_options
from support.cluster_kit import ClusterKit, create, settled
from support.s3_servers import seaweedfs
from support.tier_kit import tier_toml

ROOT = Path(__file__).parents[2]
SOURCES = ("clients", "envelope", "liftpy", "server")
BEFORE = "version 0.3.0: "  # so begins what its commit says
PREFIX = "versions"
EACH = 300


def asked(*command):
    return subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """PYTHONPATH of the version before."""
    try:
        commits = asked("log", "--format=%H", "--grep", f"^{BEFORE}").split()
    except (OSError, subprocess.CalledProcessError):
        commits = []
    if not commits:
        pytest.skip("the version before is not here: this is no clone with its history")
    home = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(asked("archive", commits[0].decode(), *SOURCES))) as archive:
        archive.extractall(home, filter="data")
    return os.pathsep.join(str(home / folder) for folder in SOURCES)


@pytest.fixture
def s3(tmp_path):
    with seaweedfs(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def kit(tmp_path, s3, before):
    kit = ClusterKit(tmp_path, toml=tier_toml(s3, PREFIX))
    for process in kit.nodes.values():
        process.environment |= s3.environment | {"PYTHONPATH": before}
    kit.start()
    yield kit
    kit.close()


async def published(lift, store, name):
    """Publish some more, and wait until the bucket has it. Gives the path of the partition."""
    async with lift.publisher() as publisher:
        for number in range(EACH):
            await publisher.publish(name, b"%d" % number)
    info = await lift.stream_info(name)
    path, (partition,) = PartitionPath(info.uuid, 0), info.partitions

    def is_there():
        version = open_version(store, path)
        return version is not None and version.end == partition.high_watermark

    await eventually(is_there, 60, f"the bucket does not get {name}")
    return path


def hash_of(store, path):
    return open_version(store, path).root.record_hash


async def test_a_cluster_is_upgraded_node_by_node_and_begins_nothing_new_before_all_are(kit, s3):
    store, paths = s3.store(PREFIX), {}
    async with kit.connect() as lift:
        await create(lift, "old", "old")
        paths["old"] = await published(lift, store, "old")
        for name, process in kit.nodes.items():
            assert process.stop() == 0
            del process.environment["PYTHONPATH"]
            process.start()
            await settled(lift, ["old"])
            stream = f"since-{name}"
            await create(lift, stream, stream)
            paths[stream] = await published(lift, store, stream)
            await published(lift, store, "old")
        hashes = {stream: hash_of(store, path) for stream, path in paths.items()}
        assert hashes.pop("since-node-3") is RecordHash.XXH3, "all nodes know it now"
        assert set(hashes.values()) == {RecordHash.BLAKE2B}
        for stream, path in paths.items():
            expected = EACH * (len(kit.nodes) + 1 if stream == "old" else 1)
            options = quick_options()
            values = [message.value async for message in lift.consume(stream, stop="latest", options=options)]
            assert values == [b"%d" % (number % EACH) for number in range(expected)]
            assert scrub(store, path).problems == []


async def test_there_is_no_way_back_once_all_are_upgraded(kit, before):
    async with kit.connect() as lift:
        await create(lift, "old", "old")
    kit.stop_nodes()
    for process in kit.nodes.values():
        del process.environment["PYTHONPATH"]
    kit.start_nodes()
    node = kit.nodes["node-2"]
    assert node.stop() == 0
    node.environment["PYTHONPATH"] = before
    node.spawn()
    assert node.process.wait(60) != 0
    assert "is older than the cluster's metadata" in node.log()
    node.kill()
    del node.environment["PYTHONPATH"]
    node.start()
    async with kit.connect() as lift:
        await settled(lift, ["old"])
