"""What nodes tell of the bucket, as one answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy_client.admin.tier import TierStatus
from liftpy_envelope.errors import ConfigError
from liftpy_server.admin.tier.handlers import LocalTierHandlers, merged_status
from liftpy_server.requests.errors import AdminError


def partition(stream, waiting, trouble=None):
    return {
        "stream": stream,
        "uuid": "0" * 32,
        "partition": 0,
        "local_start": 5,
        "start": 0,
        "tiered_end": 9,
        "high_watermark": 10,
        "untiered_bytes": waiting,
        "untiered_age_s": 1.0,
        "stored_bytes": 100,
        "stopped": False,
        "trouble": trouble,
    }


def told(state="ok", message="", room_s=None, partitions=()):
    return {
        "url": "s3://bucket",
        "state": state,
        "message": message,
        "since_ns": None if state == "ok" else 10**18,
        "partition_count": len(partitions),
        "trouble_count": 0,
        "untiered_bytes": sum(each["untiered_bytes"] for each in partitions),
        "untiered_age_s": 1.0,
        "partitions": list(partitions),
        "requests": {"create": 2},
        "bytes_in": 1,
        "bytes_out": 2,
        "uploads": 3,
        "failures": {"unavailable": 1},
        "room_s": room_s,
    }


def test_the_worst_node_says_how_it_is_and_the_others_count():
    answers = {
        "n1": told(partitions=[partition("a", 5), partition("b", 50)]),
        "n2": told("away", "no answer", 60.0, [partition("c", 7), partition("d", 1, "it differs")]),
        "n3": told("slow", "it takes long", 90.0),
    }
    status = TierStatus.from_answer(merged_status(answers, 3) | {"unreachable": ["n4"]})
    assert (status.state, status.message, status.room_s) == ("away", "node n2: no answer", 60.0)
    assert [(each.stream, each.leader) for each in status.partitions] == [("d", "n2"), ("b", "n1"), ("c", "n2")]
    assert (status.partition_count, status.untiered_bytes, status.requests) == (4, 63, {"create": 6})
    assert status.failures == {"unavailable": 3}
    assert status.unreachable == ("n4",)
    assert status.since is not None


def test_the_address_of_the_bucket_is_that_of_one_node():
    """Never the one's bucket with the other's store; and an older node names no store."""
    off = asyncio.run(LocalTierHandlers(SimpleNamespace(tier=None)).status({}))
    whole = told() | {"endpoint": "http://store:9000", "region": "eu-west-1"}
    other = told() | {"url": "s3://other", "endpoint": "http://other:9000", "region": None}
    status = TierStatus.from_answer(merged_status({"n3": other, "n1": off, "n2": whole}, 1) | {"unreachable": []})
    assert (status.url, status.endpoint, status.region) == ("s3://bucket", "http://store:9000", "eu-west-1")
    status = TierStatus.from_answer(merged_status({"n1": told()}, 1) | {"unreachable": []})
    assert (status.url, status.endpoint, status.region) == ("s3://bucket", None, None)


def test_without_a_bucket_and_without_answers():
    off = asyncio.run(LocalTierHandlers(SimpleNamespace(tier=None)).status({}))
    for answers in ({"n1": off}, {}):
        status = TierStatus.from_answer(merged_status(answers, 10) | {"unreachable": []})
        assert (status.url, status.state, status.message, status.since) == (None, "off", "", None)


async def test_ends_are_told_of_what_is_led():
    tierer = SimpleNamespace(tiered_end=lambda key: 40 + key.partition)
    node = SimpleNamespace(tier=SimpleNamespace(tierer=tierer), config=SimpleNamespace(node_id="n1"))
    handlers = LocalTierHandlers(node)
    uuid = "ab" * 16
    assert await handlers.ends({"partitions": [f"{uuid}/1", f"{uuid}/0"]}) == {"ends": [41, 40]}
    for wrong in ("", "zz/1", f"{uuid}/x"):
        with pytest.raises(ConfigError, match="uuid/number"):
            await handlers.ends({"partitions": [wrong]})
    node.tier = None
    with pytest.raises(AdminError, match="the same"):
        await handlers.ends({"partitions": [f"{uuid}/1"]})
