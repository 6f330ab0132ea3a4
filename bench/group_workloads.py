"""Consumer groups: places kept per second, the time until they are known after a restart, and what a group costs."""

from __future__ import annotations

import statistics
import time
from threading import Event, Thread

from bench.pull import GroupSocket
from bench.rig import finish, run_client, run_load, spawn, wait_for_count
from bench.row import Row
from liftpy_envelope.group_offsets import OffsetFetchRequest
from liftpy_envelope.group_routing import GROUPS_STREAM, partition_of_group
from liftpy_envelope.pull import Api, PartitionKey

_GROUPS, _MEMBERS = 32, 2  # each member has a connection, and one request on its way
_RECORD_BYTES = 150  # of a committed offset in the log: key, value, and what a record adds
_SEGMENT_BYTES = 8 * 1024 * 1024
_LOOK_S = 0.5
_REPLAY_PARTITIONS = 1_000  # of the stream of which the groups commit all


def offsets(rig, plan):
    """Members of many groups commit without a pause."""
    places = _GROUPS * _MEMBERS
    size = Row(
        "size of the log of the groups while they commit",
        "always",
        "MiB",
        smaller_is_better=True,
        peer="allowed",
    )
    keys = 0
    for each in (10, 100):
        row = Row(
            f"offsets committed, {_GROUPS} groups of {_MEMBERS}, {each} per request",
            "always / confirmed before it is on disk",
            "offsets/s",
            is_absolute=True,
        )
        stream = f"places{each}"
        rig.liftpy.create(stream, f"{stream}.>", partitions=_MEMBERS * each)
        figures, acks = [], []
        for _ in range(plan.runs):
            keys += places * each
            load = {"port": rig.liftpy.port, "groups": _GROUPS, "members": _MEMBERS, "each": each}
            figures.append(_commits(rig, size, keys, load | {"stream": stream, "seconds": plan.offsets_s}))
            row.add("liftpy", figures[-1]["rate"])
            acks.append(_acks(rig, places, each, plan))
            row.add("JetStream", acks[-1]["rate"])
        p50_ms, p99_ms = (statistics.median(figure[name] for figure in figures) for name in ("p50_ms", "p99_ms"))
        row.note = (
            f"for {plan.offsets_s:g} s a run, p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms per request, {places} at once; "
            f"JetStream: {places} pull consumers with AckAll, {each} acks of each on their way, every one confirmed "
            f"(+ACK with a reply), for {min(figure['elapsed'] for figure in acks):.1f} s at least; with sync_interval "
            f"always it confirms before the consumer's state is on disk; each owes {plan.places:,} messages at first, "
            "and with more of them its acks are slower"
        )
        rig.liftpy.delete(stream)
        yield row
    size.note = "allowed: twice its live size and two segments per partition; a sample every half second"
    yield size


def _commits(rig, size, keys, load):
    """One run of commits; its figures. What the log of the groups takes meanwhile goes into `size`."""
    has_ended, peak = Event(), [0]

    def look():
        while not has_ended.wait(_LOOK_S):
            peak[0] = max(peak[0], rig.liftpy.info(GROUPS_STREAM)["bytes"])

    process = spawn("group_load", "commits", load)
    process.stdout.readline()  # it is ready, and the log of the groups is there
    looking = Thread(target=look)
    looking.start()
    try:
        figures = finish(process)
    finally:
        has_ended.set()
        looking.join()
    partitions = len(rig.liftpy.info(GROUPS_STREAM)["partitions"])
    size.add("liftpy", peak[0] / 2**20)
    size.add("allowed", (2 * keys * _RECORD_BYTES + 2 * partitions * _SEGMENT_BYTES) / 2**20)
    return figures


