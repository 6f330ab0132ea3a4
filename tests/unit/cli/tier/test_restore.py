"""`liftpy restore` with the answers of a cluster that is not there: what does not come back is told."""

from __future__ import annotations

import json

import pytest

from support.cli import Cli, line_with
from support.fake_cluster import IDLE_STATUS, FakeCluster, partition_answer, stream_answer

UUIDS = {"orders": "a" * 32, "flights": "b" * 32}


def history(name, **changes):
    return {
        "uuid": UUIDS[name],
        "name": name,
        "config": {},
        "partitions": 1,
        "created_ns": 1,
        "is_here": False,
    } | changes


def partition(**changes):
    return {
        "partition": 0,
        "start": 0,
        "end": 40,
        "last_epoch": 3,
        "records": 40,
        "stored_bytes": 4_096,
        "newest_ns": 1_700_000_000 * 10**9,
        "problem": "",
        "is_readable": True,
    } | changes


def outcome(name, **changes):
    return {"uuid": UUIDS[name], "name": name, "restored": True, "partitions": [], "problem": ""} | changes


def here(name, high_watermark=40):
    return stream_answer(name, partition_answer(0, ["node-1"], high_watermark=high_watermark)) | {"uuid": UUIDS[name]}


class Restoring(FakeCluster):
    """A cluster whose bucket holds two streams."""

    def __init__(self, **answers):
        streams = [history("orders"), history("flights")]
        found = {"cluster_id": "c" * 32, "own_cluster_id": "d" * 32, "written_ns": 1}
        super().__init__(
            {
                "TIER.STATUS": {"url": "s3://bucket/p", **IDLE_STATUS},
                "RESTORE.BUCKET": found | {"total": 2, "streams": streams},
                "RESTORE.LOOK": {"partitions": [partition(), partition(end=7, records=7)]},
                "RESTORE.TAKE": {"cluster_id": "d" * 32},
                "RESTORE.APPLY": {"streams": [outcome("orders"), outcome("flights")]},
                "STREAM.LIST": {"total": 2, "streams": [here("orders"), here("flights", 7)]},
            }
            | answers
        )


@pytest.fixture
def cli(monkeypatch, tmp_path):
    """Gives the command, and the cluster that it asks."""
    monkeypatch.setattr("liftpy.cli.tier.restore._LEADERS_WITHIN_S", 0.0)

    def make(**answers):
        cluster = Restoring(**answers)
        cluster.stands_in(monkeypatch)
        return Cli(None, tmp_path), cluster

    return make


def test_a_dry_run_changes_nothing(cli):
    command, cluster = cli()
    said = command.out("restore", "--dry-run", "--bucket", "s3://bucket/p/")
    assert "to come back" in line_with(said, "orders", "40", "4.0 KiB")
    assert "2 streams, 2 partitions, 47 records" in said
    assert "Recovery point: 2023-11-14 22:13:20 UTC" in said
    assert not cluster.bodies("RESTORE.TAKE")
    assert not cluster.bodies("RESTORE.APPLY")


@pytest.mark.parametrize(
    ("bucket", "said"),
    [
        ("nonsense", "--bucket: 'nonsense' is not of the form s3://bucket/prefix"),
        ("s3://me:hidden@bucket", "--bucket: has credentials in it"),
        ("", "--bucket: '' is not of the form"),
    ],
)
def test_an_address_that_is_none_is_told_before_nodes_are_asked(cli, bucket, said):
    command, cluster = cli()
    error = command.error("restore", "--bucket", bucket, code=2)
    assert said in error
    assert "hidden" not in error
    assert "--tier-url" not in error
    assert not cluster.bodies("TIER.STATUS")


def test_everything_comes_back(cli):
    command, cluster = cli()
    assert "2 of 2 streams back after" in command.out("restore", "--replicas-max", "2")
    assert [body["replicas_max"] for body in cluster.bodies("RESTORE.APPLY")] == [2]
    report = command.json("restore")
    assert (report["amiss"], [each["restored"] for each in report["restored"]]) == ([], [True, True])


