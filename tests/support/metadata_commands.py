"""Metadata commands: those a node proposes, and any garbage in their shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from liftpy_server.metadata.commands import Command, apply_command
from liftpy_server.metadata.state import MetadataState, PartitionInfo

NODE: dict[str, Any] = {
    "node_id": "n1",
    "pull_host": "127.0.0.1",
    "pull_port": 4270,
    "pull_tls": False,
    "pull_token": "secret",
    "rack": None,
}
UUIDS = [f"{number:032x}" for number in range(1, 10)]
WHERE: dict[str, Any] = {"name": "orders", "uuid": UUIDS[0], "partition": 0}


def config(name: str = "orders", **settings: Any) -> dict[str, Any]:
    return {"name": name, "subject": f"{name}.>"} | settings


class Author:
    """Applies commands one after the other, with ids and times of their own."""

    def __init__(self) -> None:
        self.state = MetadataState()
        self.count = 0

    def do(self, op: str, **args: Any) -> Any:
        """Apply a command that works. Returns its value."""
        outcome = self.attempt(op, **args)
        assert not outcome.error, outcome
        return outcome.value

    def attempt(self, op: str, **args: Any) -> Any:
        """Apply a command. Returns its outcome."""
        self.count += 1
        self.state, outcome = apply_command(
            self.state, Command(id=f"c{self.count}", op=op, now_ns=1_000 + self.count, args=args)
        )
        return outcome

    def register(self, node_id: str = "n1") -> Any:
        return self.do("register_node", node=NODE | {"node_id": node_id})

    def create(self, name: str = "orders", uuid: str = UUIDS[0], leaders: Any = ("n1",), **settings: Any) -> Any:
        assignment = [[leader] for leader in leaders]
        settings = {"partitions": len(assignment)} | settings
        return self.do("create_stream", uuid=uuid, config=config(name, **settings), assignment=assignment)


class Cluster:
    """Applies commands to a cluster with streams `orders`, `orders1`, ..., at times of their own.

    Every stream has one partition on all nodes, the first of them its leader.
    """

    def __init__(self, *nodes: str, min_isr: int | None = 2, streams: int = 1) -> None:
        self.state = MetadataState()
        self.now_ns = 1_000_000_000_000
        self._count = 0
        for node in nodes:
            self.register(node)
        settings = {"replicas": len(nodes), "min_isr": min_isr}
        for number in range(streams):
            name = "orders" if number == 0 else f"orders{number}"
            made = config(name, **settings)
            self.do("create_stream", uuid=UUIDS[number], config=made, assignment=[list(nodes)])

    def attempt(self, op: str, **args: Any) -> Any:
        self._count += 1
        command = Command(id=f"c{self._count}", op=op, now_ns=self.now_ns, args=args)
        self.state, outcome = apply_command(self.state, command)
        return outcome

    def do(self, op: str, **args: Any) -> Any:
        outcome = self.attempt(op, **args)
        assert not outcome.error, outcome
        return outcome.value

    def register(self, node: str, *, is_log_proven: bool = True, **info: Any) -> Any:
        return self.do("register_node", node=NODE | {"node_id": node} | info, is_log_proven=is_log_proven)

    def expire(self, node: str) -> Any:
        return self.do("expire_node", node_id=node, incarnation=self.incarnation(node))

    @property
    def partition(self) -> PartitionInfo:
        return self.state.streams["orders"].partitions[0]

    def incarnation(self, node: str) -> int:
        return self.state.nodes[node].incarnation

    def suspect(self, node: str, **args: Any) -> Any:
        term = {"incarnation": self.incarnation(node), "leader_epoch": self.partition.leader_epoch}
        return self.attempt("suspect_leader", **WHERE | {"node_id": node} | term | args)

    def change_isr(self, *isr: str, **args: Any) -> Any:
        info = self.partition
        term = {"leader": info.leader, "leader_epoch": info.leader_epoch, "version": info.version}
        known = {node: self.incarnation(node) for node in isr if node in self.state.nodes}
        return self.attempt("change_isr", **WHERE | term | {"isr": list(isr), "incarnations": known} | args)

    def report(self, node: str, epoch: int, end: int, **args: Any) -> Any:
        log = {"incarnation": self.incarnation(node), "last_epoch": epoch, "log_end": end}
        term = {"leader_epoch": self.partition.leader_epoch}
        return self.attempt("report_log", **WHERE | {"node_id": node} | term | log | args)

    def report_failure(self, node: str, **args: Any) -> Any:
        return self.attempt("report_failure", **self._said_by(node) | args)

    def report_renewal(self, node: str, **args: Any) -> Any:
        return self.attempt("report_renewal", **self._said_by(node) | args)

    def _said_by(self, node: str) -> dict[str, Any]:
        return WHERE | {"node_id": node, "incarnation": self.incarnation(node)}

    def reassign(self, *nodes: str, observers: tuple[str, ...] = ()) -> Any:
        target = {"name": "orders", "uuid": UUIDS[0], "moves": [[0, list(nodes), list(observers)]]}
        return self.attempt("reassign_partitions", **target)

    def finish(self, **args: Any) -> Any:
        term = {"leader_epoch": self.partition.leader_epoch, "version": self.partition.version}
        return self.attempt("finish_reassignment", **WHERE | term | args)

    def cancel(self) -> Any:
        return self.attempt("cancel_reassignment", **WHERE)


_names = st.sampled_from(["orders", "flights", "x"])
_node_ids = st.sampled_from(["n1", "n2", "n3"])
_uuids = st.sampled_from(UUIDS)
_plain: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_configs = st.fixed_dictionaries(
    {"name": _names, "subject": st.sampled_from(["a.>", "b.*", "c"])},
    optional={
        "partitions": st.integers(1, 3),
        "replicas": st.integers(1, 3),
        "retention_age_s": st.sampled_from([0, 5.5]),
        "acks": st.sampled_from(["reply", "envelope", "maybe"]),
        "group": st.sampled_from([None, "g"]),
    },
)
_args = {
    "register_node": st.builds(
        lambda node_id, port: {"node": NODE | {"node_id": node_id, "pull_port": port}}, _node_ids, st.integers(1, 9)
    ),
    "create_stream": st.builds(
        lambda uuid, given, leaders: {
            "uuid": uuid,
            "config": given,
            "assignment": [
                ["n1", "n2", "n3"][: given.get("replicas", 1)] if given.get("replicas", 1) > 1 else [leader]
                for leader in leaders
            ][: given.get("partitions", 1)],
        },
        _uuids,
        _configs,
        st.lists(_node_ids, min_size=3, max_size=3),
    ),
    "delete_stream": st.fixed_dictionaries({"name": _names}, optional={"uuid": _uuids}),
    "update_stream": st.fixed_dictionaries(
        {
            "name": _names,
            "changes": st.fixed_dictionaries(
                {},
                optional={
                    "subject": st.just("z"),
                    "retention_bytes": st.integers(-1, 5),
                    "partitions": st.integers(1, 2),
                },
            ),
        },
        optional={"expected_version": st.integers(1, 3)},
    ),
    "set_stream_state": st.fixed_dictionaries(
        {"name": _names}, optional={"paused": st.booleans(), "read_only": st.booleans()}
    ),
    "purge_partition": st.fixed_dictionaries(
        {"name": _names, "uuid": _uuids, "partition": st.integers(0, 3), "log_start": st.integers(-1, 50)}
    ),
    "record_gaps": st.builds(
        lambda name, uuid, number, gap_id, version: {
            "causes": ["lost"],
            "gaps": [[name, uuid, number, gap_id, version, 5, None if version == 1 else 9, 0, None]],
        },
        *(_names, _uuids, st.integers(0, 3), st.sampled_from(["a", "b"]), st.integers(0, 3)),
    ),
    "expire_node": st.fixed_dictionaries({"node_id": _node_ids, "incarnation": st.integers(1, 2)}),
    "drain_node": st.fixed_dictionaries({"node_id": _node_ids, "draining": st.booleans()}),
    "tell_events": st.builds(
        lambda node_id, kind, name: {"node_id": node_id, "events": [[kind, 5, name, None, {"cause": "x"}]]},
        *(_node_ids, st.sampled_from(["disk.full", "refusals.begun", "stream.created"]), _names),
    ),
}
_ids = st.integers(0, 30).map(str)


def _command(op: str) -> st.SearchStrategy[Command]:
    return st.builds(Command, id=_ids, op=st.just(op), now_ns=st.integers(0, 2**62), args=_args[op])


good_commands = st.sampled_from(sorted(_args)).flatmap(_command)
spoiled_commands = st.sampled_from(sorted(_args)).flatmap(
    lambda op: st.builds(
        Command,
        id=_ids,
        op=st.just(op),
        now_ns=st.integers(0, 2**62),
        args=st.tuples(_args[op], st.integers(0, 4), _plain).map(
            lambda given: {**given[0], sorted(given[0])[given[1] % len(given[0])]: given[2]}
        ),
    )
)
garbage_commands = st.builds(
    Command,
    id=_ids,
    op=st.sampled_from([*sorted(_args), "", "drop_everything"]),
    now_ns=st.integers(0, 2**62),
    args=st.dictionaries(
        st.sampled_from(["name", "node", "uuid", "config", "assignment", "changes", "x", ""]), _plain, max_size=4
    ),
)
nested_garbage = st.builds(
    lambda given_id, where, value: Command(
        id=given_id,
        op="create_stream" if where != "node" else "register_node",
        now_ns=1,
        args={"node": NODE | {"node_id": value}}
        if where == "node"
        else {"uuid": UUIDS[0], "config": config(), "assignment": [["n1"]]} | {where: value},
    ),
    _ids,
    st.sampled_from(["node", "assignment", "config", "uuid"]),
    st.one_of(_plain, st.lists(st.lists(_plain, max_size=2), max_size=2)),
)
any_commands = st.one_of(good_commands, good_commands, spoiled_commands, garbage_commands, nested_garbage)
