"""`liftpy stream recover`, with the answers of a cluster that is not there."""

from __future__ import annotations

import pytest

from support.cli import Cli, line_with
from support.fake_cluster import STARTED_NS, FakeCluster


def log(node, state="ok", **more):
    told = {
        "node": node, "up": True, "in_last_isr": True, "observer": False, "state": state, "why": None, "log_start": 0,
        "log_end": 1_050, "last_epoch": 3, "high_watermark": 1_040, "last_timestamp_ns": STARTED_NS,
    }  # fmt: skip
    return told | more


GONE = {"up": False, "why": "the node is down", "log_end": None, "high_watermark": None, "last_epoch": None}
EMPTY = {"log_end": 0, "last_epoch": -1, "high_watermark": 0, "why": "the log was [gone]", "last_timestamp_ns": None}


@pytest.fixture
def part():
    return {
        "partition": 2, "leader": None, "leader_epoch": 4, "version": 17, "isr": [],
        "logs": [log("node-1", in_last_isr=False), log("node-2", "missing", **EMPTY), log("node-3", "unproven")],
        "known_end": 1_040, "chosen": "node-1", "chosen_end": 1_050, "lost": 0, "loss": None, "refusal": None,
        "bucket": None,
    }  # fmt: skip


@pytest.fixture
def fake(monkeypatch, part):
    fake = FakeCluster({"STREAM.RECOVER": answer(part)})
    fake.stands_in(monkeypatch)
    return fake


@pytest.fixture
def cli(fake, tmp_path):
    return Cli(None, tmp_path)


def answer(*partitions, recovered=0, warnings=()):
    return {
        "partitions": list(partitions),
        "partition_count": len(partitions),
        "recovered": recovered,
        "warnings": list(warnings),
    }


def decisions(fake):
    return [body for body in fake.bodies("STREAM.RECOVER") if not body["dry_run"]]


def test_a_dry_run_shows_what_each_replica_has_and_who_would_lead(cli, fake):
    shown = cli.out("stream", "recover", "orders", "--dry-run", "--partition", "2")
    assert "orders/2: no leader" in shown
    assert "1,050" in line_with(shown, "node-1", "up", "ok", "2023-11-14 22:13:20")
    assert "yes" in line_with(shown, "node-2", "missing")
    assert "the log was [gone]" in shown
    assert "orders/2: records below 1,040 are known to have been committed" in shown
    assert "node-1 would lead, and go on at offset 1,050; no committed record is known to be lost" in shown
    assert decisions(fake) == []
    assert fake.bodies("STREAM.RECOVER")[0]["partition"] == 2


def test_what_would_be_lost_is_told_and_not_decided_unless_it_is_accepted(cli, fake, part):
    part |= {"lost": 40, "known_end": 1_090, "loss": "committed records from offset 1050 to 1089 are lost, at least"}
    assert "at least 40 committed records would be lost" in cli.out("stream", "recover", "orders", "--dry-run")
    error = cli.error("stream", "recover", "orders", "--yes")
    assert "orders/2: committed records from offset 1050 to 1089 are lost" in error
    assert "--accept-data-loss" in error
    assert decisions(fake) == []
    cli.out("stream", "recover", "orders", "--yes", "--accept-data-loss")
    assert [body["accept_data_loss"] for body in decisions(fake)] == [True]


@pytest.mark.parametrize(
    ("bucket", "shown"),
    [
        (
            {"end": 1_200, "newest_ns": STARTED_NS, "problem": "", "last_epoch": 4},
            "orders/2: the bucket has the records below 1,200, the newest of 2023-11-14 22:13:20 UTC",
        ),
        ({"end": 0, "newest_ns": 0, "problem": "", "last_epoch": 4}, "orders/2: the bucket has nothing of it"),
        (
            {"end": None, "newest_ns": 0, "problem": "the store is [away]", "last_epoch": -1},
            "orders/2: the store is [away]",
        ),
    ],
)
def test_what_the_bucket_has_is_shown(cli, part, bucket, shown):
    assert "bucket" not in cli.out("stream", "recover", "orders", "--dry-run")
    part |= {"bucket": bucket}
    assert shown in cli.out("stream", "recover", "orders", "--dry-run")


def test_it_is_decided_for_what_was_shown(cli, fake, part):
    fake.answers["STREAM.RECOVER"] = answer(part, recovered=1, warnings=["1 partitions have [fewer] replicas"])
    asked = ("stream", "recover", "orders", "--leader", "node-3", "--give-up", "node-8", "--give-up", "node-9")
    ended = cli.run(*asked, "--yes")
    assert "1 partitions of orders have a leader again: node-1" in ended.stdout
    assert "1 partitions have [fewer] replicas" in ended.stderr
    (decided,) = decisions(fake)
    assert (decided["versions"], decided["leader"]) == ({"2": 17}, "node-3")
    assert decided["give_up"] == ["node-8", "node-9"]


def test_nothing_is_decided_without_a_yes(cli, fake):
    ended = cli.run("stream", "recover", "orders", answer="n\n", code=1)
    assert "Let node-1 lead 1 partitions of orders?" in ended.stderr
    assert decisions(fake) == []


def test_a_replica_that_is_neither_up_nor_given_up(cli, fake, part):
    part["logs"][0] = log("node-1", "unknown", **GONE)
    part |= {"chosen": None, "chosen_end": None, "refusal": "node-1 can not be left out"}
    shown = cli.out("stream", "recover", "orders", "--dry-run")
    line_with(shown, "node-1", "down", "unknown")
    assert "orders/2: node-1 can not be left out (--give-up)" in shown
    assert "orders/2: node-1 can not be left out" in cli.error("stream", "recover", "orders", "--yes")
    assert decisions(fake) == []


def test_nothing_to_recover(cli, fake):
    fake.answers["STREAM.RECOVER"] = answer()
    assert "nothing to recover" in cli.out("stream", "recover", "orders")
    assert decisions(fake) == []


def test_for_scripts(cli, fake):
    told = cli.json("stream", "recover", "orders", "--dry-run")
    assert (told["stream"], told["dry_run"], told["partitions"][0]["chosen"]) == ("orders", True, "node-1")
    told = cli.json("stream", "recover", "orders", "--yes")
    assert (told["dry_run"], len(decisions(fake))) == (False, 1)
