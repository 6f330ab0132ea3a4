"""What is measured. Each workload runs the peers one after the other, several times, and yields rows."""

from __future__ import annotations

from bench.chunk_workload import chunk
from bench.compaction_workload import compaction
from bench.go_publisher import build_go_publisher
from bench.group_workloads import GROUP_WORKLOADS
from bench.rig import finish, resident, run_client, run_load, spawn, start_load, wait_for_count
from bench.row import SIZES, Row
from bench.wire import request

WINDOWS = (100, 1_000, 5_000)


def plain(rig, plan):
    """Flat out, no acks: what is stored, and what is lost."""
    for publishers in (1, 8):
        limit = "null subscriber"
        row = Row(
            f"plain publish, {publishers} publisher{'s' * (publishers > 1)}, 128 B", "", "msgs/s stored", peer=limit
        )
        row.durability = "liftpy: always; JetStream: default"
        lost = Row(
            f"lost of {plan.plain:,}, {publishers} publisher{'s' * (publishers > 1)}", row.durability, "messages"
        )
        lost.smaller_is_better = True
        each = plan.plain // publishers
        for run in range(plan.runs):
            _plain_null(rig, row, each, publishers)
            for contestant, server, subject in (
                ("liftpy", rig.liftpy, f"plain{publishers}.{run}"),
                ("JetStream", rig.jetstream, f"plain{publishers}.{run}"),
            ):
                name = f"plain{publishers}x{run}"
                if contestant == "liftpy":
                    server.create(name, subject)
                else:
                    server.create(name, [subject])
                loads = [
                    spawn("load", "plain", {"port": server.port, "subjects": [subject], "size": 128, "count": each})
                    for _ in range(publishers)
                ]
                figures = [finish(load) for load in loads]
                stored, ended = wait_for_count(lambda name=name, server=server: server.count(name), each * publishers)
                row.add(contestant, stored / (ended - min(figure["started"] for figure in figures)))
                lost.add(contestant, each * publishers - stored)
                server.delete(name)
        yield row
        yield lost


def _plain_null(rig, row, each, publishers):
    subject = "limit.plain"
    arguments = {"port": rig.nats.port, "subject": subject, "size": 128, "count": each * publishers}
    with start_load("null_subscriber", **arguments) as wait:
        loads = [
            spawn("load", "plain", {"port": rig.nats.port, "subjects": [subject], "size": 128, "count": each})
            for _ in range(publishers)
        ]
        figures = [finish(load) for load in loads]
        ended = wait()
    row.add("null subscriber", ended["received"] / (ended["ended"] - min(figure["started"] for figure in figures)))


