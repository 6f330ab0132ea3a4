"""What a replica hears of its proposals: only what was decided by applying them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from liftpy_envelope.errors import ErrorCode
from liftpy_server.consensus.store import RaftMetadataStore
from liftpy_server.metadata.commands import Outcome
from liftpy_server.metadata.errors import MetadataRefusedError, MetadataUnknownError
from liftpy_server.replication.core import effects as fx
from liftpy_server.replication.core import inputs
from liftpy_server.replication.host.proposals import ReplicaProposals

PROPOSAL = fx.ProposeIsr(isr=("a", "b"), incarnations={"a": 1, "b": 1}, leader_epoch=3, version=7, attempt=4)


class Store:
    """The part of the metadata store that gathers commands, and attempts that end one after the other."""

    propose_many = RaftMetadataStore.propose_many

    def __init__(self, *ends: Exception | Outcome) -> None:
        self.ends = list(ends)
        self.ids: list[str] = []

    async def propose(self, _op: str, *, commands: list) -> list:
        self.ids += [command_id for command_id, _, _ in commands]
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return [end.to_plain()]


class Partition:
    stream = SimpleNamespace(name="orders", uuid="ab" * 16)
    number = 0
    key = "orders/0"


class Replica:
    core = SimpleNamespace(incarnation=1)
    key = "orders/0"
    partition = Partition()

    def __init__(self) -> None:
        self.heard: list = []

    def step(self, given: object) -> None:
        self.heard.append(given)


async def propose(store, *effects):
    replica, proposals = Replica(), ReplicaProposals("a", store.propose_many)
    for effect in effects:
        proposals.add(replica, effect)
        await asyncio.wait_for(proposals._sending, 10)
    return replica.heard


@pytest.mark.parametrize(
    "last", [MetadataRefusedError(ErrorCode.NOT_AVAILABLE, "no room"), MetadataUnknownError("no answer")]
)
async def test_an_attempt_that_is_not_taken_does_not_decide_an_earlier_one(last):
    store = Store(MetadataUnknownError("no answer"), last)
    assert await propose(store, PROPOSAL, PROPOSAL) == []
    assert len(store.ids) == 2
    assert len(set(store.ids)) == 1, "whichever is applied first decides both"


async def test_what_applying_refuses_never_happens():
    store = Store(MetadataUnknownError("no answer"), Outcome.refused(ErrorCode.CONFLICT, "version 8"))
    assert await propose(store, PROPOSAL, PROPOSAL) == [inputs.IsrRefused(version=7, attempt=4)]


@pytest.mark.parametrize(
    "effect", [fx.ReportFailure(high_watermark=0), fx.ReportRenewal(), fx.ReportRecords(leader_epoch=3, end=1)]
)
async def test_a_node_says_of_its_own_log_in_its_incarnation(effect):
    store = Store(Outcome())
    assert await propose(store, effect) == []


async def test_a_partition_with_one_replica_tells_of_its_first_records():
    told = []

    async def propose_many(commands):
        told.extend(commands)
        return [Outcome()] * len(commands)

    proposals = ReplicaProposals("a", propose_many)
    for end in (3, 5):  # the newest counts
        proposals.add_alone(Replica.partition, fx.ReportRecords(leader_epoch=7, end=end))
    await asyncio.wait_for(proposals._sending, 10)
    ((op, _, args),) = told
    where = {"name": "orders", "uuid": "ab" * 16, "partition": 0}
    assert (op, args) == ("report_records", where | {"leader": "a", "leader_epoch": 7, "end": 5})
    await proposals.stop()
    proposals.add_alone(Replica.partition, fx.ReportRecords(leader_epoch=7, end=6))
    assert proposals._sending.done()
