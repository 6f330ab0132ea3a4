"""Whatever the nodes of a cluster propose, in whatever order: what was committed stays where it can be found.

Commands are drawn so that most of them fit the state (its epochs, versions and incarnations), or a state that is a
little older, as late ones do.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from liftpy_server.metadata.commands import Command, apply_command
from liftpy_server.metadata.state import MetadataState, PartitionInfo
from support.examples import examples
from support.metadata_commands import NODE, UUIDS, WHERE, Cluster

NODES = "abcdef"
KINDS = (
    *("change_isr", "reassign_partitions", "finish_reassignment") * 3,
    *("register_node", "expire_node", "move_leader"),
    *("suspect_leaders", "cancel_reassignment", "report_log", "drain_node", "remove_node", "update_stream"),
    "recover_partition",
)


def command(state: MetadataState, kind: str, node: str, some: list[str], number: int, *, flag: bool) -> dict[str, Any]:
    """Arguments that fit a state."""
    info = state.streams["orders"].partitions[0]
    term = {"leader_epoch": info.leader_epoch, "version": info.version}
    incarnation = state.nodes[node].incarnation if node in state.nodes else 1
    known = {each.node_id: each.incarnation for each in state.nodes.values()}
    isr = [each for each in info.voters if each in some or each == info.leader]
    if info.target is not None and flag:  # what a leader does whose followers have caught up
        isr = [each for each in info.voters if not (each in state.nodes and state.nodes[each].expired)]
    given_args: dict[str, dict[str, Any]] = {
        "register_node": {
            "node": NODE | {"node_id": node, "level": number % 2 + 1},
            "is_log_proven": number > 1,
            "lost": [[UUIDS[0], 0]] if number == 2 and flag else [],
            "cut": [[UUIDS[0], 0]] if number == 3 and flag else [],
        },
        "expire_node": {"node_id": node, "incarnation": incarnation},
        "change_isr": WHERE | term | {"leader": info.leader, "isr": isr, "incarnations": known},
        "move_leader": WHERE | term | {"leader": node},
        "suspect_leaders": {
            "node_id": node,
            "incarnation": incarnation,
            "partitions": [["orders", UUIDS[0], 0, info.leader_epoch], ["orders", UUIDS[0], number, 1]],
        },
        "report_log": WHERE
        | {"node_id": node, "incarnation": incarnation, "last_epoch": number - 1, "log_end": len(some)}
        | {"high_watermark": len(some) * flag, "leader_epoch": info.leader_epoch},
        "recover_partition": WHERE
        | {"version": info.version, "given_up": some, "accept_data_loss": flag, "leader": node if flag else None}
        | {"logs": [[each, known.get(each, 1), number, 5, 5] for each in info.replicas if each not in some]},
        "reassign_partitions": {
            "name": "orders",
            "uuid": UUIDS[0],
            "moves": [[0, some, some[3:] if flag else [node] if node not in some else []]],
        },
        "finish_reassignment": WHERE | term,
        "cancel_reassignment": dict(WHERE),
        "drain_node": {"node_id": node, "draining": flag},
        "remove_node": {"node_id": node},
        "update_stream": {"name": "orders", "changes": {"min_isr": number or None}},
    }
    return given_args[kind]


_steps = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(NODES),
    st.lists(st.sampled_from(NODES), max_size=5, unique=True),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0, 0, 0, 0, 1, 2]),  # how many states ago its proposer looked
)


def run(steps: list[Any], seen: Counter[str]) -> list[tuple[MetadataState, Command]]:
    """Apply commands to a cluster, and check every one. Returns the states before each, and the commands."""
    cluster = Cluster("a", "b", "c")
    for node in "de":
        cluster.register(node)
    past = []
    for count, (kind, node, some, number, flag, ago) in enumerate(steps):
        looked_at = past[-ago][0] if ago and len(past) >= ago else cluster.state
        args = command(looked_at, kind, node, some, number, flag=flag)
        given_command = Command(id=f"s{count}", op=kind, now_ns=count * 10**9, args=args)
        before = cluster.state
        past.append((before, given_command))
        cluster.state, outcome = apply_command(before, Command.decode(given_command.encode()))
        seen[f"{kind} {'refused' if outcome.error else 'applied'}"] += 1
        check_partition(kind, before, cluster.state, is_unproven=kind == "register_node" and (number <= 1 or flag))
        check_state(before, cluster.state)
        if outcome.error:
            assert (before.nodes, before.streams) == (cluster.state.nodes, cluster.state.streams)
    past.append((cluster.state, Command(id="end", op="x", now_ns=0)))
    return past


def check_partition(kind: str, state: MetadataState, next_state: MetadataState, *, is_unproven: bool) -> None:
    before, after = (each.streams["orders"].partitions[0] for each in (state, next_state))
    min_isr = state.streams["orders"].config.min_isr_effective
    assert after.leader is None or after.leader in after.isr
    assert set(after.isr) <= set(after.voters)
    assert len(set(after.replicas)) == len(after.replicas)
    assert set(after.observers) <= set(after.replicas) <= set(next_state.nodes)
    assert not set(after.isr) & set(after.unproven)
    assert set(after.lost) <= set(after.unproven) <= set(after.replicas)
    check_move(after)
    assert after.leader_epoch >= before.leader_epoch
    assert after.leader_epoch > before.leader_epoch or after.leader in {before.leader, None}
    assert after.version >= before.version
    what = lambda info: (info.replicas, info.observers, info.isr, info.leader, info.leader_epoch, info.target)
    assert after.version > before.version or what(before) == what(after)
    if after.unclean_elections > before.unclean_elections:
        assert kind == "recover_partition"  # the stream does not allow it otherwise
        assert (after.isr, after.unclean_epoch) == ((after.leader,), after.leader_epoch)
        return
    if not before.isr:
        assert set(before.replicas) <= set(after.replicas)  # any copy may be the best that is left
        if after.leader is not None:
            assert kind in {"report_log", "register_node", "update_stream"}
            check_elected(before, after, min_isr)
        return
    assert set(after.isr) <= set(before.isr) or kind == "change_isr"
    assert after.leader in {before.leader, None} or after.leader in before.isr
    assert len(after.isr) >= min(len(before.isr), min_isr) or is_unproven


def check_elected(before: PartitionInfo, after: PartitionInfo, min_isr: int) -> None:
    """Nothing is lost: one that was in the ISR to the last has its log, and nobody knows of more."""
    to_the_last = [node for node in before.unproven[-min_isr:] if node not in before.lost]
    told = {report.node_id: report for report in before.reports}
    is_empty = all(report.last_epoch == -1 for report in told.values())
    assert to_the_last or is_empty
    assert after.leader is not None
    best = told.get(after.leader)  # else it is the one that has just reported
    if best is not None:
        assert best.log_end >= before.known_end
        assert all(best.reach >= report.reach for report in told.values() if report.node_id not in before.failed)


def check_move(info: PartitionInfo) -> None:
    assert (info.target is None) == (info.origin is None)
    if info.target is not None and info.origin is not None:
        assert set(info.replicas) == set(info.origin) | set(info.target)
        assert set(info.target_observers) <= set(info.target)
        assert set(info.origin_observers) <= set(info.origin)
    else:
        assert (info.target_observers, info.origin_observers) == ((), ())


def check_state(before: MetadataState, after: MetadataState) -> None:
    assert (after.revision, after.level >= before.level) == (before.revision + 1, True)
    assert after.incarnation_floor >= before.incarnation_floor
    for node_id, node in after.nodes.items():
        if node_id in before.nodes:
            assert node.incarnation >= before.nodes[node_id].incarnation
        else:
            assert node.incarnation > before.incarnation_floor
    config, info = after.streams["orders"].config, after.streams["orders"].partitions[0]
    assert config.min_isr_effective <= len(info.voters)
    if info.target is None:
        assert (config.replicas, config.observers) == (len(info.voters), len(info.observers))


@given(st.lists(_steps, min_size=1, max_size=40))
@examples(200)
def test_what_was_committed_stays_where_it_can_be_found(steps):
    past = run(steps, Counter())
    end = past[-1][0]
    for restored_at in {0, len(past) // 2}:  # a snapshot taken here, and the rest from the log
        plain = msgpack.packb(past[restored_at][0].to_plain())
        state = MetadataState.from_plain(msgpack.unpackb(plain))
        assert state == past[restored_at][0]
        for _, given_command in past[restored_at:-1]:
            state, _ = apply_command(state, given_command)
        assert state == end
        assert msgpack.packb(state.to_plain()) == msgpack.packb(end.to_plain())


def test_such_sequences_reach_everything():
    seen: Counter[str] = Counter()
    rng = random.Random(7)
    for _ in range(120):
        flags = (rng.random() < 0.7, rng.choice([0, 0, 0, 0, 1, 2]))
        steps = [
            (rng.choice(KINDS), rng.choice(NODES), rng.sample(NODES, rng.randint(0, 5)), rng.randint(0, 3), *flags)
            for _ in range(60)
        ]
        run(steps, seen)
    assert {f"{kind} applied" for kind in KINDS} <= set(seen), seen
