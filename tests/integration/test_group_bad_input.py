"""What users get wrong with consumer groups, by the client and over the wire, and what an attacker would send."""

from __future__ import annotations

import random
import secrets

import msgpack
import psutil
import pytest

import liftpy
from liftpy_client.errors import UsageError
from liftpy_envelope.group_offsets import CommitStream
from liftpy_envelope.group_routing import GROUPS_STREAM
from liftpy_envelope.groups import GroupError
from liftpy_envelope.pull import Api, PartitionKey
from support.cluster import eventually, quick_options
from support.group_kit import fill, member, reading
from support.group_requests import GroupPull, offsets_of
from support.raw_pull import RawPull, frame, pull_token

GROUP_APIS = (
    Api.OFFSET_COMMIT,
    Api.OFFSET_FETCH,
    Api.GROUP_JOIN,
    Api.GROUP_HEARTBEAT,
    Api.GROUP_LEAVE,
    Api.FIND_COORDINATOR,
)


@pytest.fixture
def lift(shared_lift):
    return shared_lift


@pytest.fixture
async def pull(lift, shared_node):
    async with await GroupPull.open(lift, shared_node.pull_port) as pull:
        yield pull


async def make(lift, name, partitions=2, count=20):
    """The uuid of a stream with messages."""
    details = await lift.create_stream(name, subject=f"{name}.>", partitions=partitions)
    await fill(lift, name, count)
    return bytes.fromhex(details.uuid)


async def ends(lift, name):
    return {row.partition: row.high_watermark for row in (await lift.stream_info(name)).partitions}


# -- commits


async def test_an_offset_beyond_the_end_is_refused_by_the_node_and_the_others_stand(lift, pull, name):
    uuid = await make(lift, name)
    end = await ends(lift, name)
    await pull.find(name)
    answer = await pull.commit(name, None, 0, [offsets_of(uuid, name, {0: end[0] + 1, 1: end[1]})])
    assert answer.error is GroupError.NONE
    assert answer.refusals == ((PartitionKey(uuid, 0), GroupError.INVALID_REQUEST),)
    keys = [PartitionKey(uuid, number) for number in range(2)]
    assert await pull.offsets(name, keys) == {keys[1]: end[1]}


async def test_a_member_can_not_commit_beyond_the_end_either(lift, pull, name):
    uuid = await make(lift, name, partitions=1)
    await pull.find(name)
    one = await pull.join(name, secrets.token_bytes(16), [name])
    answer = await pull.commit(name, one, 1, [offsets_of(uuid, name, {0: 21})])
    assert answer.refusals == ((PartitionKey(uuid, 0), GroupError.INVALID_REQUEST),)
    assert await pull.offsets(name, [PartitionKey(uuid, 0)]) == {}
    assert (await pull.commit(name, one, 2, [offsets_of(uuid, name, {0: 20})])).refusals == ()
    assert await pull.offsets(name, [PartitionKey(uuid, 0)]) == {PartitionKey(uuid, 0): 20}


async def test_commits_for_what_does_not_exist(lift, pull, name):
    uuid, other = await make(lift, name), secrets.token_bytes(16)
    await pull.find(name)
    for stream, error in (
        (offsets_of(other, "nothing", {0: 1}), GroupError.UNKNOWN_STREAM),
        (offsets_of(other, name, {0: 1}), GroupError.STREAM_RECREATED),
        (offsets_of(uuid, name, {2: 0}), GroupError.INVALID_REQUEST),
        (offsets_of(uuid, GROUPS_STREAM, {0: 0}), GroupError.UNKNOWN_STREAM),
    ):
        answer = await pull.commit(name, None, 0, [stream])
        assert [row.error for row in answer.refusals] == [error]
    assert await pull.offsets(name, [PartitionKey(uuid, number) for number in range(3)]) == {}
    assert name not in [each.group for each in await lift.groups()]


async def test_a_partition_that_is_there_twice_is_no_request(lift, pull, name):
    uuid = await make(lift, name)
    rows = [[0, 1, -1, b""], [0, 2, -1, b""]]
    answer = await pull.pull.request(Api.OFFSET_COMMIT, [name, "", "", -1, 0, [[uuid, name, rows]]])
    assert (answer.error, answer.result) == (1, None)
    assert "a partition is there twice" in answer.message


