"""Voters for tests: single ones that are fed by hand, the stock library beside them, and whole clusters."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from liftpy_log.clock import SystemClock
from liftpy_server.consensus.raft import Raft
from liftpy_server.consensus.settings import RaftSettings, TlsFiles, Voter
from liftpy_server.consensus.store import RaftMetadataStore
from liftpy_server.consensus.wire.transport import RaftTransport
from support.ports import free_port

KEY = b"k" * 32
PATIENCE_S = 30.0  # on a machine that is busy
VOTERS = tuple(Voter(name, "127.0.0.1", 1000 + number, f"disk of {name}") for number, name in enumerate("abc"))


class HandTransport:
    """Keeps what is sent, and delivers what the test gives it."""

    def __init__(self):
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.before_send = lambda: None

    def send(self, node, message):
        self.before_send()
        self.sent.append((node, message))
        return True

    def deliver(self, node, message):
        self.on_message(node, dict(message))

    def connect(self, *nodes):
        for node in nodes:
            self.on_connected(node)

    def disconnect(self, node):
        self.on_disconnected(node)

    def of_kind(self, kind):
        return [message for _, message in self.sent if message["type"] == kind]

    def admit(self, voters):
        pass

    def wake(self):
        pass

    def backlog_bytes(self, node):
        return 0

    def instance_of(self, node):
        return f"disk of {node}"

    def poll(self, timeout):
        pass

    def destroy(self):
        pass


class StockHand(Transport):
    """The same for the stock library."""

    def __init__(self):
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node, message):
        self.sent.append((node.id, message))
        return True

    def deliver(self, node, message):
        self._onMessageReceived(Node(node), dict(message))

    def connect(self, node):
        self._onNodeConnected(Node(node))

    def of_kind(self, kind):
        return [message for _, message in self.sent if message["type"] == kind]


class ListMachine:
    """Remembers what was applied."""

    def __init__(self):
        self.applied: list[bytes] = []

    def apply(self, command):
        self.applied.append(command)
        return len(self.applied)

    def accepts(self, command):
        return command != b"poison"

    def capture(self):
        applied = list(self.applied)
        return lambda: applied

    def restore(self, state):
        self.applied = list(state)


class Stock(SyncObj):
    """The library as it comes, fed by hand."""

    def __init__(self, folder, others=("b", "c"), **settings):
        self.hand = StockHand()
        conf = SyncObjConf(
            autoTick=False,
            useFork=False,
            journalFile=str(folder / "journal"),
            fullDumpFile=str(folder / "dump"),
            raftMinTimeout=0.01,
            raftMaxTimeout=0.011,
            appendEntriesPeriod=0.003,
            **settings,
        )
        super().__init__("a", list(others), conf=conf, nodeClass=Node, transport=self.hand)
        self.applied: list[bytes] = []

    @replicated
    def put(self, value):
        if value == b"poison":
            raise ValueError(value)
        self.applied.append(value)
        return len(self.applied)

    def close(self):
        """Let go of the files."""
        self._doDestroy()

    def step(self):
        """One tick."""
        self.doTick()

    def propose(self, value, callback=None):
        self.put(value, callback=callback)

    def lead(self):
        """Win an election, with the vote of b."""
        self._SyncObj__raftElectionDeadline = 0
        if self._SyncObj__otherNodes:
            self.hand.connect("b")
            self.doTick()
            self.hand.deliver("b", {"type": "response_vote", "term": self.term})
        self.doTick()
        self.doTick()
        assert self._isLeader()

    @property
    def term(self):
        return self._getTerm()

    @property
    def commit_index(self):
        return self.raftCommitIndex

    @property
    def applied_index(self):
        return self.raftLastApplied

    @property
    def log(self):
        """(index, term) of every entry."""
        return [(index, term) for _, index, term in self._SyncObj__raftLog[:]]


class Ours(Raft):
    """A hardened voter, fed by hand."""

    def __init__(self, folder, others=("b", "c"), disk=None, **settings):
        voters = tuple(voter for voter in VOTERS if voter.node_id in ("a", *others))
        given = {"node_id": "a", "voters": voters, "folder": folder, "cluster_key": KEY, "cluster_id": "c" * 32}
        self.hand = HandTransport()
        self.machine = ListMachine()
        super().__init__(RaftSettings(**given | settings), self.hand, self.machine, disk=disk)
        self._journal.instance = VOTERS[0].instance

    @property
    def applied(self):
        return self.machine.applied

    @property
    def term(self):
        return self._core.term

    @property
    def commit_index(self):
        return self._core.commit_index

    @property
    def applied_index(self):
        return self._core.applied_index

    def write_snapshot(self):
        """Wait until the snapshot that is being written, if any, is in use."""
        while self._snapshots._written is not None:
            self._snapshots._written.result()
            self.tick(0)

    def propose(self, value, callback=lambda result, reason: None):
        self.submit(b"\0" + value, callback)

    def lead(self, by="b"):
        """Win an election, with the votes of these."""
        self._core.election_deadline = 0
        if self._core.other_voters:
            self.hand.connect(*by)
            self.tick(0)
            for node in by:
                self.hand.deliver(node, {"type": "pre_vote_response", "term": self.term + 1})
            self._core.election_deadline = 0
            self.tick(0)
            for node in by:
                self.hand.deliver(node, {"type": "response_vote", "term": self.term})
        self.tick(0)
        self.tick(0)
        assert self.is_leader

    def step(self):
        """One tick."""
        self.tick(0)

    @property
    def log(self):
        """(index, term) of every entry."""
        return [(index, term) for _, index, term in self._journal[:]]


def append(term, previous, entries=(), commit=1):
    """A leader's message; `previous` is (index, term), `entries` are (command, index, term)."""
    position = {"prevLogIdx": previous[0], "prevLogTerm": previous[1], "entries": list(entries)}
    return {"type": "append_entries", "term": term, "commit_index": commit} | position