def _acks(rig, consumers, each, plan):
    rig.jetstream_always.create("places", ["places"])
    run_load("acked", port=rig.jetstream_always.port, subject="places", size=16, count=plan.places, window=500)
    arguments = {"port": rig.jetstream_always.port, "stream": "places", "consumers": consumers, "window": each}
    figures = finish(spawn("group_load", "acks", arguments | {"count": plan.places, "seconds": plan.offsets_s}))
    rig.jetstream_always.delete("places")
    return figures


def replay(rig, plan):
    """A node with many committed offsets starts again."""
    groups = [f"replay-{number}" for number in range(plan.replayed // _REPLAY_PARTITIONS)]
    rig.liftpy.create("replay", "replay.>", partitions=_REPLAY_PARTITIONS)
    load = {"port": rig.liftpy.port, "stream": "replay", "groups": groups, "partitions": _REPLAY_PARTITIONS}
    finish(spawn("group_load", "fill", load))
    row = Row(
        f"a node with {plan.replayed:,} committed offsets starts, until its groups answer",
        "always",
        "s",
        smaller_is_better=True,
        is_absolute=True,
    )
    count = len(rig.liftpy.info(GROUPS_STREAM)["partitions"])
    asked = {partition_of_group(group, count): group for group in groups}.values()
    uuid = bytes.fromhex(rig.liftpy.info("replay")["uuid"])
    keys = tuple(PartitionKey(uuid, number) for number in range(_REPLAY_PARTITIONS))
    readies = []
    for _ in range(plan.runs):
        rig.liftpy.stop_node()
        started = time.monotonic()
        rig.liftpy.start_node()
        readies.append(time.monotonic() - started)
        link = GroupSocket(rig.liftpy.port)
        for group in asked:
            found = link.ask(Api.OFFSET_FETCH, OffsetFetchRequest(group, "", "", -1, keys)).offsets
            assert len(found) == _REPLAY_PARTITIONS, f"{group}: {len(found)} offsets are left"
        row.add("liftpy", time.monotonic() - started)
        link.close()
    row.note = f"from the start of the process, which is ready after {statistics.median(readies):.1f} s; one group "
    row.note += f"in each of {len(asked)} partitions, all of its {_REPLAY_PARTITIONS:,} offsets"
    rig.liftpy.delete("replay")
    yield row


def consume(rig, plan):
    """A stream that was just written, read by one member of a group."""
    rig.liftpy.create("grouped", "grouped", sync="interval")
    rig.jetstream.create("grouped", ["grouped"])
    run_load("plain", port=rig.liftpy.port, subjects=["grouped"], size=128, count=plan.consume)
    stored, _ = wait_for_count(lambda: rig.liftpy.count("grouped"), plan.consume)
    theirs = min(plan.consume, 100_000)
    run_load("acked", port=rig.jetstream.port, subject="grouped", size=128, count=theirs, window=1_000)
    cost = Row("consume in a group with checkpoints, hot, 128 B", "-", "msgs/s", peer="no group")
    ratio = Row("consume in a group with checkpoints, against acks, hot, 128 B", "-", "msgs/s")
    for run in range(plan.runs):
        load = {"url": rig.liftpy.url, "stream": "grouped", "count": stored}
        figures = run_client("consume_group", group=f"reader-{run}", **load)
        assert figures["committed"] == stored, figures
        cost.add("liftpy", figures["rate"])
        ratio.add("liftpy", figures["rate"])
        cost.add("no group", run_client("consume_messages", **load)["rate"])
        load = {"url": rig.jetstream.server.url, "stream": "grouped", "count": theirs}
        ratio.add("JetStream", run_client("consume_acked", **load)["rate"])
    cost.note = "both from the first message on, without the time in which the member joins; a checkpoint each second, "
    cost.note += "and the last one when it is closed"
    ratio.note = "JetStream: nats-py pull consumer, fetch of 1,000, an ack per message"
    rig.liftpy.delete("grouped")
    rig.jetstream.delete("grouped")
    yield cost
    yield ratio


GROUP_WORKLOADS = {"offsets": offsets, "offsets-replay": replay, "group-consume": consume}
