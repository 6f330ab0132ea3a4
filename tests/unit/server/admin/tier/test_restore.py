"""A cluster comes back from its bucket: the client's requests, the node's handlers and the worker's jobs together."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace

import pytest

from liftpy_bucket.layout import PartitionPath
from liftpy_bucket.manifest.stream_sets.file import SetManifestFile
from liftpy_client.admin.admin import Admin
from liftpy_client.errors import AdminError
from liftpy_envelope.errors import ConfigError, ErrorCode
from liftpy_server.admin.tier.restore_handlers import RestoreHandlers
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.settings.config import NodeConfig
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.restores.restoring import EPOCH_GAP
from liftpy_server.tier.worker.wire import encode_error
from support.fault_store import Crash, FaultStore, crash_at, plan_random
from support.metadata_commands import UUIDS, Author
from support.plain_worker import PlainWorker, do_plain
from support.tier_bucket import CLUSTER, Bucket, stream

NEW = "e" * 32
ORDERS, FLIGHTS, GROUPS = UUIDS[:3]


class Metadata:
    """Applies what is proposed at once."""

    cluster_id = NEW

    def __init__(self, nodes=("n1",)):
        self.author = Author()
        for node in nodes:
            self.author.register(node)
        self.proposed = []

    async def read(self):
        return self.author.state

    async def propose(self, op, /, **args):
        self.proposed.append(args["config"]["name"])
        outcome = self.author.attempt(op, **json.loads(json.dumps(args)))
        if outcome.error:
            raise MetadataRefusedError(outcome.error, outcome.message)
        return outcome.value

    def partition(self, name, number=0):
        return self.author.state.streams[name].partitions[number]


class Worker(PlainWorker):
    """Does the jobs, and crosses the pipe in both directions."""

    def __init__(self, bucket):
        self.bucket = bucket
        self.jobs = []

    async def answer(self, job, /, **arguments):
        self.jobs.append(job)
        try:
            result = do_plain(self.bucket.context, job, json.loads(json.dumps(arguments)))
        except Exception as error:
            raise TierWorkError(**json.loads(encode_error(1, error))["error"]) from error
        return json.loads(json.dumps(result))


class Restored:
    """A new cluster with the bucket of one that is gone."""

    def __init__(self, nodes=("n1",)):
        self.bucket = Bucket()
        self.metadata = Metadata(nodes)
        self.worker = Worker(self.bucket)
        self.fails_at = ""
        handlers = RestoreHandlers(NodeConfig(node_id="n1"), self.metadata, lambda: self.worker)
        self.endpoints = handlers.endpoints() | {"STREAM.LIST": self.list}
        self.admin = Admin(SimpleNamespace(request=self.request))
        self.requests = []
        self.end = None

    async def request(self, endpoint, body, _timeout_s=None):
        self.requests.append(endpoint)
        if endpoint == self.fails_at:
            self.fails_at = ""
            raise AdminError(ErrorCode.NOT_AVAILABLE, "the node is stopping")
        try:
            return json.loads(json.dumps(await self.endpoints[endpoint](json.loads(json.dumps(body)))))
        except Exception as error:
            raise AdminError(getattr(error, "code", ErrorCode.INVALID_CONFIG), str(error)) from error

    async def list(self, body):
        """What the leaders would tell of logs that begin where they should."""
        assert body["internal"]
        infos = sorted(self.metadata.author.state.streams.values(), key=lambda info: info.name)
        shown = []
        for info in infos[body["offset"] : body["offset"] + 1]:
            partitions = [
                {"partition": number, "leader": part.leader, "leader_epoch": part.leader_epoch}
                | {"log_start": part.log_start, "log_end": part.local_start, "bytes": 0, "segments": 1, "offline": None}
                | {"high_watermark": part.local_start if self.end is None else self.end}
                for number, part in enumerate(info.partitions)
            ]
            plain = info.to_plain() | {"name": info.name, "partitions": partitions, "messages": 0, "bytes": 0}
            shown.append(plain)
        return {"streams": shown, "total": len(infos)}


@pytest.fixture
def restored():
    made = Restored()
    bucket = made.bucket
    bucket.claim(ORDERS, 0, epoch=3, start=0)
    bucket.fragment(ORDERS, 50, [(2, 0), (3, 20)])
    bucket.sets([(ORDERS, 0, 3, 50, 60)])
    bucket.claim(GROUPS, epoch=1, start=0)
    bucket.fragment(GROUPS, 9, [(1, 0)])
    bucket.put_catalog(
        **{
            ORDERS: stream("orders", 2, retention_bytes=77),
            FLIGHTS: stream("flights"),
            GROUPS: stream("__groups", acks="off"),
            UUIDS[7]: stream("gone", deleted_ns=4),
        }
    )
    return made


async def test_everything_comes_back(restored):
    told = []
    plan = await restored.admin.restore_plan(progress=lambda *done: told.append(done))
    assert (plan.cluster_id, plan.own_cluster_id) == (CLUSTER, NEW)
    assert [(each.name, each.is_here, each.records) for each in plan.streams] == [
        ("__groups", False, 9),
        ("flights", False, 0),
        ("orders", False, 60),
    ]
    assert (plan.records, plan.stored_bytes, plan.problems, told) == (69, 590, [], [(4, 4)])
    assert plan.recovery_point == datetime.fromtimestamp(59 / 1e9, UTC)
    assert restored.metadata.author.state.streams == {}
    told.clear()
    outcomes = await restored.admin.restore(plan, progress=lambda *done: told.append(done))
    assert {(each.name, each.restored, each.problem) for each in outcomes} == {
        ("orders", True, ""),
        ("flights", True, ""),
        ("__groups", True, ""),
    }
    assert (restored.metadata.proposed[-1], told[-1]) == ("__groups", (4, 4))
    orders = restored.metadata.author.state.streams["orders"]
    assert (orders.uuid, orders.created_ns, orders.config.retention_bytes) == (ORDERS, 17, 77)
    first, second = orders.partitions
    assert (first.log_start, first.local_start, first.leader_epoch) == (0, 60, 3 + 2 * EPOCH_GAP)
    assert (second.local_start, second.leader_epoch) == (0, 2 * EPOCH_GAP)
    assert restored.bucket.catalog().cluster_id == NEW
    assert restored.bucket.root(ORDERS).claims[-1].epoch == 3 + EPOCH_GAP  # the next leader claims beyond that
    assert await restored.admin.verify_restore(plan) == []


async def test_a_stream_on_what_others_say_is_not_brought_back_unless_the_operator_says_so(restored):
    restored.bucket.put_catalog(**{ORDERS: stream("all", 2, subject=">", acks="off")})
    (outcome,) = await restored.admin.restore()
    assert "allow_reserved_subjects" in outcome.problem
    assert "all" not in restored.metadata.author.state.streams


async def test_sets_of_the_nodes_before_stay_as_they_are_and_the_generation_is_above_them(restored):
    bucket, nodes = restored.bucket, ("n1", "n1-x", "n10")
    for node in nodes:
        bucket.sets([(ORDERS, 0, 3, 60, 70)], node=node)

    def manifests():
        return [SetManifestFile(bucket.store, node, new_id=bucket.new_id).load().manifest for node in nodes]

    before = manifests()
    for _ in range(2):
        await restored.admin.restore()
        assert manifests() == before
        assert bucket.catalog().generation == 1


async def test_again_it_finishes_what_is_missing_and_no_more(restored):
    plan = await restored.admin.restore_plan()
    apply, fails = restored.endpoints["RESTORE.APPLY"], iter([False, True])

    async def interrupted(body):
        if next(fails):
            raise AdminError(ErrorCode.NOT_AVAILABLE, "the node is stopping")
        return await apply(body)

    restored.endpoints["RESTORE.APPLY"] = interrupted
    with pytest.raises(AdminError, match="stopping"):
        await restored.admin.restore(plan)
    assert set(restored.metadata.author.state.streams) == {"orders", "flights"}
    before = dict(restored.metadata.author.state.streams)
    restored.endpoints["RESTORE.APPLY"] = apply
    outcomes = await restored.admin.restore(plan)  # the same plan, which knows of none that is here
    assert {(each.name, each.restored) for each in outcomes} == {
        ("orders", False),
        ("flights", False),
        ("__groups", True),
    }
    assert {name: restored.metadata.author.state.streams[name] for name in before} == before
    assert await restored.admin.restore() == []


async def test_a_stream_that_was_deleted_after_the_restore_stays_deleted(restored):
    plan = await restored.admin.restore_plan()
    await restored.admin.restore(plan)
    restored.metadata.author.do("delete_stream", name="flights")
    (outcome,) = [each for each in await restored.admin.restore(plan) if each.name == "flights"]
    assert (outcome.restored, "was deleted" in outcome.problem) == (False, True)
    assert any(
        "flights" in each and "not back" in each for each in await restored.admin.verify_restore(plan, within_s=0)
    )


async def test_a_cluster_with_streams_of_its_own_is_left_alone(restored):
    restored.metadata.author.create("mine", uuid=UUIDS[8])
    with pytest.raises(AdminError, match="mine; a bucket is restored to an empty cluster") as caught:
        await restored.admin.restore()
    assert caught.value.code is ErrorCode.CONFLICT
    assert restored.bucket.catalog().cluster_id == CLUSTER
    assert set(restored.metadata.author.state.streams) == {"mine"}


async def test_the_offsets_stream_of_the_new_cluster_gives_way(restored):
    restored.metadata.author.create("__groups", uuid=UUIDS[8], subject="", acks="off")
    await restored.admin.restore()
    assert restored.metadata.author.state.streams["__groups"].uuid == GROUPS


async def test_a_cluster_that_writes_meanwhile_is_told_of(restored):
    plan = await restored.admin.restore_plan()
    commit = restored.bucket.store.replace

    def overtaken(key, body, etag, nonce):
        restored.bucket.store.replace = commit
        restored.bucket.put_catalog(**{ORDERS: stream("orders", 2)})
        return commit(key, body, etag, nonce)

    restored.bucket.store.replace = overtaken
    with pytest.raises(AdminError, match=f"cluster {CLUSTER} still writes"):
        await restored.admin.restore(plan)
    assert restored.metadata.author.state.streams == {}


async def test_the_bucket_of_a_third_cluster_is_not_taken(restored):
    plan = await restored.admin.restore_plan()
    restored.bucket.put_catalog("f" * 32, **{ORDERS: stream("orders", 2)})
    with pytest.raises(AdminError, match="neither"):
        await restored.admin.restore(plan)


async def test_nothing_is_applied_before_the_bucket_is_taken(restored):
    with pytest.raises(AdminError, match="belongs to cluster"):
        await restored.request("RESTORE.APPLY", {"uuids": [ORDERS]})


async def test_a_partition_that_can_not_be_read_leaves_its_stream_out_and_no_other(restored):
    key = PartitionPath(ORDERS, 0).root
    restored.bucket.store.replace(key, b"{", restored.bucket.store.head(key).etag, "x")
    plan = await restored.admin.restore_plan()
    assert any(f"stream orders partition 0: object {key} is damaged" in each for each in plan.problems)
    outcomes = {each.name: each for each in await restored.admin.restore(plan)}
    assert (outcomes["orders"].restored, key in outcomes["orders"].problem) == (False, True)
    assert outcomes["flights"].restored
    assert "orders" not in restored.metadata.author.state.streams


@pytest.mark.parametrize(
    ("settings", "nodes", "replicas_max", "expected"),
    [
        ({"replicas": 3, "min_isr": 2}, 1, None, None),
        ({"replicas": 3, "min_isr": 2}, 1, 1, (1, 0, None)),
        ({"replicas": 3, "min_isr": 2}, 2, 2, (2, 0, 2)),
        ({"replicas": 3, "observers": 1}, 3, 3, (3, 0, None)),
        ({"replicas": 1, "observers": 2}, 2, None, None),
        ({"replicas": 1}, 1, 3, (1, 0, None)),
    ],
)
async def test_fewer_nodes_than_copies(settings, nodes, replicas_max, expected):
    made = Restored([f"n{number}" for number in range(nodes)])
    made.bucket.put_catalog(**{ORDERS: stream("orders", **settings)})
    (outcome,) = await made.admin.restore(replicas_max=replicas_max)
    if expected is None:
        assert outcome.restored is False
        assert f"there are {nodes} nodes: start more nodes" in outcome.problem
        assert f"--replicas-max {nodes}" in outcome.problem
        return
    assert (outcome.restored, outcome.problem) == (True, "")
    config = made.metadata.author.state.streams["orders"].config
    assert (config.replicas, config.observers, config.min_isr) == expected


async def test_what_verifying_finds(restored):
    plan = await restored.admin.restore_plan()
    await restored.admin.restore(plan)
    restored.end = 58
    amiss = await restored.admin.verify_restore(plan, within_s=0)
    assert amiss == ["stream orders partition 0: it ends at offset 58, and the bucket has it up to 60"]


async def test_verifying_looks_again_for_what_is_on_its_way(restored):
    plan = await restored.admin.restore_plan()
    await restored.admin.restore(plan)
    restored.end = 58

    async def late(body, list_streams=restored.endpoints["STREAM.LIST"]):
        answer = await list_streams(body)
        if body["offset"] + 1 >= answer["total"]:  # the last page of the first look
            restored.end = None
        return answer

    restored.endpoints["STREAM.LIST"] = late
    assert await restored.admin.verify_restore(plan) == []
    assert restored.requests.count("STREAM.LIST") > len(plan.streams)


async def test_without_a_bucket_it_is_said_what_to_do(restored):
    restored.worker = None
    with pytest.raises(AdminError, match="--tier-url"):
        await restored.admin.restore_plan()


async def test_an_empty_bucket_has_nothing(restored):
    empty = Restored()
    with pytest.raises(AdminError, match=r"nothing to restore.*is the prefix right"):
        await empty.admin.restore_plan()


async def test_many_streams_come_in_pages_and_in_parts():
    made = Restored()
    uuids = [f"{number:032x}" for number in range(300)]
    made.bucket.put_catalog(**{uuid: stream(f"s{number}") for number, uuid in enumerate(uuids)})
    plan = await made.admin.restore_plan()
    assert len(plan.streams) == 300
    outcomes = await made.admin.restore(plan)
    assert sum(each.restored for each in outcomes) == 300
    assert (made.requests.count("RESTORE.BUCKET"), made.requests.count("RESTORE.APPLY")) == (3, 5)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("RESTORE.BUCKET", {"after": "x"}),
        ("RESTORE.BUCKET", {"limit": 0}),
        ("RESTORE.LOOK", {}),
        ("RESTORE.LOOK", {"partitions": [["../x", 0]]}),
        ("RESTORE.LOOK", {"partitions": [[ORDERS, -1]]}),
        ("RESTORE.LOOK", {"partitions": [[ORDERS, True]]}),
        ("RESTORE.LOOK", {"partitions": [ORDERS]}),
        ("RESTORE.TAKE", {}),
        ("RESTORE.APPLY", {"uuids": []}),
        ("RESTORE.APPLY", {"uuids": ["x"]}),
        ("RESTORE.APPLY", {"uuids": [ORDERS], "replicas_max": 0}),
    ],
)
async def test_malformed_requests_never_reach_the_bucket(restored, endpoint, body):
    with pytest.raises(ConfigError):
        await restored.endpoints[endpoint](body)
    assert restored.worker.jobs == []


def leave(bucket):
    """What a cluster has left in a bucket: two streams of users, and the groups."""
    bucket.claim(ORDERS, 0, epoch=3, start=0)
    bucket.fragment(ORDERS, 50, [(2, 0), (3, 20)])
    bucket.claim(GROUPS, epoch=1, start=0)
    bucket.sets([(ORDERS, 0, 3, 50, 60), (GROUPS, 0, 1, 0, 9)])
    bucket.put_catalog(**{ORDERS: stream("orders", 2), GROUPS: stream("__groups", acks="off")})


def failing(made, **faults):
    """Has the bucket fail from now on, in the worker."""
    made.worker.bucket = SimpleNamespace(
        context=Context(
            FaultStore(made.bucket.store, **faults),
            new_id=made.bucket.new_id,
            now_ns=lambda: 7,
            memory_bytes_max=2**20,
            object_bytes=2**20,
        )
    )


def check_back(made):
    streams = made.metadata.author.state.streams
    assert {name: info.uuid for name, info in streams.items()} == {"orders": ORDERS, "__groups": GROUPS}
    assert [part.local_start for part in streams["orders"].partitions] == [60, 0]
    assert streams["__groups"].partitions[0].local_start == 9
    for uuid, number, name in ((ORDERS, 0, "orders"), (ORDERS, 1, "orders"), (GROUPS, 0, "__groups")):
        assert made.bucket.root(uuid, number).claims[-1].epoch < streams[name].partitions[number].leader_epoch
    assert made.bucket.catalog().cluster_id == NEW


async def test_a_worker_that_dies_before_any_request_does_no_harm():
    for number in count(1):
        made = Restored()
        leave(made.bucket)
        failing(made, before=crash_at(number))
        try:
            await made.admin.restore()
        except Crash:
            made.worker.bucket = made.bucket
            await made.admin.restore()
            check_back(made)
        else:
            check_back(made)
            break
    assert number > 20


@pytest.mark.parametrize("seed", range(30))
async def test_a_bucket_that_answers_badly_is_got_over(seed):
    made = Restored()
    leave(made.bucket)
    failing(made, plan=plan_random(random.Random(seed), 0.15))
    codes = set()
    for _ in range(40):
        try:
            if not [each for each in await made.admin.restore() if each.problem]:
                break
        except AdminError as error:
            codes.add(error.code)
    assert codes <= {ErrorCode.NOT_AVAILABLE}  # so that trying again is what helps
    made.worker.bucket = made.bucket
    await made.admin.restore()
    check_back(made)