def acked(rig, plan):
    """With acks: one at a time, and with windows."""
    for sync, jetstream in (("interval", rig.jetstream), ("always", rig.jetstream_always)):
        is_durable = sync == "always"
        label = "always / always" if is_durable else "interval / default"
        rig.liftpy.create(f"acked-{sync}", f"acked.{sync}", sync=sync)
        jetstream.create("acked", ["acked.>"])
        for size, name in SIZES.items():
            for window in (1, *WINDOWS):
                count = plan.single if window == 1 else plan.acked[size]
                if is_durable:
                    count = max(500, count // (4 if window == 1 else 1))
                yield _acked_row(rig, plan, jetstream, f"acked.{sync}", size, name, window, count, label, is_durable)
        jetstream.delete("acked")
        rig.liftpy.delete(f"acked-{sync}")


def acked_go(rig, plan):
    """With acks, by `PublishAsync` of nats.go, where Go is."""
    publish = build_go_publisher(rig.home)
    for sync, jetstream in (("interval", rig.jetstream), ("always", rig.jetstream_always)):
        if publish is None:
            return
        label = "always / always" if sync == "always" else "interval / default"
        rig.liftpy.create(f"go-{sync}", f"go.{sync}", sync=sync)
        jetstream.create("go", ["go.>"])
        for size in (128, 1_024):
            for window in WINDOWS:
                row = Row(f"acked by nats.go, window {window:,}, {SIZES[size]}", label, "acked/s")
                count = plan.acked[size] // 2
                theirs = count if sync == "interval" else max(500, count // 20)
                for _ in range(plan.runs):
                    row.add("liftpy", publish(rig.liftpy.port, f"go.{sync}", size, count, window))
                    row.add("JetStream", publish(jetstream.port, f"go.{sync}", size, theirs, window))
                yield row
        jetstream.delete("go")
        rig.liftpy.delete(f"go-{sync}")


def durable(rig, plan):
    """What durability costs: the same load on a stream of each kind, in turn."""
    kinds = {"liftpy": "always", "relaxed": "interval"}
    for sync in kinds.values():
        rig.liftpy.create(f"cost-{sync}", f"cost.{sync}", sync=sync)
    for size, name in SIZES.items():
        row = Row(f"durable against our own relaxed, window 1,000, {name}", "always / interval", "acked/s")
        row.peer = "relaxed"
        for _ in range(plan.runs):
            for contestant, sync in kinds.items():
                load = {"subject": f"cost.{sync}", "size": size, "window": 1_000, "count": plan.acked[size]}
                row.add(contestant, run_load("acked", port=rig.liftpy.port, **load)["rate"])
        yield row
    for sync in kinds.values():
        rig.liftpy.delete(f"cost-{sync}")


def _acked_row(rig, plan, jetstream, subject, size, name, window, count, label, is_durable):
    single = window == 1
    row = Row(f"acked, window {window:,}, {name}", label, "us p50" if single else "acked/s", smaller_is_better=single)
    figure = "p50_us" if single else "rate"
    theirs = count if not is_durable or single else max(500, count // 20)
    for _ in range(plan.runs):
        load = {"subject": subject, "size": size, "window": window}
        for contestant, port, total in (("liftpy", rig.liftpy.port, count), ("JetStream", jetstream.port, theirs)):
            figures = run_load("acked", port=port, count=total, **load)
            row.add(contestant, figures[figure])
            if figures["refused"]:
                row.note = f"{contestant} refused {figures['refused']:,} of {total:,}"
        with start_load("null_responder", port=rig.nats.port, subject=subject):
            row.add("null responder", run_load("acked", port=rig.nats.port, count=count, **load)[figure])
    return row


def dedupe(rig, plan):
    """Acked, every message with an id."""
    rig.liftpy.create("dedupe", "dedupe", sync="interval", dedupe_ids_max=1_000_000)
    rig.jetstream.create("dedupe", ["dedupe"], duplicate_window=120_000_000_000)
    row = Row("acked with Nats-Msg-Id, window 1,000, 128 B", "interval / default", "acked/s")
    load = {"subject": "dedupe", "size": 128, "count": plan.acked[128] // 4, "window": 1_000, "ids": True}
    for _ in range(plan.runs):
        row.add("liftpy", run_load("acked", port=rig.liftpy.port, **load)["rate"])
        row.add("JetStream", run_load("acked", port=rig.jetstream.port, **load)["rate"])
    rig.liftpy.delete("dedupe")
    rig.jetstream.delete("dedupe")
    yield row


def interleaved(rig, plan):
    """One publisher, round robin over a thousand streams, against the same over one stream."""
    count = plan.plain // 2
    subjects = [f"many.{number}" for number in range(plan.streams)]
    for number, subject in enumerate(subjects):
        rig.liftpy.create(f"many-{number}", subject)
    rig.liftpy.create("one", "one.*")
    row = Row(
        f"plain publish, {plan.streams:,} interleaved streams, 128 B", "always", "msgs/s stored", peer="one stream"
    )
    for _ in range(plan.runs):
        for contestant, names, targets in (
            ("one stream", ["one"], [f"one.{number}" for number in range(plan.streams)]),
            ("liftpy", [f"many-{number}" for number in range(plan.streams)], subjects),
        ):
            before, last = _total(rig.liftpy, names), names[-1]
            before_last = rig.liftpy.count(last)
            load = run_load("plain", port=rig.liftpy.port, subjects=targets, size=128, count=count)
            # Only the stream that gets the last message is asked: to list a thousand of them is work for the node.
            _, ended = wait_for_count(
                lambda last=last, before_last=before_last: rig.liftpy.count(last) - before_last, count // len(names)
            )
            stored = _total(rig.liftpy, names) - before
            row.add(contestant, stored / (ended - load["started"]))
            if stored < count:
                row.note = f"{count - stored:,} lost"
    for number in range(plan.streams):
        rig.liftpy.delete(f"many-{number}")
    rig.liftpy.delete("one")
    yield row


def _total(server, names):
    """Messages in a set of streams."""
    wanted, total, offset, streams = set(names), 0, 0, 1
    while offset < streams:
        page = request(server.port, "LIFT.API.STREAM.LIST", {"offset": offset, "limit": 256})
        streams, offset = page["total"], offset + len(page["streams"])
        total += sum(stream["messages"] for stream in page["streams"] if stream["name"] in wanted)
    return total


def publisher(rig, plan):
    """The batching publisher against JetStream's best acked rate."""
    rig.liftpy.create("batched", "batched", sync="interval")
    rig.jetstream.create("best", ["best"])
    calls = Row("batching publisher, called per message, 128 B", "interval / default", "acked/s")
    arrow = Row("batching publisher, fed with Arrow, 128 B", "interval / default", "acked/s")
    count = plan.acked[128]
    for _ in range(plan.runs):
        best = max(
            run_load("acked", port=rig.jetstream.port, subject="best", size=128, count=count, window=window)["rate"]
            for window in (1_000, 5_000)
        )
        common = {"url": rig.liftpy.url, "subject": "batched", "size": 128}
        calls.add("liftpy", run_client("publish_calls", count=count, **common)["rate"])
        arrow.add("liftpy", run_client("publish_arrow", count=count * 5, rows=3_000, **common)["rate"])
        calls.add("JetStream", best)
        arrow.add("JetStream", best)
    calls.note = arrow.note = "against JetStream's best acked rate, from a raw socket"
    rig.liftpy.delete("batched")
    rig.jetstream.delete("best")
    yield calls
    yield arrow


def consume(rig, plan):
    """A stream that was just written, read by one Python process."""
    rig.liftpy.create("hot", "hot", sync="interval")
    rig.jetstream.create("hot", ["hot"])
    count = plan.consume
    run_load("plain", port=rig.liftpy.port, subjects=["hot"], size=128, count=count)
    stored, _ = wait_for_count(lambda: rig.liftpy.count("hot"), count)
    theirs = min(count, 200_000)
    run_load("acked", port=rig.jetstream.port, subject="hot", size=128, count=theirs, window=1_000)
    single = Row("consume per message, hot, 128 B", "-", "msgs/s")
    batches = Row("consume in Arrow batches, hot, 128 B", "-", "msgs/s")
    for _ in range(plan.runs):
        single.add("liftpy", run_client("consume_messages", url=rig.liftpy.url, stream="hot", count=stored)["rate"])
        batches.add("liftpy", run_client("consume_batches", url=rig.liftpy.url, stream="hot", count=stored)["rate"])
        url = rig.jetstream.server.url
        rate = run_client("consume_jetstream", url=url, stream="hot", count=theirs)["rate"]
        single.add("JetStream", rate)
        batches.add("JetStream", rate)
    single.note = batches.note = "JetStream: nats-py pull consumer, fetch of 1,000, no acks"
    rig.liftpy.delete("hot")
    rig.jetstream.delete("hot")
    yield single
    yield batches


def consumer_memory(rig, plan):
    """What a consumer of a stream of 2 GiB needs."""
    del plan
    rig.liftpy.create("large", "large", sync="interval")
    rows, size = 2_100_000, 1_024
    run_client("publish_arrow", url=rig.liftpy.url, subject="large", size=size, count=rows, rows=400)
    stored = rig.liftpy.count("large")
    row = Row(f"peak memory of a consumer of {stored * size / 2**30:.1f} GiB", "-", "MiB", smaller_is_better=True)
    row.is_absolute = True
    figures = run_client("consume_messages", url=rig.liftpy.url, stream="large", count=stored)
    row.add("liftpy", figures["peak_bytes"] / 2**20)
    rig.liftpy.delete("large")
    yield row


def server_memory(rig, plan):
    """What the servers took at most, with everything that ran before."""
    del plan
    row = Row("peak memory of the server, after all of the above", "-", "MiB", smaller_is_better=True, is_absolute=True)
    for contestant, pid in (
        ("liftpy", rig.liftpy.pid),
        ("JetStream", rig.jetstream.server.pid),
        ("its nats-server", rig.liftpy.server.pid),
    ):
        row.add(contestant, resident(pid)[1] / 2**20)
    yield row


WORKLOADS = {
    "acked": acked,
    "acked-go": acked_go,
    "chunk": chunk,
    "durable": durable,
    "plain": plain,
    "interleaved": interleaved,
    "publisher": publisher,
    "dedupe": dedupe,
    "consume": consume,
    "memory": consumer_memory,
    "server-memory": server_memory,
    "compaction": compaction,
    **GROUP_WORKLOADS,
}
