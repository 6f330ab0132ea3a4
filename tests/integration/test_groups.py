"""Consumer groups against a real node: members that share, leave, die, freeze and come back; commits, and mistakes."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing

import pytest

import liftpy
from liftpy_client.errors import (
    CommitRefusedError,
    GroupFencedError,
    GroupRefusedError,
    NoStreamError,
    OffsetLostError,
    UsageError,
)
from liftpy_client.group.offsets import committed, reset_group
from liftpy_envelope.groups import GroupError
from support.cluster import eventually, quick_options
from support.group_kit import Reading, fill, member, reading
from support.group_process import MemberProcess

SHORT_S = 2.0  # the session of one who is to be given up


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def make(lift, name, partitions=6, count=60):
    await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, count)


class HandlerError(Exception):
    """What a handler raises."""


def check(message, bad):
    if message.offset == bad:
        raise HandlerError


def numbers(count, first=0):
    return {b"%d" % number for number in range(first, first + count)}


async def test_one_member_gets_everything(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: set(one.values) == numbers(60))
        assert one.consumer.assignment == [(name, number) for number in range(6)]
        assert one.consumer.member_id
        assert one.consumer.generation > 0
    assert len(one.values) == 60


async def test_a_member_that_joins_asks_once_where_everything_is(lift, shared_nats, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: set(one.values) == numbers(60))
    asked = []
    async with liftpy.connect(shared_nats.url) as other:
        request = other.nats.request

        async def counted(subject, *args, **named):
            asked.append(subject)
            return await request(subject, *args, **named)

        other.nats.request = counted
        async with other.consume(name, group=f"{name}-g") as consumer:
            assert await consumer.next(0.5) is None
            assert consumer.assignment
    assert asked == ["LIFT.API.METADATA"]


async def test_two_members_share_and_each_message_is_read_once(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: set(one.values) == numbers(60))
        async with reading(lift, name, f"{name}-g") as two:
            await eventually(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 3)
            await fill(lift, name, 60, 60)
            await eventually(lambda: set(one.values) | set(two.values) == numbers(120))
            assert len(one.values) + len(two.values) == 120
            assert not set(one.consumer.assignment) & set(two.consumer.assignment)
            assert sorted(one.of("on_revoked")) == two.consumer.assignment
            assert sorted(two.of("on_assigned")) == two.consumer.assignment
        await eventually(lambda: len(one.consumer.assignment) == 6)
        await fill(lift, name, 30, 120)
        await eventually(lambda: set(one.values) | set(two.values) == numbers(150))
        assert len(one.values) + len(two.values) == 150
        assert one.of("on_lost_partitions") == []


async def test_a_group_goes_on_where_it_was(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: len(one.values) == 60)
    await fill(lift, name, 20, 60)
    async with reading(lift, name, f"{name}-g") as two:
        await eventually(lambda: set(two.values) == numbers(20, 60))
    assert len(two.values) == 20


async def test_members_that_vanish_are_replaced(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one:
        two = await Reading(lift, name, f"{name}-g", session_timeout_s=SHORT_S).__aenter__()
        await eventually(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 3)
        await two.vanish()
        await eventually(lambda: len(one.consumer.assignment) == 6)
        await fill(lift, name, 60, 60)
        await eventually(lambda: set(one.values) >= numbers(60, 60))


async def offsets(lift, stream, group):
    return {number: row.offset for number, row in (await committed(lift._session, group, stream)).items()}


async def test_a_frozen_member_drops_what_it_had_and_commits_nothing(lift, shared_nats, name):
    await make(lift, name, partitions=2, count=400)
    group = f"{name}-g"
    async with MemberProcess(shared_nats.url, name, group, handling_s=0.02) as frozen:
        await eventually(lambda: frozen.count("message") > 5)
        frozen.process.send_signal(signal.SIGSTOP)
        async with reading(lift, name, group) as heir:
            await eventually(lambda: len(heir.consumer.assignment) == 2)
            await eventually(lambda: len(heir.values) > 200)
            await asyncio.sleep(0.3)
            before = await offsets(lift, name, group)
            told = len(frozen.lines)
            frozen.process.send_signal(signal.SIGCONT)
            await eventually(lambda: frozen.count("lost") == 1)
            # It may have said what it had in its hands when it was stopped, and nothing of what it had fetched.
            assert [line[0] for line in frozen.lines[told:]].index("lost") <= 1
            await eventually(lambda: len(heir.consumer.assignment) == 1)
            await fill(lift, name, 40, 400)
            await eventually(lambda: sum(line[0] == "message" for line in frozen.lines[told:]) > 5)
            after = await offsets(lift, name, group)
            assert all(after[number] >= offset for number, offset in before.items())


async def test_a_member_that_is_killed_loses_nothing(lift, shared_nats, name):
    await make(lift, name, partitions=2, count=100)
    async with MemberProcess(shared_nats.url, name, f"{name}-g", handling_s=0.02) as killed:
        await eventually(lambda: killed.count("message") > 20)
        await killed.kill()
        async with reading(lift, name, f"{name}-g") as heir:
            expected = {
                (name, message.partition, message.offset) async for message in lift.consume(name, stop="latest")
            }
            done = {(name, int(line[1]), int(line[2])) for line in killed.lines if line[0] == "message"}
            await eventually(lambda: done | heir.offsets == expected)
            assert len(heir.messages) < 100


async def test_a_static_member_that_is_back_in_time_moves_nothing(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g", instance_id="a", session_timeout_s=20.0) as stays:
        first = await Reading(lift, name, f"{name}-g", instance_id="b", session_timeout_s=20.0).__aenter__()
        await eventually(lambda: len(stays.consumer.assignment) == len(first.consumer.assignment) == 3)
        await eventually(lambda: set(stays.values) | set(first.values) == numbers(60))
        had, generation, events = first.consumer.assignment, stays.consumer.generation, len(stays.events)
        await first.stop()
        await fill(lift, name, 60, 60)
        async with reading(lift, name, f"{name}-g", instance_id="b", session_timeout_s=20.0) as second:
            await eventually(lambda: set(stays.values) | set(second.values) >= numbers(60, 60))
            assert second.consumer.assignment == had
            assert (stays.consumer.generation, len(stays.events)) == (generation, events)
            assert len(stays.values) + len(first.values) + len(second.values) == 120


async def test_of_two_with_one_instance_id_the_older_is_fenced(lift, name):
    await make(lift, name)
    older = await Reading(lift, name, f"{name}-g", instance_id="a").__aenter__()
    await eventually(lambda: len(older.consumer.assignment) == 6)
    async with reading(lift, name, f"{name}-g", instance_id="a") as newer:
        with pytest.raises(GroupFencedError, match="another process took the place of member 'a'"):
            await asyncio.wait_for(older.task, 40)
        await eventually(lambda: len(newer.consumer.assignment) == 6)
        await older.consumer.close()
        await fill(lift, name, 10, 60)
        await eventually(lambda: set(newer.values) >= numbers(10, 60))


async def test_a_handler_that_raises_leaves_its_message_uncommitted(lift, name):
    await make(lift, name, partitions=1, count=10)

    async def handle():
        async with member(lift, name, f"{name}-g") as consumer:
            async for message in consumer:
                check(message, 6)

    with pytest.raises(HandlerError):
        await handle()
    assert await offsets(lift, name, f"{name}-g") == {0: 6}
    async with member(lift, name, f"{name}-g") as consumer:
        async for message in consumer:
            assert message.offset == 6
            break
        assert (await consumer.next(20.0)).offset == 6  # whoever left the loop has not processed it
        assert (await consumer.next(20.0)).offset == 7
    assert await offsets(lift, name, f"{name}-g") == {0: 7}


async def test_the_natural_retry_loop_handles_every_message(lift, name):
    await make(lift, name, partitions=1, count=20)
    done, failing = [], {0, 5, 6, 19}
    async with asyncio.timeout(30), member(lift, name, f"{name}-g") as consumer:
        while len(done) < 20:
            try:
                async for message in consumer:
                    if message.offset in failing:
                        failing.remove(message.offset)
                        raise HandlerError
                    done.append(message.offset)
                    if len(done) == 20:
                        break
            except HandlerError:
                await consumer.commit()
                assert (await offsets(lift, name, f"{name}-g")).get(0, 0) == len(done)
    assert done == list(range(20))


async def test_what_was_returned_last_comes_again_if_wanted(lift, name):
    await make(lift, name, partitions=1, count=10)
    async with member(lift, name, f"{name}-g", commit_interval_s=None) as consumer:
        assert [(await consumer.next(20)).offset for _ in range(2)] == [0, 1]
        consumer.redeliver()
        assert (await consumer.next(20)).offset == 1
        await consumer.commit()
        assert await offsets(lift, name, f"{name}-g") == {0: 1}
        assert [message.offset for message in await consumer.next_batch(3, 20)] == [2, 3, 4]
        consumer.redeliver()
        await consumer.commit()
        assert await offsets(lift, name, f"{name}-g") == {0: 2}
        assert [message.offset for message in await consumer.next_batch(2, 20)] == [2, 3]


async def test_the_end_of_the_connection_ends_a_membership(lift, shared_nats, name):
    await make(lift, name, partitions=1, count=10)
    async with liftpy.connect(shared_nats.url) as other:
        async for message in member(other, name, f"{name}-g"):
            if message.offset == 5:
                break
    assert await offsets(lift, name, f"{name}-g") == {0: 5}
    details = await lift.group(f"{name}-g")
    assert not details.members


async def test_an_iteration_without_async_with_ends_the_membership(lift, name):
    await make(lift, name, partitions=1, count=10)

    async def handle():
        async with aclosing(aiter(member(lift, name, f"{name}-g"))) as messages:
            async for message in messages:
                check(message, 3)

    with pytest.raises(HandlerError):
        await handle()
    assert await offsets(lift, name, f"{name}-g") == {0: 3}


async def test_commits_that_are_refused(lift, name):
    await make(lift, name, partitions=2, count=20)
    await lift.create_stream(f"{name}-other", subject=f"{name}-other.>")
    async with (
        reading(lift, name, f"{name}-g", commit_interval_s=None) as one,
        reading(lift, name, f"{name}-g", commit_interval_s=None) as two,
    ):
        await eventually(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 1)
        ((_, mine),), ((_, others),) = one.consumer.assignment, two.consumer.assignment
        await eventually(lambda: one.consumer.position(mine) > 0)
        end = one.consumer.position(mine)
        refused = [
            ({(name, others): 0}, CommitRefusedError, "is not this consumer's: another member"),
            ({(name, 7): 0}, CommitRefusedError, "has partitions 0 to 1, not 7"),
            ({(f"{name}-none", 0): 0}, NoStreamError, "there is no stream"),
            ({(f"{name}-other", 0): 0}, CommitRefusedError, "is not one that this consumer"),
            ({(name, mine): end + 1}, CommitRefusedError, f"the partition ends at {end}"),
            ({(name, mine): -1}, UsageError, "-1 is not an offset"),
            ({(name, mine): end, (name, others): 0}, CommitRefusedError, "is not this consumer's"),
        ]
        for wanted, kind, text in refused:
            with pytest.raises(kind, match=text):
                await one.consumer.commit(wanted)
        assert await offsets(lift, name, f"{name}-g") == {}
        await one.consumer.commit({(name, mine): end})
        assert await offsets(lift, name, f"{name}-g") == {mine: end}


async def test_what_was_not_read_is_not_committed(lift, name):
    await make(lift, name, partitions=1, count=20)
    async with member(lift, name, f"{name}-g", commit_interval_s=0.05) as consumer:
        async for message in consumer:
            if message.offset == 4:
                with pytest.raises(CommitRefusedError, match="has read it up to 5, of 20"):
                    await consumer.commit({(name, 0): 6})
                await consumer.commit({(name, 0): 5})  # what is in hand
                await asyncio.sleep(0.3)  # and the automatic commits do not undo that
                assert await offsets(lift, name, f"{name}-g") == {0: 5}
                await consumer.commit()
            if message.offset == 10:
                await consumer.commit()
                assert await offsets(lift, name, f"{name}-g") == {0: 10}
                consumer.seek(2)
                await consumer.commit()
                assert await offsets(lift, name, f"{name}-g") == {0: 2}
                break


async def test_nothing_is_committed_unless_asked_when_there_is_no_interval(lift, name):
    await make(lift, name, partitions=1, count=20)
    async with reading(lift, name, f"{name}-g", commit_interval_s=None) as one:
        await eventually(lambda: len(one.values) == 20)
    assert await offsets(lift, name, f"{name}-g") == {}


async def test_groups_at_one_stream_do_not_know_of_each_other(lift, name):
    await make(lift, name)
    async with reading(lift, name, f"{name}-g") as one, reading(lift, name, f"{name}-h") as other:
        await eventually(lambda: set(one.values) == set(other.values) == numbers(60))
        assert len(one.consumer.assignment) == len(other.consumer.assignment) == 6


async def test_one_group_over_two_streams(lift, name):
    streams = [f"{name}-a", f"{name}-b"]
    for stream in streams:
        await make(lift, stream, partitions=2, count=20)
    async with reading(lift, streams, f"{name}-g") as one, reading(lift, streams, f"{name}-g") as two:
        await eventually(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 2)
        await eventually(lambda: len(one.offsets | two.offsets) == 40)
        assert set(one.consumer.assignment) | set(two.consumer.assignment) == {
            (stream, number) for stream in streams for number in range(2)
        }


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 9), ("new", 10)])
async def test_where_a_group_begins(lift, name, start, first):
    await make(lift, name, partitions=1, count=10)
    async with reading(lift, name, f"{name}-g", start=start) as one:
        await eventually(lambda: one.of("on_assigned"))
        await fill(lift, name, 5, 10)
        await eventually(lambda: one.values[-1:] == [b"14"])
        assert [message.offset for message in one.messages] == list(range(first, 15))


async def test_a_new_group_that_read_nothing_goes_on_from_its_start(lift, name):
    await make(lift, name, partitions=1, count=10)
    async with reading(lift, name, f"{name}-g", start="new", commit_interval_s=None) as one:
        await eventually(lambda: one.of("on_assigned"))
    await fill(lift, name, 5, 10)
    async with reading(lift, name, f"{name}-g", start="new") as two:
        await eventually(lambda: set(two.values) == numbers(5, 10))


@pytest.mark.parametrize("what", ["on_assigned", "on_revoked"])
async def test_a_callback_that_raises_reaches_the_caller(lift, name, what):
    await make(lift, name)

    async def fail(_partitions):
        raise HandlerError

    one = await Reading(lift, name, f"{name}-g", **{what: fail}).__aenter__()
    async with reading(lift, name, f"{name}-g") as two:
        with pytest.raises(HandlerError):
            await asyncio.wait_for(one.task, 40)
        await one.consumer.close()
        await eventually(lambda: len(two.consumer.assignment) == 6)


async def test_a_stream_that_is_deleted_and_created_again_begins_anew(lift, name):
    await make(lift, name, partitions=2, count=20)
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: len(one.values) == 20)
        await lift.delete_stream(name)
        await make(lift, name, partitions=3, count=30)
        await eventually(lambda: len(one.values) == 50)
        assert len(one.consumer.assignment) == 3
        assert set(one.values[20:]) == numbers(30)
    assert sum((await offsets(lift, name, f"{name}-g")).values()) == 30


async def test_batches(lift, name):
    await make(lift, name)
    rows = 0
    async with member(lift, name, f"{name}-g", batches=True) as consumer:
        async for records in consumer:
            rows += records.num_rows
            if rows == 60:
                break
        for (_, number), end in [(place, consumer.position(place[1])) for place in consumer.assignment]:
            await consumer.commit({(name, number): end})
    assert sum((await offsets(lift, name, f"{name}-g")).values()) == 60


async def test_a_group_is_reset(lift, name):
    await make(lift, name, partitions=2, count=20)
    session = lift._session
    async with reading(lift, name, f"{name}-g") as one:
        await eventually(lambda: len(one.values) == 20)
        with pytest.raises(GroupRefusedError, match="has members") as refused:
            await reset_group(session, f"{name}-g", {name: {0: 1}})
        assert refused.value.code is GroupError.GROUP_NOT_EMPTY
    with pytest.raises(CommitRefusedError, match="offset 99 is out of range; choose 0 to"):
        await reset_group(session, f"{name}-g", {name: {0: 99}})
    with pytest.raises(NoStreamError):
        await reset_group(session, f"{name}-g", {f"{name}-none": {0: 0}})
    before = await offsets(lift, name, f"{name}-g")
    await reset_group(session, f"{name}-g", {name: {0: 1}})
    assert await offsets(lift, name, f"{name}-g") == before | {0: 1}
    assert await offsets(lift, name, f"{name}-unknown") == {}


@pytest.mark.parametrize("group", ["", "a\nb", "x" * 10_000, "\ud800", 7, "\x7f"])
async def test_names_that_can_not_be_those_of_groups(lift, name, group):
    text = r"group: .* is not allowed: use 1 to 255 bytes"
    with pytest.raises(UsageError, match=text) as refused:
        member(lift, name, group)
    assert len(str(refused.value)) < 300
    with pytest.raises(UsageError, match=text):
        await reset_group(lift._session, group, {})
    with pytest.raises(UsageError, match=text):
        await committed(lift._session, group, name)


async def test_a_stream_that_does_not_exist(lift, name):
    with pytest.raises(NoStreamError, match="there is no stream"):
        await member(lift, name, "g").__aenter__()


async def test_a_node_that_restarts_is_not_noticed(lift, nats_server, node, name):
    async with liftpy.connect(nats_server.url, timeout_s=5.0) as client:
        await make(client, name, partitions=2, count=20)
        async with reading(client, name, "g", session_timeout_s=20.0) as one:
            await eventually(lambda: len(one.values) == 20)
            await asyncio.get_running_loop().run_in_executor(None, node.restart)
            await fill(client, name, 20, 20)
            await eventually(lambda: set(one.values) == numbers(40), 40)
            await one.consumer.commit()
            assert sum((await offsets(client, name, "g")).values()) == 40
        assert len(one.values) == 40
        assert [what for what, _ in one.events] == ["on_assigned", "on_revoked"]


async def test_an_offset_that_was_removed_is_said_or_left_behind(lift, name):
    await make(lift, name, partitions=1, count=20)
    await reset_group(lift._session, f"{name}-g", {name: {0: 5}})
    await lift.purge_stream(name)
    await fill(lift, name, 10, 20)
    one = await Reading(lift, name, f"{name}-g").__aenter__()
    with pytest.raises(OffsetLostError, match="offset 5 is out of range; choose 20 to") as lost:
        await asyncio.wait_for(one.task, 40)
    assert "reset_group" in lost.value.__notes__[0]
    await one.consumer.close()
    async with reading(lift, name, f"{name}-g", options=quick_options(on_lost="earliest")) as two:
        await eventually(lambda: set(two.values) == numbers(10, 20))
    assert await offsets(lift, name, f"{name}-g") == {0: 30}
