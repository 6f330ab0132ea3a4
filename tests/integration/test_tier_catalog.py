"""Whatever is in the bucket a restore finds: the catalog names a stream before anything of it is there."""

from __future__ import annotations

from uuid import uuid4

import pytest

import liftpy
from liftpy_bucket.manifest.catalog import CatalogFile
from support.cluster import NodeProcess, eventually
from support.s3_servers import moto_server
from support.tier_kit import tier_toml

PREFIX = "named"


@pytest.fixture
def bucket():
    with moto_server() as server:
        yield server


@pytest.fixture
def node(bucket, nats_server, tmp_path):
    toml = tier_toml(bucket, PREFIX, upload_age_s=0.1)
    environment = bucket.environment | {"AWS_EC2_METADATA_DISABLED": "true"}
    process = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=environment).start()
    yield process
    process.stop()


async def test_what_has_moved_is_named(bucket, node, nats_server, name):
    file = CatalogFile(bucket.store(PREFIX), new_id=lambda: uuid4().hex)
    async with liftpy.connect(nats_server.url) as lift:
        for number in range(3):
            stream = f"{name}{number}"
            await lift.create_stream(stream, subject=stream)
            await lift.publish(stream, b"value")

            async def has_moved(stream=stream):
                (partition,) = (await lift.stream_info(stream)).raw["partitions"]
                return partition["tiered_end"] == 1

            await eventually(has_moved, 40, f"{stream} does not reach the bucket")
            loaded = file.load()
            assert loaded is not None
            assert stream in {each.name for each in loaded.catalog.streams.values()}
