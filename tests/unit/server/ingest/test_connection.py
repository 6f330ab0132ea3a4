"""The ingest connection and a NATS server that does what a test says: what is subscribed, and which gaps there are."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_log.clock import SystemClock
from liftpy_server.ingest import binding as ingest_binding
from liftpy_server.ingest.cluster_watch import ClusterWatch
from liftpy_server.ingest.connection import IngestConnection, SubscriptionRefusedError
from liftpy_server.nats.connection import NatsConnection
from liftpy_server.nats.knocking import nobody_listens
from liftpy_server.nats.monitoring import MonitoringError, SlowConsumerLimits
from liftpy_server.partition.outbox import Outbox
from liftpy_server.settings.limits import ROUTE_GRACE_S
from support.ports import free_port
from support.scripted_nats import ScriptedNats

TICK_S = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("liftpy_server.nats.connection.CONFIRM_INTERVAL_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.connection.SUBSCRIBE_RETRY_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.connection.MOVE_OVERLAP_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.session.SHORT_CONNECTION_S", 0.0)


class Gaps:
    """Those of a partition: when they began, by the clock of elapsed time, whether they are over, and why."""

    def __init__(self) -> None:
        self.all: list[list] = []
        self.cause: str | None = None

    def open(self, since_s, cause):
        if self.cause is None:
            self.cause = cause
            self.all.append([since_s, False, cause])
        self.all[-1][0] = min(since_s, self.all[-1][0])

    def heard(self, asked_s):
        """Everything that was published before has come."""

    def close(self):
        if self.cause is not None:
            self.cause = None
            self.all[-1][1] = True


class Partition:
    """Has gaps."""

    is_leading = True
    held = None

    def __init__(self) -> None:
        self.gaps = Gaps()
        self.heard_s = 0.0


class Stream:
    """Has a partition for each subject; most tests look at the first."""

    def __init__(self, *subjects) -> None:
        self.partitions = [Partition() for _ in subjects]
        self.partition = self.partitions[0]
        self.bindings = [Binding(self, subject, number) for number, subject in enumerate(subjects)]

    @property
    def gaps(self):
        return self.partition.gaps.all

    @property
    def lapse(self):
        return self.partition.gaps.cause


class Binding(ingest_binding.Binding):
    """A subscription whose messages are kept."""

    def __init__(self, stream, subject, number) -> None:
        self.stream = stream
        self.subject = subject
        self.group = None
        self.partitions = {number: stream.partitions[number]}
        self.values: list[bytes] = []

    def deliver(self, run, _now_ns, _touched):
        self.values += [message.value for message in run.messages()]


class Kit:
    """An ingest connection and those who hear of it."""

    def __init__(self, *servers, ask_limits=None) -> None:
        self.clock = SystemClock()
        self.listening = []
        self.ingest = IngestConnection(
            NatsOptions(url=",".join(server.url for server in servers)),
            "test",
            self.clock,
            Outbox(lambda _: True),
            lambda: False,
            self.listening.append,
            random.Random(1),
            ask_limits=ask_limits,
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.ingest.stop()


async def until(condition):
    async with asyncio.timeout(30):
        while not (found := condition()):
            await asyncio.sleep(TICK_S / 4)
    return found


async def test_messages_arrive_and_what_is_unbound_is_counted():
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        client = await nats.client(0)
        assert kit.listening == [a]
        await kit.ingest.bind(b.bindings)
        assert set(client.subscriptions) == {"a", "b"}
        numbers = dict(client.subscriptions)
        client.message("a", b"1")
        client.message("b", b"2")
        await kit.ingest.unbind(b.bindings)
        assert set(client.subscriptions) == {"a"}
        client.subscriptions |= numbers
        client.message("b", b"late")
        client.message("a", b"3")
        await until(lambda: a.bindings[0].values == [b"1", b"3"])
        assert b.bindings[0].values == [b"2"]
        assert kit.ingest.unbound_messages == 1
        assert (a.gaps, b.gaps) == ([], [])


async def test_a_lost_connection_is_a_gap_from_the_last_answered_question():
    async with ScriptedNats() as nats, Kit(nats) as kit:
        stream = Stream("a")
        began_s = kit.clock.elapsed()
        await kit.ingest.start(stream.bindings)
        client = await nats.client(0)
        nats.answers = False
        await nats.until(lambda: client.unanswered >= 1)
        deaf_s = kit.clock.elapsed()
        await nats.until(lambda: client.unanswered >= 2)
        nats.answers = True
        client.writer.transport.abort()
        second = await nats.client(1)
        await until(lambda: stream.gaps and stream.gaps[-1][1])
        ((since_s, _, cause),) = stream.gaps
        assert began_s < since_s <= deaf_s
        assert cause == "the NATS connection was lost"
        assert kit.ingest.reconnects == 1
        second.message("a", b"after")
        await until(lambda: stream.bindings[0].values == [b"after"])


async def test_a_server_that_stops_answering_confirms_no_subscription():
    """`bind` returns, nobody is told that it listens, and the gap begins before."""
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        nats.answers = False
        before_s = kit.clock.elapsed()
        async with asyncio.timeout(5):
            await kit.ingest.bind(b.bindings)
        assert kit.listening == [a]
        assert a.gaps[0][0] <= before_s
        assert "did not answer" in a.gaps[0][2]
        assert a.lapse == b.lapse == a.gaps[0][2]
        async with asyncio.timeout(5):
            await kit.ingest.unbind([*a.bindings, *b.bindings])
            await kit.ingest.stop()


async def test_what_is_bound_without_a_connection_is_subscribed_with_the_next():
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        await nats.leave()
        await until(lambda: not kit.ingest.is_connected)
        await kit.ingest.bind(b.bindings)
        assert "no connection" in b.gaps[0][2]
        assert kit.ingest.refusal(b.bindings) is None
        await nats.listen()
        client = await nats.client(1)
        await until(lambda: b.gaps[0][1] and a.gaps[0][1])
        assert set(client.subscriptions) == {"a", "b"}


REFUSAL = "-ERR 'Permissions Violation for Subscription to %s'\r\n"


@pytest.mark.parametrize("text", ['"b"', '"\\u0062"', "b, in the words of another version"])
async def test_a_refused_subscription_is_a_gap_until_it_is_taken(text):
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        client = await nats.client(0)
        client.refusals["b"] = (REFUSAL % text).encode()
        await kit.ingest.bind(b.bindings)
        assert isinstance(kit.ingest.refusal(b.bindings), SubscriptionRefusedError)
        assert "refuses a subscription to b" in b.lapse
        assert kit.listening == [a]
        client.refusals.clear()
        await until(lambda: b.lapse is None)
        assert kit.listening == [a, b]
        assert kit.ingest.refusal(b.bindings) is None
        assert (len(b.gaps), a.gaps) == (1, [])


async def test_permissions_that_are_taken_away_open_a_gap():
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start([*a.bindings, *b.bindings])
        client = await nats.client(0)
        nats.answers = False
        await nats.until(lambda: client.unanswered == 1)
        asked_s = kit.clock.elapsed()
        client.refusals["b"] = (REFUSAL % '"b"').encode()
        client.send(client.refusals["b"].replace(b"'\r\n", b' (sid "%d")\'\r\n' % client.subscriptions["b"]))
        await until(lambda: b.lapse)
        nats.answers = True
        client.answer()
        assert (a.gaps, b.gaps[0][0] < asked_s) == ([], True), "what it says may be long on its way"
        client.refusals.clear()
        await until(lambda: b.lapse is None)


async def test_what_is_confirmed_of_one_partition_ends_no_gap_of_another():
    """Nor does it begin later for that: what was published to it since it was refused is missing."""
    async with ScriptedNats() as nats, Kit(nats) as kit:
        stream = Stream("a", "b")
        a, b = (partition.gaps for partition in stream.partitions)

        def refuse(client, subject):
            client.refusals[subject] = (REFUSAL % f'"{subject}"').encode()
            sid = client.subscriptions[subject]
            client.send(client.refusals[subject].replace(b"'\r\n", b' (sid "%d")\'\r\n' % sid))

        await kit.ingest.start(stream.bindings)
        client = await nats.client(0)
        refuse(client, "b")
        await until(lambda: b.cause)
        since_s = kit.clock.elapsed()
        refuse(client, "a")
        await until(lambda: a.cause)
        del client.refusals["a"]
        await until(lambda: a.cause is None)
        await kit.ingest.review(stream)
        await kit.ingest.bind(Stream("c").bindings)
        assert "refuses a subscription to b" in b.cause
        assert b.all[0][0] < since_s
        client.refusals.clear()
        await until(lambda: b.cause is None)


async def test_nobody_is_there_at_the_start(monkeypatch):
    dial, tries = NatsConnection._dial, []

    async def counted(self, *given):
        tries.append(given)
        await dial(self, *given)

    monkeypatch.setattr(NatsConnection, "_dial", counted)
    async with ScriptedNats() as nats:
        await nats.leave()
        async with Kit(nats) as kit:
            starting = asyncio.ensure_future(kit.ingest.start(Stream("a").bindings))
            await until(lambda: len(tries) > 1)  # the first one failed
            assert not starting.done()
            await nats.listen()
            await asyncio.wait_for(starting, 30)
            assert kit.ingest.is_connected


async def test_a_server_that_is_going_to_shut_down_is_left_for_another_without_a_gap(monkeypatch):
    monkeypatch.setattr("liftpy_server.ingest.connection.MOVE_OVERLAP_S", 10 * TICK_S)
    async with ScriptedNats() as first, ScriptedNats() as second, Kit(first) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        old = await first.client(0)
        second.answers = False
        old.send_info({"server_id": "S", "ldm": True, "connect_urls": [second.place]})
        new = await second.client(0)
        old.message("a", b"1")
        second.answers = True
        new.answer()
        await second.until(lambda: new.subscriptions)
        number = old.subscriptions["a"]
        new.message("a", b"3")
        await until(lambda: not kit.ingest._opening.connection._transport.is_reading())
        old.message("a", b"2")  # it was on its way between the servers for so long
        await first.until(lambda: old.is_gone)
        assert b"UNSUB %d" % number in old.lines
        await until(lambda: stream.bindings[0].values == [b"1", b"2", b"3"])
        assert stream.gaps == []
        await kit.ingest.unbind(stream.bindings)
        assert new.subscriptions == {}
        assert kit.ingest.reconnects == 1


class Change:
    """A change of servers that takes its time at each step, and holds nothing."""

    def __init__(self) -> None:
        self.steps = []
        self.may_leave = asyncio.Event()

    def hold(self, binding):
        return binding

    def subscribed(self):
        self.steps.append("subscribed")

    async def leave(self, _wanted, _servers, *, are_all):
        assert not are_all
        self.steps.append("leave")
        await self.may_leave.wait()


async def test_what_the_next_server_brings_is_bounded_before_others_are_asked_and_waits_while_too_much_is_due(
    monkeypatch,
):
    async with ScriptedNats() as first, ScriptedNats() as second, Kit(first) as kit:
        change = Change()
        kit.ingest._make_change = lambda _before, _new: change

        async def beside(*_):
            change.steps.append("asked others")
            return [], False

        monkeypatch.setattr(kit.ingest._session, "beside", beside)
        await kit.ingest.start(Stream("a").bindings)
        old = await first.client(0)
        old.send_info({"server_id": "S", "ldm": True, "connect_urls": [second.place]})
        await until(lambda: change.steps == ["subscribed", "asked others", "leave"])
        kit.ingest._is_overloaded = lambda: True
        change.may_leave.set()
        await first.until(lambda: old.is_gone)
        transport = kit.ingest._current.connection._transport
        assert not transport.is_reading()
        kit.ingest._is_overloaded = lambda: False
        await until(transport.is_reading)


async def test_handovers_end_before_a_server_is_left_for_another():
    async with ScriptedNats() as first, ScriptedNats() as second, Kit(first) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        ended, asked = asyncio.Event(), []

        async def handovers_end():
            asked.append(kit.ingest.is_changing)
            await ended.wait()

        kit.ingest.before_change = handovers_end
        old = await first.client(0)
        old.send_info({"server_id": "S", "ldm": True, "connect_urls": [second.place]})
        new = await second.client(0)
        await until(lambda: asked == [True])
        assert new.subscriptions == {}
        await asyncio.wait_for(kit.ingest.bind(Stream("b").bindings), 5)  # as a handover in hand may have to
        ended.set()
        await first.until(lambda: old.is_gone)
        assert not kit.ingest.is_changing


async def test_what_the_next_server_refuses_is_a_gap_from_what_the_one_before_brought():
    async with ScriptedNats() as first, ScriptedNats() as second, Kit(first) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        old = await first.client(0)
        second.answers = False
        old.send_info({"server_id": "S", "ldm": True, "connect_urls": [second.place]})
        new = await second.client(0)
        new.refusals["a"] = (REFUSAL % '"a"').encode()
        first.answers = False
        second.answers = True
        new.answer()
        await first.until(lambda: any(line.startswith(b"UNSUB") for line in old.lines))
        left_s = kit.clock.elapsed()
        first.answers = True
        old.answer()
        await until(lambda: stream.lapse)
        assert "refuses a subscription to a" in stream.lapse
        assert stream.gaps[0][0] <= left_s
        new.refusals.clear()
        await until(lambda: stream.lapse is None)


async def test_a_server_that_names_no_other_is_kept_until_it_goes():
    async with ScriptedNats() as nats, Kit(nats) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        client = await nats.client(0)
        client.send_info({"server_id": "S", "ldm": True})
        client.message("a", b"1")
        await until(lambda: stream.bindings[0].values)
        said_s = kit.clock.elapsed()
        await until(lambda: kit.ingest.whole_s > said_s)  # a question that was asked since then is answered
        assert not client.is_gone
        client.writer.transport.abort()
        await nats.client(1)
        await until(lambda: stream.gaps == [[stream.gaps[0][0], True, "the NATS connection was lost"]])


@pytest.mark.parametrize("when", ["before it is confirmed", "before the old one is left"])
async def test_the_other_server_goes_away_as_we_move(when):
    """Then the old one is used on, or there is a gap; and the next server is tried."""
    async with ScriptedNats() as first, ScriptedNats() as second, Kit(first) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        old = await first.client(0)
        if when == "before it is confirmed":
            second.answers = False
        else:
            first.answers = False
        old.send_info({"server_id": "S", "ldm": True, "connect_urls": [second.place]})
        new = await second.client(0)
        if when == "before it is confirmed":
            new.answer()
            await second.until(lambda: new.subscriptions)
            new.writer.transport.abort()
            second.answers = True
            await second.client(1)
            await first.until(lambda: old.is_gone)
            assert stream.gaps == []
        else:
            await first.until(lambda: not old.subscriptions)
            await second.leave()
            first.answers = True
            old.answer()
            await until(lambda: stream.gaps)
        await until(lambda: stream.lapse is None and kit.ingest.is_connected)


async def test_a_lost_route_is_a_gap_until_the_server_is_reached_again(monkeypatch):
    """And it may have been lost long before it was noticed, unless the server has ended."""
    monkeypatch.setattr("liftpy_server.ingest.connection.KNOCK_TIMEOUT_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.cluster_watch.ROUTE_GRACE_S", 5 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        told = []
        kit.ingest.on_route_lost = lambda *what: told.append(what)
        nats.info["connect_urls"] = [nats.place, other.place]
        await kit.ingest.start(a.bindings)
        client = await nats.client(0)
        client.send_info(nats.info | {"connect_urls": [nats.place]})
        lost_s = kit.clock.elapsed()
        await until(lambda: a.gaps and a.gaps[0][0] < lost_s - 80)
        assert [cause for _, cause in told] == [a.lapse, a.lapse], "at once, and again as the other server lives"
        assert told[1] == (a.gaps[0][0], a.lapse)
        assert a.lapse == f"a route between NATS servers was lost: {other.place}"
        await kit.ingest.bind(b.bindings)
        assert b.lapse == a.lapse
        assert kit.listening == [a, b]
        client.send_info(nats.info)
        await until(lambda: a.lapse is None and b.lapse is None)
        await other.leave()
        client.send_info(nats.info | {"connect_urls": [nats.place]})
        lost_s = kit.clock.elapsed()
        await until(lambda: len(a.gaps) == 2 and a.lapse is None)
        assert lost_s - 10 < a.gaps[1][0] <= lost_s


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_server_that_is_back_as_soon_as_its_loss_is_told_may_have_been_silent_before(monkeypatch, is_replaced):
    """Nobody could knock at it meanwhile. It was not silent if another answers there now: that has another id."""
    monkeypatch.setattr("liftpy_server.ingest.connection.KNOCK_TIMEOUT_S", 20 * TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.cluster_watch.ROUTE_GRACE_S", 50 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        of_cluster(other, nats)
        of_cluster(nats, other)
        nats.info["connect_urls"] = [nats.place]
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        client = await nats.client(0)
        both = {"connect_urls": [nats.place, other.place]}
        client.send_info(nats.info | both)
        await until(lambda: other.place in kit.ingest._cluster._ids)
        if is_replaced:
            other.info["server_id"] = "STARTED AGAIN"
        lost_s = kit.clock.elapsed()
        client.send_info(nats.info)
        client.send_info(nats.info | both)
        await until(lambda: stream.gaps)
        await until(lambda: stream.lapse is None)
        (gap,) = stream.gaps
        assert (gap[0] < lost_s - 80) is not is_replaced


def of_cluster(server, *others, name="C"):
    """What a server of a cluster says: it has routes to the others."""
    server.info |= {"server_id": server.place, "cluster": name}
    server.info["connect_urls"] = [each.place for each in (server, *others)]


@pytest.mark.parametrize("is_named_by_user", [True, False])
async def test_a_route_that_was_lost_before_we_came_is_a_gap(monkeypatch, is_named_by_user):
    """The lost server is known from the user, or from a third one."""
    knocks = []

    async def counted(places):
        knocks.append(await nobody_listens(places))
        return knocks[-1]

    monkeypatch.setattr("liftpy_server.ingest.connection.nobody_listens", counted)
    monkeypatch.setattr("liftpy_server.ingest.connection.KNOCK_TIMEOUT_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.cluster_watch.ROUTE_GRACE_S", 5 * TICK_S)
    async with ScriptedNats() as lost, ScriptedNats() as third, ScriptedNats() as nats:
        of_cluster(lost, *([] if is_named_by_user else [third]))
        of_cluster(third, lost, nats)
        of_cluster(nats, *([] if is_named_by_user else [third]))
        lost.refusal = third.refusal = "Authorization Violation"  # so that the first one is ours
        options = [nats, lost] if is_named_by_user else [nats]
        async with Kit(*options) as kit:
            kit.ingest._session._pool._named.sort(key=lambda address: address.place != nats.place)
            stream = Stream("a")
            began_s = kit.clock.elapsed()
            await kit.ingest.start(stream.bindings)
            client = await nats.client(0)
            await until(lambda: stream.lapse is not None)
            assert lost.place in stream.lapse
            await until(lambda: len(knocks) > 8)  # more than there are in the grace of a route that is back
            assert stream.lapse is not None, "the other server lives, and has publishers"
            assert began_s <= stream.gaps[0][0] <= kit.clock.elapsed(), "what was published before was not for us"
            client.send_info(nats.info | {"connect_urls": [each.place for each in (nats, lost, third)]})
            await until(lambda: stream.lapse is None)
            assert len(stream.gaps) == 1


@pytest.mark.parametrize(
    "how",
    ["another cluster", "no cluster", "it names nobody", "ours names nobody", "ours itself", "no server", "no address"],
)
async def test_servers_that_have_no_route_to_lose_are_no_gap(monkeypatch, how):
    monkeypatch.setattr("liftpy_server.nats.session.KNOCK_TIMEOUT_S", 50 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats:
        of_cluster(other, name="D" if how == "another cluster" else "C")
        of_cluster(nats)
        if how == "no cluster":
            del other.info["cluster"], nats.info["cluster"]
        elif how == "it names nobody":
            del other.info["connect_urls"]
        elif how == "ours names nobody":
            nats.info["connect_urls"] = []
        elif how == "ours itself":
            other.info["server_id"] = nats.info["server_id"]
        elif how == "no server":
            other.info["connect_urls"] = [nats.place, f"127.0.0.1:{free_port()}"]
        elif how == "no address":
            other.info["connect_urls"] = [nats.place, "127.0.0.1:many", "", 7]
        other.refusal = "Authorization Violation"
        async with Kit(nats, other) as kit:
            kit.ingest._session._pool._named.sort(key=lambda address: address.place != nats.place)
            stream = Stream("a")
            await kit.ingest.start(stream.bindings)
            await until(lambda: not any("asking" in name for name in kit.ingest._tasks))
            assert not stream.gaps


async def test_a_server_that_stands_still_while_we_subscribe_is_a_gap_until_it_has_spoken(monkeypatch):
    """When it goes on it may take messages before it reads who listens. What was subscribed before is not concerned."""
    monkeypatch.setattr("liftpy_server.ingest.stalled_servers.ROUTE_GRACE_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.connection.STALLED_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.session.KNOCK_TIMEOUT_S", 50 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        nats.info["connect_urls"] = [nats.place, other.place]
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        await until(lambda: not kit.ingest._unchecked and kit.ingest._tasks["checking servers"].done())
        other.stands_still = True
        since_s = kit.clock.elapsed()
        await kit.ingest.bind(b.bindings)
        await until(lambda: b.lapse)
        assert f"a NATS server stood still when this node subscribed: {other.place}" in kit.ingest.misses
        assert since_s <= b.gaps[0][0] < kit.clock.elapsed() - TICK_S
        assert a.gaps == []
        other.stands_still = False
        await until(lambda: b.lapse is None)
        assert (len(b.gaps), kit.ingest.misses) == (1, None)


async def test_the_gap_of_a_server_that_stood_still_ends_although_the_stream_has_another_subscription_by_then(
    monkeypatch,
):
    """The node has ceased to lead meanwhile, and leads again."""
    monkeypatch.setattr("liftpy_server.ingest.stalled_servers.ROUTE_GRACE_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.connection.STALLED_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.session.KNOCK_TIMEOUT_S", 50 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        nats.info["connect_urls"] = [nats.place, other.place]
        stream = Stream("a")
        await kit.ingest.start([])
        knock, is_known, goes_on = kit.ingest._session.knock, asyncio.Event(), asyncio.Event()

        async def slow(*args):
            found = await knock(*args)
            is_known.set()
            await goes_on.wait()
            return found

        monkeypatch.setattr(kit.ingest._session, "knock", slow)
        other.stands_still = True
        await kit.ingest.bind(stream.bindings)
        await is_known.wait()
        await kit.ingest.unbind(stream.bindings)
        await kit.ingest.bind([Binding(stream, "a", 0)])
        other.stands_still = False
        goes_on.set()
        await until(lambda: stream.gaps)
        await until(lambda: stream.lapse is None)


@pytest.mark.parametrize("fails", [False, True])
async def test_servers_are_checked_after_a_subscription_is_allowed_at_last(monkeypatch, caplog, fails):
    """Also when the first check fails."""
    monkeypatch.setattr("liftpy_server.ingest.stalled_servers.ROUTE_GRACE_S", TICK_S)
    monkeypatch.setattr("liftpy_server.ingest.connection.STALLED_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.session.KNOCK_TIMEOUT_S", 50 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        nats.info["connect_urls"] = [nats.place, other.place]
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        client = await nats.client(0)
        client.refusals["b"] = (REFUSAL % '"b"').encode()
        await kit.ingest.bind(b.bindings)
        await until(lambda: not kit.ingest._unchecked and kit.ingest._tasks["checking servers"].done())
        other.stands_still = True
        knock = kit.ingest._session.knock
        knocks = []

        async def failing(*args):
            knocks.append(args)
            if fails and len(knocks) == 1:
                raise OSError(24, "Too many open files")
            return await knock(*args)

        monkeypatch.setattr(kit.ingest._session, "knock", failing)
        client.refusals.clear()
        await until(lambda: kit.ingest.misses)
        assert other.place in kit.ingest.misses
        assert ("could not be checked" in caplog.text) is fails


async def test_a_server_that_stood_still_and_is_gone_ends_no_later(monkeypatch):
    monkeypatch.setattr("liftpy_server.ingest.connection.STALLED_S", TICK_S)
    monkeypatch.setattr("liftpy_server.nats.session.KNOCK_TIMEOUT_S", 10 * TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        nats.info["connect_urls"] = [nats.place, other.place]
        stream = Stream("a")
        other.stands_still = True
        await kit.ingest.start(stream.bindings)
        await until(lambda: stream.lapse)
        await other.leave()
        await until(lambda: stream.lapse is None)


@pytest.mark.parametrize("held_for_it", [object(), None])
async def test_what_another_node_leads_has_no_gap_here(monkeypatch, held_for_it):
    """Its leader tells of gaps; this node tells whoever wants to hand it over that it misses something.

    What this node led until now and has not unsubscribed yet is led elsewhere, too: a gap of it here would be ended by
    its leader, and would hide the one with which this node leads again.
    """
    monkeypatch.setattr("liftpy_server.ingest.connection.KNOCK_TIMEOUT_S", TICK_S)
    async with ScriptedNats() as other, ScriptedNats() as nats, Kit(nats) as kit:
        nats.info["connect_urls"] = [nats.place, other.place]
        led, held = Stream("a"), Stream("b")
        held.partition.is_leading, held.partition.held = False, held_for_it
        await kit.ingest.start([*led.bindings, *held.bindings])
        assert kit.ingest.misses is None
        client = await nats.client(0)
        client.send_info(nats.info | {"connect_urls": [nats.place]})
        await until(lambda: led.gaps)
        await kit.ingest.review(held)
        assert held.gaps == []
        assert "a route between NATS servers was lost" in kit.ingest.misses


def test_a_server_that_was_named_while_others_were_asked_is_a_gap_that_ends():
    watch = ClusterWatch()
    watch.told({"connect_urls": ["a:1"]}, "a:1", 0.0, 0.0)
    watch.told({"connect_urls": ["a:1", "b:1"]}, "a:1", 1.0, 1.0)
    assert watch.found({"b:1"}, 0.0, 2.0)
    assert watch.away == []
    assert not watch.is_whole(2.0)
    assert watch.is_whole(2.0 + ROUTE_GRACE_S)


async def test_a_subscription_that_is_not_confirmed_has_heard_nothing():
    """The answer to a question that was asked before says nothing about it."""
    async with ScriptedNats() as nats, Kit(nats) as kit:
        a, b = Stream("a"), Stream("b")
        await kit.ingest.start(a.bindings)
        client = await nats.client(0)
        nats.answers = False
        await nats.until(lambda: client.unanswered == 1)
        asked_s = kit.clock.elapsed()
        binding = asyncio.ensure_future(kit.ingest.bind(b.bindings))
        await nats.until(lambda: "b" in client.subscriptions)
        before_s = a.partition.heard_s
        client.send(b"PONG\r\n")
        client.unanswered -= 1
        await until(lambda: a.partition.heard_s > before_s)
        assert a.partition.heard_s <= asked_s
        assert b.partition.heard_s == 0
        nats.answers = True
        client.answer()
        await binding
        await until(lambda: b.partition.heard_s > asked_s)


async def test_a_slow_consumer_is_named():
    """The server says nothing: it was in the midst of a large message, or the node was behind."""
    async with ScriptedNats() as nats, Kit(nats) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        client = await nats.client(0)
        client.send(b"MSG a %d %d\r\nxx\r\nPING\r\n" % (client.subscriptions["a"], 3 << 20))
        client.writer.close()
        await until(lambda: stream.gaps)
        assert "in the midst of a message of 3.0 MiB, as it does with slow consumers" in stream.gaps[0][2]
        client = await nats.client(1)
        await until(lambda: kit.ingest.is_connected and stream.lapse is None)
        nats.answers = False
        kit.ingest.whole_s -= 5
        client.writer.close()
        await until(lambda: len(stream.gaps) == 2)
        assert "behind, as it does with slow consumers" in stream.gaps[1][2]


@pytest.mark.parametrize(("payload_mib", "is_named"), [(32, False), (33, True)])
async def test_a_server_that_cannot_hold_two_messages_may_have_dropped_a_slow_consumer(payload_mib, is_named):
    async def ask(_connection):
        return SlowConsumerLimits(64 << 20, 10.0)

    async with ScriptedNats({"max_payload": payload_mib << 20}) as nats, Kit(nats, ask_limits=ask) as kit:
        stream = Stream("a")
        await kit.ingest.start(stream.bindings)
        await until(lambda: not any("limits" in name for name in kit.ingest._tasks))
        (await nats.client(0)).writer.close()
        await until(lambda: stream.gaps)
        assert ("perhaps as it does with slow consumers: it holds 64 MiB" in stream.gaps[0][2]) == is_named


SMALL = "it holds 64 MiB for this node at most (max_pending); let it hold %d MiB or more"
SHORT = "it gives this node up when that takes nothing for 2 s (write_deadline); let it wait for 10 s or more"


@pytest.mark.parametrize(
    ("payload_mib", "told", "said"),
    [
        (60, None, ["is not known here, and should be 480 MiB or more"]),
        (1, None, []),
        (1, SlowConsumerLimits(1 << 30, 30.0), []),
        (1, SlowConsumerLimits(64 << 20, 10.0), [SMALL % 256]),
        (60, SlowConsumerLimits(64 << 20, 2.0), [SMALL % 480, SHORT]),
        (1, SlowConsumerLimits(1 << 30, 2.0), [SHORT]),
    ],
)
async def test_a_server_that_is_soon_to_lose_patience_is_warned_of(caplog, payload_mib, told, said):
    caplog.set_level(logging.INFO)

    async def ask(connection):
        assert connection.is_open
        if told is None:
            raise MonitoringError("http://n:8222/varz does not answer")
        return told

    async with ScriptedNats({"max_payload": payload_mib << 20}) as nats, Kit(nats, ask_limits=ask) as kit:
        await kit.ingest.start([])
        await until(lambda: not any("limits" in name for name in kit.ingest._tasks))
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == bool(said)
    assert all(text in warned[0] for text in said)
    assert ("are not known here: http://n:8222/varz does not answer" in caplog.text) == (told is None)
