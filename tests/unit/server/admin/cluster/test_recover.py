"""An operator lets a partition go on that nobody can lead without: what is shown, what is refused, and what becomes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_log.segments.recovery import TornTail
from liftpy_server.admin.cluster import recover_handlers
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.requests.errors import AdminError, NodeSilentError
from liftpy_server.tier.jobs.restores.restoring import PartitionPlan
from support.admin_cluster import AdminCluster
from support.metadata_commands import NODE


@pytest.fixture
def cluster(tmp_path):
    """`a` is on all nodes. `n1` had stopped and left; `n2` and `n3` have lost their logs; `n1` is back."""
    cluster = AdminCluster(tmp_path)
    cluster.create("a", ["n1", "n2", "n3"], min_isr=2)
    for node in ("n1", "n2", "n3"):
        expire(cluster, node)
    for node in ("n2", "n3"):
        start(cluster, node, lost=True)
    start(cluster, "n1")
    keep(cluster, "n1", epoch=1, end=50)
    keep(cluster, "n2", epoch=-1, end=0)
    keep(cluster, "n3", epoch=-1, end=0)
    assert (partition(cluster).isr, partition(cluster).leader) == ((), None)
    return cluster


def partition(cluster, name="a"):
    return cluster.author.state.streams[name].partitions[0]


def expire(cluster, node):
    known = cluster.author.state.nodes[node]
    cluster.author.do("expire_node", node_id=node, incarnation=known.incarnation)


def start(cluster, node, *, lost=False, cut=False, known_end=0):
    uuid = cluster.author.state.streams["a"].uuid
    told = {
        "lost": [[uuid, 0]] if lost else [],
        "cut": [[uuid, 0]] if cut else [],
        "known_ends": [[uuid, 0, known_end]],
    }
    info = NODE | {"node_id": node, "follow_token": f"token of {node}"}
    cluster.author.do("register_node", node=info, **told)
    cluster[node].node.incarnation = cluster.author.state.nodes[node].incarnation


def keep(cluster, node, *, epoch, end, high_watermark=0, failure=None, torn_tail=None, name="a", number=0):
    """Let a node have a log."""
    log = SimpleNamespace(
        log_start=0,
        log_end=end,
        epochs=SimpleNamespace(latest=epoch),
        last_timestamp=end * 1_000,
        failure=failure,
        torn_tail=torn_tail,
    )
    held = SimpleNamespace(number=number, log=log, high_watermark=high_watermark)
    info = cluster.author.state.streams[name]
    cluster[node].streams.by_uuid[info.uuid] = SimpleNamespace(info=info, partitions={number: held}, refusal=None)


async def refused(code, request):
    with pytest.raises((AdminError, MetadataRefusedError)) as error:
        await request
    assert error.value.code is code, error.value
    return str(error.value)


async def look(cluster, **more):
    answer = await cluster["n3"].ask("STREAM.RECOVER", name="a", dry_run=True, **more)
    assert answer["recovered"] == 0
    assert "recover_partition" not in cluster.metadata.proposed
    return answer


async def test_a_dry_run_shows_what_each_replica_has_and_decides_nothing(cluster):
    (shown,) = (await look(cluster))["partitions"]
    assert (shown["partition"], shown["leader"], shown["chosen"], shown["chosen_end"]) == (0, None, "n1", 50)
    assert (shown["lost"], shown["loss"], shown["refusal"]) == (0, None, None)
    logs = {log["node"]: log for log in shown["logs"]}
    assert [logs[node]["state"] for node in ("n1", "n2", "n3")] == ["ok", "missing", "missing"]
    assert [logs[node]["in_last_isr"] for node in ("n1", "n2", "n3")] == [False, True, True]
    assert (logs["n1"]["log_end"], logs["n1"]["last_epoch"], logs["n1"]["last_timestamp_ns"]) == (50, 1, 50_000)
    assert partition(cluster).leader is None
    (unled,) = (await cluster["n1"].ask("STREAM.INFO", name="a"))["stream"]["partitions"]
    assert "no replica can prove its log; see liftpy stream recover --dry-run" in unled["unreachable_reason"]


async def test_a_log_that_was_cut_says_where(cluster):
    await cluster["n2"].ask("STREAM.RECOVER", name="a")
    start(cluster, "n1", cut=True)
    keep(cluster, "n1", epoch=1, end=49, torn_tail=TornTail(Path("0.log"), 777, 300, 49))
    (shown,) = (await look_again(cluster))["partitions"]
    log = shown["logs"][0]
    assert (log["node"], log["state"], log["log_end"]) == ("n1", "unproven", 49)
    assert log["why"].endswith("300 bytes from offset 49 on were cut off when the node started")


async def test_the_best_log_leads_when_the_operator_says_so(cluster):
    answer = await cluster["n2"].ask("STREAM.RECOVER", name="a")
    assert (answer["recovered"], answer["warnings"]) == (1, [])
    assert (partition(cluster).leader, partition(cluster).isr, partition(cluster).unclean_elections) == (
        *("n1", ("n1",)),
        1,
    )
    assert (await look_again(cluster))["partition_count"] == 0


async def look_again(cluster):
    return await cluster["n3"].ask("STREAM.RECOVER", name="a", dry_run=True)


async def test_what_is_known_to_be_lost_is_told_and_must_be_accepted(cluster):
    keep(cluster, "n2", epoch=-1, end=0, high_watermark=60)
    (shown,) = (await look(cluster))["partitions"]
    assert (shown["chosen"], shown["known_end"], shown["lost"]) == ("n1", 60, 10)
    told = await refused(ErrorCode.CONFLICT, cluster["n1"].ask("STREAM.RECOVER", name="a"))
    assert "a/0: committed records from offset 50 to 59 are lost, at least" in told
    await cluster["n1"].ask("STREAM.RECOVER", name="a", accept_data_loss=True)
    assert partition(cluster).leader == "n1"


class Bucket:
    """What it has of partitions 0, 1, ... of a stream, or why it does not tell."""

    def __init__(self, *ends, error=None, epoch=1):
        self.ends, self.error, self.epoch = ends, error, epoch

    async def look(self, body):
        if self.error is not None:
            raise self.error
        return {
            "partitions": [
                PartitionPlan(
                    uuid=uuid,
                    partition=number,
                    end=self.ends[number],
                    last_epoch=9,  # claimed by leaders that uploaded nothing
                    record_epoch=self.epoch,
                    newest_ns=7,
                ).to_plain()
                for uuid, number in body["partitions"]
            ]
        }


def with_bucket(cluster, bucket):
    for node in cluster.nodes.values():
        node.node.tier, node.bucket = SimpleNamespace(), bucket


async def test_what_is_in_the_bucket_and_in_no_log_is_told_and_must_be_accepted(cluster):
    with_bucket(cluster, Bucket(60))
    (shown,) = (await look(cluster))["partitions"]
    assert shown["bucket"] == {"end": 60, "newest_ns": 7, "problem": "", "last_epoch": 1}
    assert (shown["chosen"], shown["chosen_end"]) == ("n1", 50)
    assert shown["loss"].startswith("records from offset 50 to 59 are in the bucket and not in the log that would lead")
    assert "liftpy tier fork" in shown["loss"]
    told = await refused(ErrorCode.CONFLICT, cluster["n1"].ask("STREAM.RECOVER", name="a"))
    assert "a/0: records from offset 50 to 59 are in the bucket" in told
    answer = await cluster["n1"].ask("STREAM.RECOVER", name="a", accept_data_loss=True)
    assert (partition(cluster).leader, answer["partitions"][0]["bucket"]["end"]) == ("n1", 60)


async def test_what_the_logs_have_as_well_as_the_bucket_is_not_lost(cluster):
    with_bucket(cluster, Bucket(50))
    (shown,) = (await look(cluster))["partitions"]
    assert (shown["bucket"]["end"], shown["loss"]) == (50, None)
    await cluster["n1"].ask("STREAM.RECOVER", name="a")
    assert partition(cluster).leader == "n1"


async def test_records_of_a_later_leader_are_told_also_where_the_log_is_longer_than_the_bucket(cluster):
    with_bucket(cluster, Bucket(45, epoch=2))
    (shown,) = (await look(cluster))["partitions"]
    assert (shown["chosen"], shown["chosen_end"]) == ("n1", 50)
    assert shown["loss"].startswith("records of leader epochs after 1, up to offset 44, are in the bucket and not in")
    await refused(ErrorCode.CONFLICT, cluster["n1"].ask("STREAM.RECOVER", name="a"))


async def test_a_log_that_goes_on_where_the_bucket_ends_lacks_nothing(cluster):
    """As after a restore: nothing was stored since."""
    keep(cluster, "n1", epoch=-1, end=50)
    with_bucket(cluster, Bucket(50, epoch=2))
    (shown,) = (await look(cluster, leader="n1"))["partitions"]
    assert "in the bucket" not in shown["loss"]


async def test_a_node_without_a_bucket_says_so(cluster):
    cluster["n1"].node.tier = SimpleNamespace()
    (shown,) = (await look(cluster))["partitions"]
    assert shown["bucket"]["problem"] == (
        "what the bucket has is not known: node n3, which answers, is configured without one; stop it, or give it the "
        "bucket of n1"
    )
    cluster["n1"].node.tier = None
    (shown,) = (await look(cluster))["partitions"]
    assert shown["bucket"] is None


async def test_all_that_is_lost_is_told(cluster):
    keep(cluster, "n2", epoch=-1, end=0, high_watermark=70)
    with_bucket(cluster, Bucket(60))
    (shown,) = (await look(cluster))["partitions"]
    assert (
        "committed records from offset 50 to 69 are lost, at least; records from offset 50 to 59 are" in shown["loss"]
    )


async def test_a_bucket_that_does_not_tell_keeps_nobody_from_deciding(cluster, monkeypatch):
    with_bucket(cluster, Bucket(error=AdminError(ErrorCode.NOT_AVAILABLE, "the store is away")))
    (shown,) = (await look(cluster))["partitions"]
    assert shown["bucket"] == {"end": None, "newest_ns": 0, "problem": "the store is away", "last_epoch": -1}
    assert shown["loss"] is None
    hanging = SimpleNamespace(look=lambda _body: asyncio.Event().wait())
    with_bucket(cluster, hanging)
    monkeypatch.setattr(recover_handlers, "_BUCKET_TIMEOUT_S", 0.01)
    (shown,) = (await look(cluster))["partitions"]
    assert "the bucket did not answer within 0.01 s" in shown["bucket"]["problem"]
    await cluster["n1"].ask("STREAM.RECOVER", name="a")
    assert partition(cluster).leader == "n1"


async def test_a_node_that_is_away_is_waited_for_or_given_up(cluster):
    expire(cluster, "n1")
    (shown,) = (await look(cluster))["partitions"]
    assert "n1 can not be left out" in shown["refusal"]
    assert (shown["logs"][0]["state"], shown["logs"][0]["up"]) == ("unknown", False)
    assert "n1 can not be left out" in await refused(ErrorCode.CONFLICT, cluster["n2"].ask("STREAM.RECOVER", name="a"))
    (shown,) = (await look(cluster, give_up=["n1"]))["partitions"]
    assert "the log of n2 is empty, so every record is given up, also what n1 may have" in shown["loss"]
    await refused(ErrorCode.CONFLICT, cluster["n2"].ask("STREAM.RECOVER", name="a", give_up=["n1"]))
    assert partition(cluster).leader is None
    await cluster["n2"].ask("STREAM.RECOVER", name="a", give_up=["n1"], accept_data_loss=True)
    assert partition(cluster).leader == "n2"


async def test_a_node_that_is_up_and_silent_is_waited_for(cluster):
    cluster["n1"].silence = NodeSilentError("it hangs")
    asked = cluster["n2"].ask("STREAM.RECOVER", name="a", give_up=["n1"], accept_data_loss=True)
    assert "n1 is up, and can not be given up" in await refused(ErrorCode.CONFLICT, asked)


async def test_what_is_told_of_an_earlier_incarnation_does_not_count(cluster):
    cluster["n1"].node.incarnation -= 1
    (shown,) = (await look(cluster))["partitions"]
    assert shown["logs"][0]["why"] == "the node has just started again"
    assert "n1 can not be left out" in shown["refusal"]


async def test_a_failed_log_does_not_lead(cluster):
    keep(cluster, "n1", epoch=1, end=50, high_watermark=50, failure="byte 7 of x.log is damaged")
    (shown,) = (await look(cluster))["partitions"]
    assert (shown["logs"][0]["state"], shown["logs"][0]["why"]) == ("failed", "byte 7 of x.log is damaged")
    assert (shown["chosen"], shown["lost"]) == ("n2", 50)
    assert "the log of n2 is empty, so every record is given up" in shown["loss"]
    asked = cluster["n2"].ask("STREAM.RECOVER", name="a", leader="n1", accept_data_loss=True)
    assert "n1 can not lead: its log has failed" in await refused(ErrorCode.CONFLICT, asked)
    await cluster["n2"].ask("STREAM.RECOVER", name="a", accept_data_loss=True)
    assert partition(cluster).leader == "n2"


async def test_partitions_have_changed_since_they_were_looked_at(cluster):
    (shown,) = (await look(cluster))["partitions"]
    where = {"name": "a", "uuid": cluster.author.state.streams["a"].uuid, "partition": 0}
    cluster.author.do("report_failure", **where, node_id="n3", incarnation=cluster["n3"].node.incarnation)
    asked = cluster["n1"].ask("STREAM.RECOVER", name="a", versions={"0": shown["version"]})
    assert "has changed since its logs were looked at" in await refused(ErrorCode.CONFLICT, asked)


async def test_all_of_a_stream_or_nothing_of_it(tmp_path):
    cluster = AdminCluster(tmp_path)
    uuid = cluster.create("a", ["n1", "n2"], ["n2", "n3"], ["n1", "n3"], min_isr=1)
    for node in ("n1", "n2"):
        expire(cluster, node)
        info = NODE | {"node_id": node, "follow_token": f"token of {node}"}
        cluster.author.do("register_node", node=info, lost=[[uuid, 0]])
        cluster[node].node.incarnation = cluster.author.state.nodes[node].incarnation
        keep(cluster, node, epoch=3 if node == "n1" else -1, end=5 if node == "n1" else 0)
    answer = await look(cluster)
    assert [shown["partition"] for shown in answer["partitions"]] == [0], "the others have leaders"
    (shown,) = (await look(cluster, partition=1))["partitions"]
    assert "there is nothing to recover" in shown["refusal"]
    refusal = await refused(ErrorCode.INVALID_REQUEST, cluster["n1"].ask("STREAM.RECOVER", name="a", leader="n1"))
    assert "name a partition" in refusal
    await cluster["n1"].ask("STREAM.RECOVER", name="a", partition=0, leader="n2", accept_data_loss=True)
    assert partition(cluster).leader == "n2"


async def test_too_few_replicas_are_told(cluster):
    keep(cluster, "n2", epoch=1, end=40)
    for node in ("n1", "n3"):
        expire(cluster, node)
    answer = await cluster["n2"].ask("STREAM.RECOVER", name="a", give_up=["n1", "n3"])
    assert partition(cluster).leader == "n2"
    assert "1 partitions have fewer replicas that are up than min_isr, which is 2" in answer["warnings"][0]


async def test_streams_of_the_system_are_recovered_like_others(tmp_path):
    cluster = AdminCluster(tmp_path)
    uuid = cluster.create("__consumer_offsets", ["n1", "n2"], min_isr=1, subject="")
    for node in ("n1", "n2"):
        expire(cluster, node)
        info = NODE | {"node_id": node, "follow_token": f"token of {node}"}
        cluster.author.do("register_node", node=info, lost=[[uuid, 0]])
        cluster[node].node.incarnation = cluster.author.state.nodes[node].incarnation
        keep(cluster, node, epoch=1, end=5, name="__consumer_offsets")
    await cluster["n3"].ask("STREAM.RECOVER", name="__consumer_offsets")
    assert partition(cluster, "__consumer_offsets").leader == "n1"


async def test_what_lies_in_quarantine_of_all_nodes(cluster):
    for node in ("n1", "n2"):
        aside = cluster.root / node / "quarantine" / f"a.{'0' * 32}.3.17"
        aside.mkdir(parents=True)
        (aside / "0.log").write_bytes(bytes(10))
    (cluster.root / "n2" / "quarantine" / "checkpoint.0").write_bytes(bytes(5))
    expire(cluster, "n3")
    cluster["n3"].silence = NodeSilentError("it is gone")
    told = await cluster["n1"].ask("NODE.QUARANTINE")
    assert (told["count"], told["bytes"], told["unreachable"]) == (3, 25, ["n3"])
    assert told["items"][0]["name"] == "checkpoint.0"
    told = await cluster["n2"].ask("NODE.QUARANTINE", stream="a", limit=1)
    assert (told["count"], len(told["items"]), told["items"][0]["node"]) == (2, 1, "n2")
    assert (told["items"][0]["stream"], told["items"][0]["partition"]) == ("a", 3)
    assert (await cluster["n2"].ask("NODE.QUARANTINE", stream="b"))["count"] == 0


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ({"name": "none"}, ErrorCode.UNKNOWN_STREAM, "no stream 'none'"),
        ({"name": "a", "partition": 7}, ErrorCode.INVALID_REQUEST, "no partition 7; its last one is 0"),
        ({"name": "a", "give_up": ["n9"]}, ErrorCode.INVALID_REQUEST, "n9 keeps no replica of stream 'a'"),
        ({"name": "a", "leader": "n9"}, ErrorCode.CONFLICT, "n9 can not lead"),
    ],
)
async def test_what_can_not_be_recovered(cluster, body, code, told):
    assert told in await refused(code, cluster["n1"].ask("STREAM.RECOVER", **body))
    assert partition(cluster).leader is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"partition": -1}, "partition"),
        ({"partition": "0"}, "partition"),
        ({"give_up": "n1"}, "give_up"),
        ({"leader": "n1", "give_up": ["n1"]}, "leader"),
        ({"versions": {"0": "1"}}, "versions"),
        ({"versions": [1]}, "versions"),
        ({"versions": {"x": 1}}, "partitions"),
        ({"accept_data_los": True}, "accept_data_los"),
    ],
)
async def test_a_request_that_is_wrong(cluster, more, field):
    with pytest.raises(ConfigError) as error:
        await cluster["n1"].ask("STREAM.RECOVER", name="a", **more)
    assert error.value.field == field
