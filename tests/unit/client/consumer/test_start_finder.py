"""Where to begin is asked until it is known: in a busy cluster any answer may be missed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy_client.connection.cluster import NobodyAnswersError, StreamPlace
from liftpy_client.consumer.options import ConsumeOptions
from liftpy_client.consumer.start_finder import StartFinder
from liftpy_client.errors import AdminError, DisconnectedError, NodeUnavailableError, NoStreamError, PullError
from liftpy_client.group.offsets import find_bounds
from liftpy_envelope.bodies import pack_body
from liftpy_envelope.errors import ErrorCode, FrameError
from liftpy_envelope.pull import LATEST, OffsetResult
from liftpy_envelope.stream_config import StreamConfig

PLACE = StreamPlace(bytes(16), StreamConfig(name="s", subject="s"), ("n1",), (("n1",),))


class Cluster:
    """Answers, but for errors that are told beforehand."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.asked = 0

    async def stream(self, name, *, fresh):
        assert (name, fresh) == ("s", True)
        return await self.latest(name)

    async def latest(self, _name):
        self.asked += 1
        if self.errors and (error := self.errors.pop(0)):
            raise error
        return PLACE


class Connection:
    def __init__(self, unknown=(), changed=list):
        self.unknown = unknown
        self.changed = changed

    async def request(self, _api, body):
        return SimpleNamespace(result=pack_body([self.changed([self.answer(*query) for query in body.queries])]))

    def answer(self, key, query):
        if query in self.unknown:
            return OffsetResult(key, ErrorCode.NOT_AVAILABLE, "it is not known what is committed", -1, -1)
        return OffsetResult(key, ErrorCode.NONE, "", 5, 0)

    def close(self):
        pass


class Session:
    def __init__(self, cluster, *errors):
        self.cluster = cluster
        self.options = SimpleNamespace(timeout_s=5.0)
        self.nats = SimpleNamespace(is_closed=False)
        self.errors = list(errors)
        self.unknown = ()
        self.changed = list

    async def open_pull(self, _node_id):
        if self.errors and (error := self.errors.pop(0)):
            raise error
        return Connection(self.unknown, self.changed)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("liftpy_client.consumer.start_finder._START_PAUSE_S", 0.0)


async def found(session):
    _, positions = await StartFinder(session, "earliest", None, None, ConsumeOptions()).find("s")
    return positions[0].offset


MISSED = NodeUnavailableError("no liftpy node answered LIFT.API.METADATA within 2 s")
BUSY = AdminError(ErrorCode.NOT_AVAILABLE, "the node starts")


@pytest.mark.parametrize("error", [MISSED, BUSY], ids=["no answer", "not now"])
@pytest.mark.parametrize("first", [TimeoutError(), PullError(ErrorCode.NOT_LEADER, "elsewhere"), MISSED])
async def test_an_answer_that_is_missed_is_asked_for_again(first, error):
    assert await found(Session(Cluster(error))) == 5
    assert await found(Session(Cluster(None, error, error), first)) == 5


@pytest.mark.parametrize(
    "changed",
    [
        lambda rows: rows * 2,
        lambda rows: rows[:-1],
        lambda rows: [row._replace(key=row.key._replace(uuid=bytes(15) + b"x")) for row in rows],
        lambda rows: [row._replace(key=row.key._replace(partition=row.key.partition + 1)) for row in rows],
    ],
    ids=["more", "fewer", "another stream", "another partition"],
)
async def test_answers_to_other_questions_are_refused(changed):
    session = Session(Cluster())
    session.changed = changed
    with pytest.raises(FrameError, match="partitions were asked for, and the answer is not about these"):
        await found(session)


@pytest.mark.parametrize("changed", [lambda _: [5], lambda _: None], ids=["no rows", "nothing"])
async def test_answers_that_are_none_are_refused(changed):
    session = Session(Cluster())
    session.changed = changed
    with pytest.raises(FrameError, match="malformed offsets response: results"):
        await found(session)


async def test_patience_ends(monkeypatch):
    monkeypatch.setattr("liftpy_client.consumer.start_finder._START_S", 0.01)
    with pytest.raises(NodeUnavailableError, match="no liftpy node answered"):
        await found(Session(Cluster(*[MISSED] * 100_000)))
    with pytest.raises(NodeUnavailableError, match="the node that leads s cannot be reached: no answer"):
        await found(Session(Cluster(), *[TimeoutError()] * 100_000))
    with pytest.raises(PullError, match="elsewhere"):
        await found(Session(Cluster(), *[PullError(ErrorCode.NOT_LEADER, "elsewhere")] * 100_000))


@pytest.mark.parametrize(
    "error",
    [
        NoStreamError("there is none"),
        AdminError(ErrorCode.INVALID_REQUEST, "no"),
        NobodyAnswersError("is one running?"),
    ],
)
async def test_what_no_patience_helps_is_told_at_once(error):
    cluster = Cluster(error)
    with pytest.raises(type(error)):
        await found(Session(cluster))
    assert cluster.asked == 1


async def test_a_client_that_was_closed_waits_for_nothing():
    session = Session(Cluster(None, DisconnectedError("the connection to NATS is closed")), TimeoutError())
    session.nats.is_closed = True
    with pytest.raises(NodeUnavailableError):
        await found(session)
    session.nats.is_closed = False
    assert await found(session) == 5


@pytest.mark.parametrize(("start", "stop"), [("earliest", None), (7, None), ({0: 7}, None), (7, 9), ("earliest", 9)])
async def test_who_need_not_know_the_end_does_not_wait_for_it(start, stop):
    session = Session(Cluster())
    session.unknown = (LATEST,)
    _, positions = await StartFinder(session, start, stop, None, ConsumeOptions()).find("s")
    at = positions[0]
    assert (at.offset, at.stop, at.high_watermark) == (5 if start == "earliest" else 7, stop, -1)


@pytest.mark.parametrize(("start", "stop"), [("earliest", "latest"), ("latest", None), ("new", 9), (7, "latest")])
async def test_who_must_know_the_end_waits_until_it_is_known(monkeypatch, start, stop):
    monkeypatch.setattr("liftpy_client.consumer.start_finder._START_S", 0.01)
    session = Session(Cluster())
    session.unknown = (LATEST,)
    with pytest.raises(PullError, match="it is not known what is committed"):
        await StartFinder(session, start, stop, None, ConsumeOptions()).find("s")


async def test_the_bounds_of_a_stream_have_an_end():
    session = Session(Cluster())
    assert (await find_bounds(session, "s", [0]))[1] == {0: (5, 5)}
    session.unknown = (LATEST,)
    session.nats.is_closed = True
    with pytest.raises(PullError, match="it is not known what is committed"):
        await find_bounds(session, "s", [0])


async def test_a_partition_that_is_named_twice_is_read_once():
    _, found = await StartFinder(Session(Cluster()), "earliest", "latest", [0, 0], ConsumeOptions()).find("s")
    assert list(found) == [0]