def test_a_stream_that_does_not_come_back_is_named(cli):
    answers = {
        "RESTORE.APPLY": {
            "streams": [outcome("orders", restored=False, problem="there are too few nodes"), outcome("flights")]
        },
        "STREAM.LIST": {"total": 1, "streams": [here("flights", 7)]},
    }
    command, _ = cli(**answers)
    said = command.run("restore", code=1).stdout
    assert "not restored: stream orders: there are too few nodes" in said
    assert "1 of 2 streams back" in said
    assert "amiss" not in said, "it is told once"
    assert json.loads(command.run("restore", "--json", code=1).stdout)["restored"][0]["problem"]


def test_what_is_amiss_afterwards_is_named(cli):
    command, _ = cli(**{"STREAM.LIST": {"total": 2, "streams": [here("orders", 39), here("flights", 7)]}})
    said = command.run("restore", code=1).stdout
    assert "amiss: stream orders partition 0: it ends at offset 39, and the bucket has it up to 40" in said


def test_a_bucket_that_is_still_not_usable_afterwards_is_amiss(cli):
    refused = {"state": "refused", "message": "below the prefix there is the object x, which is not ours"}
    command, _ = cli(**{"TIER.STATUS": {"url": "s3://bucket/p", **IDLE_STATUS, **refused}})
    said = command.run("restore", code=1).stdout
    assert "amiss: the bucket is refused: below the prefix there is the object x, which is not ours" in said
    assert "can be read" not in said
    assert "2 of 2 streams back" in said
    assert "the bucket is refused" in json.loads(command.run("restore", "--json", code=1).stdout)["amiss"][0]


def test_doing_it_again_says_whether_the_bucket_is_usable_now(cli):
    here_already = {"cluster_id": "c" * 32, "own_cluster_id": "c" * 32, "written_ns": 1, "total": 1}
    answers = {"RESTORE.BUCKET": here_already | {"streams": [history("orders", is_here=True)]}}
    answers["RESTORE.LOOK"] = {"partitions": [partition()]}
    command, _ = cli(**answers)
    assert "nothing to restore" in command.out("restore")
    command, _ = cli(
        **answers, **{"TIER.STATUS": {"url": "s3://bucket/p", **IDLE_STATUS, "state": "away", "message": "gone"}}
    )
    assert "amiss: the bucket is away: gone" in command.run("restore", code=1).stdout
    assert json.loads(command.run("restore", "--json", code=1).stdout)["amiss"] == ["the bucket is away: gone"]
    assert "amiss" not in command.out("restore", "--dry-run")


def test_damage_is_in_the_plan(cli):
    damaged = partition(problem="object ROOT is damaged", is_readable=False)
    command, _ = cli(**{"RESTORE.LOOK": {"partitions": [damaged, partition(problem="there is a gap")]}})
    result = command.run("restore", "--dry-run", code=1)
    assert "damaged" in line_with(result.stdout, "orders")
    assert "in part" in line_with(result.stdout, "flights")
    assert "stream orders partition 0: object ROOT is damaged" in result.stderr


@pytest.mark.parametrize(
    ("answers", "arguments", "said"),
    [
        (
            {"TIER.STATUS": {"url": None, **IDLE_STATUS}},
            ("--bucket", "s3://bucket/p"),
            "start its nodes with --tier-url s3://bucket/p",
        ),
        ({}, ("--bucket", "s3://bucket/other"), "this cluster has the bucket s3://bucket/p, not s3://bucket/other"),
        ({"RESTORE.TAKE": "a bucket is restored to an empty cluster"}, (), "a bucket is restored to an empty cluster"),
    ],
)
def test_refusals(cli, answers, arguments, said):
    command, cluster = cli(**answers)
    assert said in command.run("restore", *arguments, code=1).stderr
    assert not cluster.bodies("RESTORE.APPLY")


def test_a_bucket_with_no_stream_is_a_mistake(cli):
    empty = {"cluster_id": "c", "own_cluster_id": "c", "written_ns": 1, "total": 0, "streams": []}
    command, _ = cli(**{"RESTORE.BUCKET": empty})
    assert "nothing to restore: there is no stream in its catalog" in command.error("restore")
