"""What is measured of clusters: three nodes, three replicas of everything."""

from __future__ import annotations

import time
from statistics import mean

from bench.cluster_rig import NODES, ClusterRig, Node, until
from bench.processes import cpu_s, open_files, traffic
from bench.rig import resident, run_client, run_load
from bench.row import SIZES, Row

_IDLE_S = 5.0
_OUTSTANDING = 50
_OPEN_S = 300.0
_CALM_S = 3.0


def cluster(home, plan):
    """Acked messages, R3 against R3."""
    for sync, label in (("interval", "interval / default"), ("always", "always / always")):
        is_durable = sync == "always"
        with ClusterRig(home / f"cluster-{sync}", sync_always=is_durable) as three:
            for size, is_beside in ((128, True), (1_024, True), (128, False)):
                place = "" if is_beside else ", publisher at another server"
                what = f"acked, window 1,000, {SIZES[size]}{place}"
                row = Row(f"cluster, 3 replicas, {what}", label, "acked/s")
                cost = Row(f"cluster, CPU of all servers, {what}", label, "us/message", smaller_is_better=True)
                count = plan.acked[size]
                settings = {"liftpy": {"sync": sync}, "JetStream": {}}
                for run in range(plan.runs):
                    for contestant, server in (("liftpy", three.liftpy), ("JetStream", three.jetstream)):
                        name = f"{contestant}-{size}-{'beside' if is_beside else 'away'}-{run}"
                        server.create(name, name, **settings[contestant])
                        load = {"port": server.port(name, is_beside=is_beside), "subject": name}
                        load |= {"size": size, "count": count, "window": 1_000}
                        before = _all_cpu_s(three)
                        _acked_run(row, contestant, server, name, load)
                        cost.add(contestant, 1e6 * (_all_cpu_s(three) - before) / count)
                        server.delete(name)
                yield row
                yield cost


def _all_cpu_s(three):
    """CPU seconds so far of the nats-servers and the nodes, which are all that works for either contestant."""
    return sum(cpu_s(each.pid) for each in (*three.servers, *three.nodes))


def _acked_run(row, contestant, server, name, load):
    """One run on a fresh stream; everything acknowledged must be there, on every replica."""
    figures = run_load("acked", **load)
    row.add(contestant, figures["rate"])
    acked = load["count"] - figures["refused"]
    stored = server.settled(name, acked)
    if figures["refused"] or stored != acked:
        row.note = f"{contestant} acknowledged {acked:,} of {load['count']:,} and stored {stored:,}"


def followers(home, plan):
    """What a GiB costs a follower, and those who feed it."""
    count, size, window = plan.followed, 1_024, 5_000
    for sync in ("interval", "always"):
        with ClusterRig(home / f"followers-{sync}") as three:
            row = Row(f"cluster, CPU of a follower, 1 KiB, {count * size / 2**30:.1f} GiB", sync, "s/GiB")
            row.smaller_is_better = row.is_absolute = True
            for run in range(plan.follower_runs):
                name = f"follow-{run}"
                three.liftpy.create(name, name, sync=sync)
                pids = {node.name: node.pid for node in three.nodes}
                idle = _spent(pids, lambda: time.sleep(_IDLE_S))
                load = {"port": three.liftpy.port(name), "subject": name}

                def work(name=name, load=load):
                    run_load("acked", size=size, count=count, window=window, **load)
                    three.liftpy.settled(name, count)

                spent = _spent(pids, work)
                leader = three.liftpy.leader(name)
                for node, (busy_s, took_s) in spent.items():
                    per_gib = (busy_s - idle[node][0] / idle[node][1] * took_s) / (count * size / 2**30)
                    row.add("its leader" if node == leader else "liftpy", per_gib)
                three.liftpy.delete(name)
            row.note = f"{plan.follower_runs} runs, window {window:,}; less what the node needs when idle"
            yield row


def _spent(pids, work):
    """By name: CPU seconds of a process while something is done, and how long that took."""
    before, started = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    work()
    took_s = time.monotonic() - started
    return {name: (cpu_s(pid) - before[name], took_s) for name, pid in pids.items()}


def idle(home, plan):
    """What partitions without messages cost."""
    for count in plan.idle_streams:
        with ClusterRig(home / f"idle-{count}") as three:
            yield from _idle(three, count, plan.idle_s)


def _idle(three, count, idle_s):
    what = f"cluster, {count:,} streams x {NODES} replicas"
    figures = run_client("create_streams", url=three.servers[0].url, count=count, outstanding=_OUTSTANDING)
    yield _figure(f"{what}: created, {_OUTSTANDING} at once", "streams/s", figures["rate"], is_less_better=False)
    until(lambda: three.liftpy.are_whole(count), _OPEN_S, f"{count} streams with all replicas in sync")
    time.sleep(_CALM_S)
    kinds = {node.cluster_port: "metadata" for node in three.nodes} | {node.pull_port: "pull" for node in three.nodes}
    kinds |= {server.port: "NATS" for server in three.servers}
    pids = {node.name: node.pid for node in three.nodes}
    before = traffic(pids.values(), kinds)
    spent = _spent(pids, lambda: time.sleep(idle_s))
    after = traffic(pids.values(), kinds)
    yield _figure(f"{what}: idle, CPU per node", "% of a core", *(100 * cpu / took for cpu, took in spent.values()))
    took_s = max(took for _, took in spent.values())
    by_kind = {
        kind: [(after[pid][kind] - before[pid][kind]) / took_s for pid in pids.values()]
        for kind in sorted(set(kinds.values()))
    }
    network = _figure(f"{what}: idle, network per node", "bytes/s", *map(sum, zip(*by_kind.values(), strict=True)))
    network.note = "sent and received; " + ", ".join(f"{kind} {mean(each):,.0f}" for kind, each in by_kind.items())
    yield network
    yield _figure(f"{what}: memory per node", "MiB", *(resident(pid)[0] / 2**20 for pid in pids.values()))
    yield _figure(f"{what}: file descriptors per node", "files", *map(open_files, pids.values()))
    yield from _restart(three, what, count)


def _restart(three, what, count):
    """One node stops and starts again, with all its data."""
    node: Node = three.nodes[-1]
    stopped = time.monotonic()
    node.stop()
    started = time.monotonic()
    node.spawn()
    node.wait_ready()
    ready = time.monotonic()
    until(lambda: three.liftpy.are_whole(count), _OPEN_S, f"{count} streams with all replicas in sync again")
    row = _figure(f"{what}: a node starts, until it is ready", "s", ready - started)
    row.note = f"it took {started - stopped:.1f} s to stop; all replicas are in sync {time.monotonic() - started:.1f} s"
    row.note += " after the start"
    yield row


def _figure(workload, unit, *values, is_less_better=True):
    row = Row(workload, "always", unit, smaller_is_better=is_less_better, is_absolute=True)
    for value in values:
        row.add("liftpy", value)
    return row


CLUSTER_WORKLOADS = {"cluster": cluster, "cluster-followers": followers, "cluster-idle": idle}