# -- what is said in callbacks


async def test_where_to_go_on_is_said_when_partitions_are_assigned(lift, name):
    await make(lift, name, partitions=1)
    got = []

    def assigned(partitions):
        assert partitions == [(name, 0)]
        assert consumer.position(0) == 0
        consumer.seek({0: 7})
        assert consumer.position(0) == 7

    consumer = member(lift, name, name, on_assigned=assigned)
    async with consumer:
        async for message in consumer:
            got.append(message.offset)
            if message.offset == 19:
                await consumer.commit(message)
                break
    assert got == list(range(7, 20))
    assert (await lift.committed(name, name))[0].offset == 20


async def test_what_is_paused_when_it_is_assigned_waits(lift, name):
    await make(lift, name, partitions=2)
    async with reading(lift, name, name, on_assigned=lambda _: reader.consumer.pause([1])) as reader:
        end = await ends(lift, name)
        await eventually(lambda: len(reader.messages) == end[0])
        assert reader.consumer.position(1) == 0
        reader.consumer.resume([1])
        await eventually(lambda: len(reader.messages) == 20)


async def test_a_callback_commits_when_the_consumer_closes(lift, name):
    await make(lift, name, partitions=1)

    async def revoked(_partitions):
        await consumer.commit()

    consumer = member(lift, name, name, on_revoked=revoked, commit_interval_s=None)
    async with consumer:
        async for message in consumer:
            if message.offset == 5:
                break
    assert (await lift.committed(name, name))[0].offset == 5, "the message in hand is not processed"
    with pytest.raises(UsageError, match="not in its group"):
        await consumer.commit()


async def test_a_callback_that_is_told_of_a_loss_is_refused_a_commit_and_nothing_hangs(lift, pull, name):
    await make(lift, name, partitions=1)
    refused = []

    async def lost(_partitions):
        try:
            await reader.consumer.commit({(name, 0): 1})
        except liftpy.LiftError as error:
            refused.append(error)

    async with reading(lift, name, name, on_lost_partitions=lost) as reader:
        await eventually(lambda: len(reader.messages) == 20)
        before = reader.consumer.member_id
        await pull.find(name)
        await pull.leave(name, await pull.join(name, reader.consumer._member._nonce, [name]))
        await eventually(lambda: reader.consumer.member_id not in {"", before} and reader.consumer.assignment)
        assert len(refused) == 1


# -- names and settings


@pytest.mark.parametrize("group", [">", "*", "a.b", "caf\u00e9 \U0001f389", " ", "x" * 255, "__consumer_offsets"])
async def test_odd_names_that_are_text_are_names(lift, name, group):
    stream = f"s{secrets.token_hex(8)}"
    await make(lift, stream, partitions=1)
    async with member(lift, stream, group) as consumer:
        async for message in consumer:
            if message.offset == 9:
                await consumer.commit(message)
                break
    assert (await lift.committed(group, stream))[0].offset == 10
    assert (await lift.group(group)).offsets[0].offset == 10
    await lift.delete_group(group)
    assert await lift.committed(group, stream) == {}


@pytest.mark.parametrize("group", ["", "x" * 10_000, "\U0001f389" * 64, "a\nb", "a\0b", "\ud800", b"g", 7])
async def test_names_that_are_none_are_refused_before_anything_is_asked(lift, name, group):
    with pytest.raises(UsageError, match=r"^group: .* is not allowed: use 1 to 255 bytes of text"):
        lift.consume(name, group=group)
    with pytest.raises(UsageError, match=r"^group: "):
        await lift.committed(group, name)
    with pytest.raises(UsageError, match=r"^group: "):
        await lift.reset_group(group, {name: {0: 0}})