def entries(first, last, term, text=b"\0x"):
    return [(text + str(index).encode(), index, term) for index in range(first, last + 1)]


def tls_files(folder, authority, identity, name=None):
    """PEM files of a node."""
    made = authority.issue_cert(identity)
    paths = TlsFiles(
        certificate=folder / f"{name or identity}.pem",
        key=folder / f"{name or identity}.key",
        authority=folder / f"{name or identity}-ca.pem",
    )
    made.cert_chain_pems[0].write_to_path(paths.certificate)
    made.private_key_pem.write_to_path(paths.key)
    authority.cert_pem.write_to_path(paths.authority)
    return paths


class CutTransport(RaftTransport):
    """A transport whose traffic with some nodes can be lost."""

    def __init__(self, settings):
        super().__init__(settings)
        self.cut: set[str] = set()
        self.mute: set[str] = set()  # one way: what is sent to them is lost

    def send(self, node, message):
        return node not in self.cut | self.mute and super().send(node, message)

    def _deliver(self, node, message):
        if node not in self.cut:
            super()._deliver(node, message)


class Cluster:
    """Voters in one process, each with a thread and a folder of its own."""

    def __init__(self, folder, size=3, spare=0, **settings):
        names = [f"n{number}" for number in range(1, size + spare + 1)]
        self.voters = tuple(Voter(name, "127.0.0.1", free_port()) for name in names)
        self.size = size
        self.folder = folder
        times = {"propose_timeout_s": PATIENCE_S, "election_timeout_min_s": 0.4}
        self.settings = {"cluster_key": KEY} | times | settings
        self.stores: dict[str, RaftMetadataStore] = {}
        self.transports: dict[str, CutTransport] = {}
        self.failures: dict[str, BaseException] = {}

    async def join(self, name):
        """Start a node that asks the cluster to let it in, with what it is told then."""
        store = next(iter(self.stores.values()))
        await store.read()  # from then on it knows its cluster
        return await self.start(name, voters=store.voters, cluster_id=store.cluster_id)

    async def start(self, name, voters=None, **more):
        """Start, or start again."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        port = next(voter.port for voter in self.voters if voter.node_id == name)
        given = {"voters": voters or self.voters[: self.size], "folder": folder, "bind_port": port} | self.settings
        given |= {"tls": given["tls"][name]} if "tls" in given else {}

        def make(settings):
            self.transports[name] = CutTransport(settings)
            return self.transports[name]

        store = RaftMetadataStore(
            RaftSettings(node_id=name, **given | more),
            SystemClock(),
            on_fatal=lambda error: self.failures.setdefault(name, error),
            make_transport=make,
        )
        await store.start()
        self.stores[name] = store
        return store

    async def stop(self, name):
        await self.stores.pop(name).stop()

    def cut(self, name):
        """Nothing gets to or from this node."""
        for other, transport in self.transports.items():
            transport.cut = set(self.transports) - {name} if other == name else transport.cut | {name}

    def heal(self):
        for transport in self.transports.values():
            transport.cut, transport.mute = set(), set()

    async def leader(self, among=None):
        """The name of the node that leads, once the others know it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = {name: self.stores[name].leader_id for name in among or self.stores}
                if len(set(found.values())) == 1 and (leader := next(iter(found.values()))) in found:
                    return leader
                await asyncio.sleep(0.02)

    async def agreed(self):
        """The state, once all nodes have the same. Nodes that began a moment ago agree on nothing at all before."""
        async with asyncio.timeout(PATIENCE_S):
            newest = await next(iter(self.stores.values())).read()
            while True:
                states = [store.state for store in self.stores.values()]
                if all(state == states[0] for state in states) and states[0].revision >= newest.revision:
                    return states[0]
                await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(folder, size=3, spare=0, **settings):
    """A running cluster."""
    made = Cluster(folder, size, spare, **settings)
    try:
        for voter in made.voters[:size]:
            await made.start(voter.node_id)
        yield made
    finally:
        for store in made.stores.values():
            await store.stop()
