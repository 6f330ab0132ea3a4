"""Several nodes' admin handlers over one metadata, without a network: numbers and refusals are set by the test."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from liftpy_envelope.errors import ErrorCode, LiftError
from liftpy_server.admin.cluster.handlers import NodeHandlers
from liftpy_server.admin.cluster.reassign_handlers import ReassignHandlers
from liftpy_server.admin.cluster.recover_handlers import RecoverHandlers
from liftpy_server.admin.handlers import Handlers
from liftpy_server.admin.local import LocalHandlers
from liftpy_server.consensus.settings import Voter
from liftpy_server.gaps.partition_gaps import PartitionGaps
from liftpy_server.listeners.refusals import ListenerRefusals
from liftpy_server.metadata.errors import MetadataRefusedError
from liftpy_server.partition.stream_state import StreamCounters, StreamState
from liftpy_server.requests.answering import read_body, refuse
from liftpy_server.requests.between_nodes import NODE_PREFIX, NodeRequests
from liftpy_server.requests.errors import AdminError
from liftpy_server.requests.node_key import NodeKey
from liftpy_server.requests.node_listener import NodeListener
from liftpy_server.settings.config import NodeConfig
from support.gap_notes import GapNotes
from support.metadata_commands import NODE, Author
from support.server_kit import SetClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from liftpy_server.metadata.commands import Outcome


class SharedMetadata:
    """What a store is to admin handlers; all nodes of a test share one."""

    def __init__(self, author: Author) -> None:
        self.author = author
        self.cluster_id = "c" * 32
        self.leader_id: str | None = "n1"
        self.silence_s: dict[str, float] = {}
        self.voters: tuple[Voter, ...] = ()
        self.learners: tuple[Voter, ...] = ()
        self.proposed: list[str] = []
        self.reads = 0
        self.before_read = lambda: None

    @property
    def state(self):
        return self.author.state

    def silent_s(self, node_id: str) -> float:
        return self.silence_s.get(node_id, 0.0)

    async def propose(self, op: str, /, *, command_id: str | None = None, **args: Any) -> Any:
        self.proposed.append(op)
        outcome = self.author.attempt(op, **args)
        if outcome.error is not ErrorCode.NONE:
            raise MetadataRefusedError(outcome.error, outcome.message)
        return outcome.value

    async def propose_many(self, commands: Any) -> list[Outcome]:
        self.proposed += [op for op, _, _ in commands]
        return [self.author.attempt(op, **args) for op, _, args in commands]

    async def read(self) -> Any:
        self.reads += 1
        self.before_read()
        return self.state

    async def watch(self) -> AsyncIterator[Any]:
        while True:
            yield self.state
            await asyncio.sleep(0)

    async def add_voter(self, voter: Voter) -> None:
        if voter.node_id in {other.node_id for other in (*self.voters, *self.learners)}:
            raise MetadataRefusedError(ErrorCode.CONFLICT, f"{voter.node_id!r} is a member already")
        self.learners += (voter,)

    async def remove_voter(self, node_id: str) -> None:
        self.voters = tuple(voter for voter in self.voters if voter.node_id != node_id)
        self.learners = tuple(voter for voter in self.learners if voter.node_id != node_id)


class FakeStreams:
    """The streams of a node, with the partitions that the test gives it."""

    def __init__(self) -> None:
        self.by_uuid: dict[str, Any] = {}
        self.by_key: dict[Any, Any] = {}
        self.partitions: list[Any] = []
        self.refusal: LiftError | None = None
        self.is_listening = True

    async def wait_ready(self, _uuid: str) -> None:
        if not self.is_listening:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal


class FakeDedupe:
    """No ids, and no ordered producers."""

    ordered = ()

    def __len__(self) -> int:
        return 0

    def is_shortened(self, _now_ns: int) -> bool:
        return False

    def known_ns(self, _now_ns: int) -> int:
        return 0


def partition(number: int, end: int, *, start: int = 0, replicas: Any = ()) -> SimpleNamespace:
    """A partition whose records up to `end` are committed, and its followers as (node, log_end, in_sync)."""
    log = SimpleNamespace(
        log_start=start, log_end=end, size_bytes=10 * end, segments=[], last_timestamp=0, failure=None, torn_tail=None
    )
    states = [
        {"node": node, "log_end": have, "lag_messages": end - have, "in_sync": in_sync}
        for node, have, in_sync in replicas
    ]
    return SimpleNamespace(
        number=number,
        high_watermark=end,
        log=log,
        start=start,
        cold=None,
        dedupe=FakeDedupe(),
        age_now_ns=lambda: 0,
        epoch=1,
        clock_ahead_s=lambda: 0.0,
        log_time=SimpleNamespace(leapt_ns=0),
        is_leading=True,
        is_accepting=True,
        gaps=PartitionGaps("", "", number, SetClock(), GapNotes(), StreamCounters()),
        replica_states=lambda: states,
    )


async def _give_nothing(_body: dict[str, Any]) -> dict[str, Any]:
    """A node of which no partition can be handed over without a gap."""
    return {"given": 0, "left": 1}


class AdminNode:
    """One node of an `AdminCluster`.

    Attributes:
        silence: what asking it over NATS raises; None while it answers.
        asked: endpoints it was asked over NATS.
        bucket: looks at what partitions have in the bucket, once there is one.
    """

    bucket: Any

    def __init__(self, cluster: AdminCluster, node_id: str) -> None:
        self.streams = FakeStreams()
        self.silence: Exception | None = None
        self.asked: list[str] = []
        self.follows = True
        self.node: Any = SimpleNamespace(
            config=NodeConfig(node_id=node_id),
            metadata=cluster.metadata,
            streams=self.streams,
            wait_followed=self._wait_followed,
            was_removed=self._was_removed,
            clock=SetClock(),
            groups=SimpleNamespace(quota=SimpleNamespace(groups=0, size_bytes=0)),
            tier=None,
            incarnation=1,
            started_ns=0,
            ingest=SimpleNamespace(is_connected=True, reconnects=0, unbound_messages=0),
            pull=SimpleNamespace(port=4270, connection_count=0),
            data_dir=SimpleNamespace(root=cluster.root, quarantine_directory=cluster.root / node_id / "quarantine"),
            maintenance=SimpleNamespace(storage_full=False, free_bytes=1 << 30),
            files=[],
            outbox=SimpleNamespace(lost_bytes=0),
            group_commits=SimpleNamespace(count=0),
            events=SimpleNamespace(stored=0, lost=0),
        )
        self.local = LocalHandlers(self.node)
        self.refusals = ListenerRefusals()
        local = self.local.endpoints() | {"HANDOVER.GIVE": _give_nothing}
        self.requests = NodeRequests(*(node_id, local, lambda: cluster, cluster.key, cluster.token_of), self.refusals)
        nodes = NodeHandlers(self.node, self.requests, f"challenge of {node_id}")
        self.between_nodes = local | nodes.node_endpoints()
        tokens = {"NODE.JOIN": f"challenge of {node_id}"}
        self.listener = NodeListener(
            node_id,
            lambda endpoint: tokens.get(endpoint, f"token of {node_id}"),
            cluster.key,
            {name: self._answering(name) for name in self.between_nodes},
            self.refusals,
        )
        handlers = (
            Handlers(self.node, self.requests),
            nodes,
            ReassignHandlers(self.node, self.requests),
            RecoverHandlers(self.node, self.requests, self._look_in_bucket),
        )
        self.public = {name: handle for each in handlers for name, handle in each.endpoints().items()}

    async def _look_in_bucket(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self.bucket.look(body)

    def _answering(self, endpoint: str) -> Any:
        async def answer(request: Any) -> None:
            self.asked.append(endpoint)
            try:
                told = await self.between_nodes[endpoint](read_body(request.data))
            except (AdminError, MetadataRefusedError) as error:
                await refuse(request, error.code, str(error))
            else:
                await request.respond(json.dumps(told).encode())

        return answer

    async def _wait_followed(self) -> None:
        if not self.follows:
            await asyncio.Event().wait()

    def _was_removed(self, incarnation: int) -> None:
        if incarnation == self.node.incarnation:
            self.silence = NoRespondersError()

    def lead(self, name: str, *partitions: Any, refusal: LiftError | None = None) -> StreamState:
        """Have the node hold partitions of a stream."""
        info = self.node.metadata.state.streams[name]
        state = StreamState(info, SetClock(), GapNotes())
        by_number = {each.number: each for each in partitions}
        self.streams.by_uuid[info.uuid] = SimpleNamespace(info=info, state=state, partitions=by_number, refusal=refusal)
        return state

    async def ask(self, endpoint: str, **body: Any) -> Any:
        """A public request that this node answers, by way of JSON."""
        return json.loads(json.dumps(await self.public[endpoint](json.loads(json.dumps(body)))))

    async def ask_as_node(self, endpoint: str, **body: Any) -> Any:
        """A request of another node, which proved the key."""
        return json.loads(json.dumps(await self.between_nodes[endpoint](json.loads(json.dumps(body)))))


class AdminCluster:
    """Nodes n1, n2, ... which are also the NATS connection between them."""

    def __init__(self, root: Any, count: int = 3, **nodes: Any) -> None:
        self.root = root
        self.key = NodeKey(b"k" * 32)
        self.inboxes: dict[str, Any] = {}
        self.passing: set[asyncio.Task[None]] = set()
        self.author = Author()
        self.metadata = SharedMetadata(self.author)
        for number in range(1, count + 1):
            told = {"node_id": f"n{number}", "follow_token": f"token of n{number}"}
            self.author.do("register_node", node=NODE | told | nodes)
        names = [f"n{number}" for number in range(1, count + 1)]
        self.metadata.voters = tuple(Voter(name, "127.0.0.1", 7000) for name in names)
        self.nodes = {name: AdminNode(self, name) for name in names}

    def __getitem__(self, node_id: str) -> AdminNode:
        return self.nodes[node_id]

    def create(self, name: str, *assignment: list[str], **settings: Any) -> str:
        """A stream in the metadata; its uuid."""
        config = {"name": name, "subject": f"{name}.>", "partitions": len(assignment)}
        config |= {"replicas": len(assignment[0])} | settings
        uuid = f"{len(self.author.state.streams) + 1:032x}"
        self.author.do("create_stream", uuid=uuid, config=config, assignment=[list(each) for each in assignment])
        return uuid

    def token_of(self, node_id: str) -> str:
        """By the metadata."""
        known = self.author.state.nodes.get(node_id)
        return "" if known is None else known.follow_token

    def new_inbox(self) -> str:
        """As a NATS connection does it, and the next two as well."""
        return f"_INBOX.{len(self.inboxes)}"

    async def subscribe(self, subject: str, cb: Any) -> SimpleNamespace:
        self.inboxes[subject] = cb

        async def unsubscribe() -> None:
            self.inboxes[subject] = None

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, data: bytes, reply: str = "", headers: Any = None) -> None:
        message = Msg(self, subject=subject, reply=reply, data=data, headers=headers)
        if subject in self.inboxes:
            if self.inboxes[subject] is not None:
                await self.inboxes[subject](message)
            return
        node = self.nodes.get(subject.removeprefix(f"{NODE_PREFIX}.").partition(".")[0])
        if node is None:
            raise NoRespondersError
        if node.silence is not None:
            raise node.silence
        task = asyncio.create_task(node.listener.accept(message))
        self.passing.add(task)
        task.add_done_callback(self.passing.discard)