async def test_a_group_can_not_consume_what_is_liftpys_own(lift):
    with pytest.raises(UsageError, match=r"'__consumer_offsets' is liftpy's own, and can be read only without a group"):
        lift.consume(GROUPS_STREAM, group="g")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"session_timeout_s": 0.5}, r"session_timeout_s must be between 1 and 1800, not 0\.5"),
        ({"session_timeout_s": 1_801.0}, r"session_timeout_s must be between 1 and 1800, not 1801\.0"),
        ({"session_timeout_s": float("nan")}, "session_timeout_s must be between 1 and 1800, not nan"),
        ({"on_assigned": 3}, r"on_assigned: 3 cannot be called"),
        ({"instance_id": "x" * 256}, r"instance_id: .* \(256 characters\) is not allowed"),
    ],
)
def test_options_that_can_not_be(setting, text):
    with pytest.raises(UsageError, match=text):
        liftpy.GroupOptions(**setting)


async def test_a_session_timeout_that_can_not_be_is_refused_by_the_node_too(lift, pull, name):
    body = [name, secrets.token_bytes(16), 0, "", "c", "", 999, 10_000, [name]]
    for session_ms in (0, 999, 1_800_001, 2**40, -1, "10", None, 1e4, True):
        body[6] = session_ms
        answer = await pull.pull.request(Api.GROUP_JOIN, body)
        assert answer.error == 1, session_ms
        assert "session" in answer.message or "group_join" in answer.message


@pytest.mark.slow
async def test_the_thousand_and_first_member_is_told_so(lift, pull, name):
    await make(lift, name, count=0)
    await pull.find(name)
    patient = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    for _ in range(1_000):
        joined = await pull.join(name, secrets.token_bytes(16), [name], **patient)
        assert joined.error is GroupError.NONE
    answer = await pull.join(name, secrets.token_bytes(16), [name])
    assert (answer.error, answer.message) == (
        GroupError.GROUP_FULL,
        f"group '{name}' has 1000 members and takes no more",
    )

    async def consume():
        async for _ in member(lift, name, name):
            pass

    with pytest.raises(liftpy.GroupRefusedError, match="has 1000 members and takes no more"):
        await consume()


# -- streams that change under a consumer


async def test_a_stream_that_is_made_anew_is_read_from_its_beginning_by_who_is_there(lift, name):
    await make(lift, name, partitions=1)
    async with reading(lift, name, name) as reader:
        await eventually(lambda: len(reader.messages) == 20)
        await lift.delete_stream(name)
        await make(lift, name, partitions=1, count=3)
        await eventually(lambda: len(reader.messages) == 23, 40)
        assert [message.offset for message in reader.messages[20:]] == [0, 1, 2]
    assert (await lift.committed(name, name))[0].offset == 3


@pytest.mark.parametrize("on_lost", ["error", "earliest", "latest", "new"])
async def test_a_committed_offset_that_was_purged(lift, name, on_lost):
    await make(lift, name, partitions=1)
    await lift.reset_group(name, {name: {0: 5}})
    await lift.purge_stream(name, offset=12)
    got = []

    async def consume():
        async with member(lift, name, name, options=quick_options(on_lost=on_lost)) as consumer:
            async for message in consumer:
                got.append(message.offset)
                if message.offset >= 19:
                    return

    if on_lost == "error":
        with pytest.raises(liftpy.OffsetLostError, match="5") as caught:
            await consume()
        assert (caught.value.log_start, caught.value.log_end) == (12, 20)
        assert caught.value.__notes__ == [f"group '{name}' was to go on there; `reset_group` moves it elsewhere"]
        assert (await lift.committed(name, name))[0].offset == 5
    elif on_lost != "new":
        await consume()
        assert got == list(range(12 if on_lost == "earliest" else 19, 20))
    else:
        async with reading(lift, name, name, options=quick_options(on_lost=on_lost)) as reader:
            await eventually(lambda: reader.consumer.assignment and reader.consumer.position() == 20)
            await fill(lift, name, 1, 20)
            await eventually(lambda: [message.offset for message in reader.messages] == [20])


# -- keys


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 4 * 2**20])
async def test_a_key_that_nats_does_not_take_is_refused_and_the_connection_goes_on(lift, name, size):
    await lift.create_stream(name, subject=name)
    for key, headers in ((b"k" * size, None), (b"k", {"X-Large": "x" * size}), (b"\xff" * size, None)):
        with pytest.raises(UsageError, match="exceeds max_payload of the NATS server"):
            await lift.publish(name, b"value", key=key, headers=headers)
    ack = await lift.publish(name, b"value", key=b"k" * 500_000)
    (message,) = [message async for message in lift.consume(name, stop="latest")]
    assert (message.offset, len(message.key)) == (ack.offset, 500_000)


