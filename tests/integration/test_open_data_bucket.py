"""The snippets of docs/howto/query-bucket.md, which read a stream from the bucket: run on what a node puts there."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

import liftpy
from support.cli import Cli
from support.cluster import NodeProcess, eventually
from support.s3_servers import aws_environment, seaweedfs
from support.tier_kit import tier_toml

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "query-bucket.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LARGE, SMALL = 3_000, 20


def snippet(word):
    """The only block of the page with this word, which stands there for others to copy."""
    (found,) = [block for block in BLOCK.findall(PAGE.read_text()) if word in block]
    return found


@pytest.fixture
def bucket(tmp_path):
    with seaweedfs(tmp_path) as server:
        yield server


async def publish(lift, first, count):
    async with lift.publisher() as publisher:
        for number in range(first, first + count):
            await publisher.publish(f"orders.{number % 2}", b"%d" % number + bytes(100))


async def fill(url, store):
    """A stream that has a large object of its own, and a small one that it shares with another."""
    async with liftpy.connect(url) as lift:
        await lift.create_stream("orders", subject="orders.*")
        await lift.create_stream("others", subject="others.*")

        async def is_tiered():
            found = {each.stream: each for each in (await lift.tier_status()).partitions}
            return all(found[name].tiered_end == found[name].high_watermark > 0 for name in ("orders", "others"))

        async def is_known():
            return b'"orders"' in store.get("catalog.json").body

        await publish(lift, 0, LARGE)
        await lift.publish("others.1", b"not ours")
        await eventually(is_tiered, 40, "the bucket does not get everything")
        await publish(lift, LARGE, SMALL)
        await lift.publish("others.1", b"nor this")
        await eventually(is_tiered, 40, "the bucket does not get everything")
        await eventually(is_known, 40, "the stream is not in the catalog")


@pytest.fixture
def exported(nats_server, bucket, tmp_path, monkeypatch):
    """The working directory has the list that the page says to make, and the environment the store."""
    toml = tier_toml(bucket, "liftpy", merge_bytes=2**30)
    node = NodeProcess(nats_server.url, tmp_path / "node", toml=toml, environment=bucket.environment).start()
    try:
        asyncio.run(fill(nats_server.url, bucket.store("liftpy")))
    finally:
        node.stop()
    where = {"LIFTPY_TIER_URL": bucket.url("liftpy"), "LIFTPY_TIER_ENDPOINT": bucket.endpoint}
    cli = Cli(None, tmp_path, **bucket.environment, **where)
    (tmp_path / "orders.json").write_text(cli.out("tier", "export-list", "orders", "--json"))
    monkeypatch.chdir(tmp_path)
    with aws_environment(**bucket.environment, **where):
        yield cli


def test_what_is_shared_and_what_is_not_is_read_and_forked(exported):
    names = {}
    exec(snippet("scan_parquet"), names)
    orders = names["orders"].collect()
    assert orders["offset"].to_list() == list(range(LARGE + SMALL))
    assert sorted(int(value[:-100]) for value in orders["value"]) == list(range(LARGE + SMALL))
    objects = json.loads(Path("orders.json").read_text())["partitions"][0]["objects"]
    shared = [each["end"] - each["start"] for each in objects if each["is_shared"]]
    assert 0 < sum(shared) < LARGE
    assert len(shared) < len(objects)

    names = {}
    exec(snippet("duckdb"), names)
    own = names["rows"]
    assert [subject for subject, *_ in own] == ["orders.0", "orders.1"]
    assert sum(count for _, count in own) == LARGE + SMALL - sum(shared)

    said = exported.out("tier", "fork", "orders", "copy", "--subject", "copy.*", "--bucket-only")
    assert f"{sum(shared):,} records were in objects that streams share, and were copied" in said
    assert f"offsets 0 to {LARGE + SMALL}, {LARGE + SMALL:,} records" in exported.out("tier", "scrub", "copy")
