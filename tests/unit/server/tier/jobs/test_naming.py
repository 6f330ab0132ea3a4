"""Nothing of a stream is begun in the bucket before the catalog names it: a restore would not find it."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import ForeignBucketError, ObjectMissingError
from liftpy_server.tier.errors import NotNamedError, TierWorkError, plain_error
from support.metadata_commands import UUIDS
from support.plain_worker import do_plain
from support.tier_bucket import CLUSTER, Bucket, stream


@pytest.fixture
def bucket():
    return Bucket()


def claim(bucket, uuid=UUIDS[0], cluster_id=CLUSTER, partition=0, **given):
    arguments = {"epoch": 1, "node": "n1", "log_start": 0, "epochs": [], "create": True} | given
    return do_plain(
        bucket.context, "claim", {"uuid": uuid, "partition": partition, "cluster_id": cluster_id} | arguments
    )


def test_a_history_is_begun_only_when_the_catalog_names_the_stream(bucket):
    with pytest.raises(NotNamedError, match=UUIDS[0]) as caught:
        claim(bucket)
    told = TierWorkError(**plain_error(caught.value))
    assert (told.code, told.retriable) == ("unnamed", True)
    bucket.put_catalog(**{UUIDS[1]: stream("flights"), UUIDS[0]: stream("orders", deleted_ns=5)})
    with pytest.raises(NotNamedError):
        claim(bucket)
    assert bucket.file(UUIDS[0]).load() is None
    bucket.put_catalog(**{UUIDS[0]: stream("orders")})
    assert claim(bucket)["is_new"]


def test_the_catalog_is_read_once_for_all_that_it_names(bucket):
    bucket.put_catalog(**{uuid: stream(f"s{number}") for number, uuid in enumerate(UUIDS[:2])})
    claim(bucket)
    before = bucket.context.store.counts["get"]
    claim(bucket, UUIDS[1])
    claim(bucket, UUIDS[0], partition=1)
    assert bucket.context.store.counts["get"] - before == 4  # two roots that are not there, and a set manifest twice


def test_what_has_begun_is_claimed_whatever_the_catalog_says(bucket):
    bucket.claim(UUIDS[0], epoch=0, start=0)
    assert claim(bucket, create=False)["end"] == 0
    with pytest.raises(ObjectMissingError):
        claim(bucket, UUIDS[1], create=False)


def test_nothing_is_begun_in_the_bucket_of_another_cluster(bucket):
    bucket.put_catalog("d" * 32, **{UUIDS[0]: stream("orders")})
    with pytest.raises(ForeignBucketError):
        claim(bucket)