# -- garbage


def garbage(chance, depth=0):
    """Anything that msgpack can say, of a bounded size."""
    kinds = ["int", "text", "bytes", "none", "bool", "float", "huge", "uuid"]
    kind = chance.choice(kinds + ["list", "map"] * 2 if depth < 4 else kinds)
    if kind == "list":
        return [garbage(chance, depth + 1) for _ in range(chance.randrange(8))]
    if kind == "map":
        return {str(chance.randrange(9)): garbage(chance, depth + 1) for _ in range(chance.randrange(3))}
    return {
        "int": lambda: chance.randrange(-3, 40),
        "text": lambda: chance.choice(["", "g", "x" * 300, "a\nb", "\0", "\U0001f389", "1-" + "ab" * 16]),
        "bytes": lambda: chance.randbytes(chance.choice([0, 1, 15, 16, 17, 2_000])),
        "none": lambda: None,
        "bool": lambda: chance.random() < 0.5,
        "float": lambda: chance.choice([0.0, float("nan"), float("inf"), 1e300]),
        "huge": lambda: chance.choice([2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]),
        "uuid": lambda: bytes(16),
    }[kind]()


def mangled(chance, body):
    """A body that is right but for one place."""
    body = list(body)
    at = chance.randrange(len(body))
    if isinstance(body[at], list) and body[at] and chance.random() < 0.7:
        body[at] = mangled(chance, body[at])
    else:
        body[at] = garbage(chance, 2)
    return body


def bodies(name, uuid):
    """Right bodies, by api."""
    return {
        Api.OFFSET_COMMIT: [name, "", "", -1, 0, [[uuid, name, [[0, 1, -1, b"m"], [1, 1, 0, b""]]]]],
        Api.OFFSET_FETCH: [name, "", "", -1, [[uuid, 0], [uuid, 1]]],
        Api.GROUP_JOIN: [name, bytes(16), 0, "i", "c", "r", 6_000, 6_000, [name]],
        Api.GROUP_HEARTBEAT: [name, "1-" + "00" * 16, "i", 1, 0],
        Api.GROUP_LEAVE: [name, "1-" + "00" * 16, "i"],
        Api.FIND_COORDINATOR: [[name, "other"]],
    }


async def test_garbage_is_answered_or_the_connection_ends_and_the_node_stays_as_it_was(lift, shared_node, pull, name):
    uuid = await make(lift, name)
    await pull.find(name)
    chance = random.Random(7)
    right = bodies(name, uuid)
    process = psutil.Process(shared_node.process.pid)
    token = await pull_token(lift)
    told = len(shared_node.log())
    sizes = []
    for _ in range(3):
        async with await RawPull.open(shared_node.pull_port) as raw:
            await raw.hello(token)
            for _ in range(1_000):
                api = chance.choice(GROUP_APIS)
                body = mangled(chance, right[api]) if chance.random() < 0.7 else garbage(chance)
                answer = await raw.request(api, body, chance.choice([1, 1, 1, 1, 0, 2, 99]))
                assert answer.error in {0, 1, 2}, (api, body, answer)
                assert len(answer.message) < 1_000
        sizes.append(process.memory_info().rss)
    assert sizes[2] < sizes[0] + 16 * 2**20
    for data in (b"\xff" * 64, frame(1, 5, 1, 0)[:-1] + b"\xc1", msgpack.packb([1] * 100)):
        async with await RawPull.open(shared_node.pull_port) as raw:
            await raw.hello(token)
            raw.write(data)
            raw.writer.write_eof()
            await raw.rest()
    assert "Traceback" not in shared_node.log()[told:]
    assert "read anew" not in shared_node.log()[told:]
    one = await pull.join(f"{name}-after", secrets.token_bytes(16), [name])
    assert one.error is GroupError.NONE
    assert (await pull.commit(f"{name}-after", one, 1, [CommitStream(uuid, name, ())])).error is GroupError.NONE
