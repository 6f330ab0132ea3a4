"""What befalls a cluster in the hands of people, and what is looked at afterwards."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import liftpy
from support.cluster import NodeProcess, eventually
from support.cluster_kit import create, partitions, settled
from support.reading import read_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_client.client import Lift
    from support.cluster_kit import ClusterKit

NODES = ("node-1", "node-2", "node-3")
PERSIST_S = 40.0
_UNANSWERED = (liftpy.PublishRefusedError, liftpy.PublishTimeoutError, liftpy.NodeUnavailableError)


class Published:
    """Numbered messages of a stream, each sent until it is acknowledged, and where the acks say they are."""

    def __init__(self, lift: liftpy.Lift, stream: str) -> None:
        self._lift = lift
        self.stream = stream
        self.acked: dict[int, bytes] = {}

    async def more(self, count: int, *, size: int = 0) -> None:
        """Publish so many more, of at least so many bytes each."""
        for _ in range(count):
            number = len(self.acked)
            value = b"%d" % number + bytes(size)
            ack = await eventually(lambda value=value: self._attempt(value), PERSIST_S, f"{value[:20]!r} has no ack")
            assert ack.offset not in self.acked
            self.acked[ack.offset] = value

    async def _attempt(self, value: bytes) -> liftpy.Ack | None:
        try:
            return await self._lift.publish(self.stream, value, message_id=f"{self.stream}-{len(self.acked)}")
        except _UNANSWERED:
            return None

    async def check(self) -> None:
        """All that was acknowledged is where it was said to be, once and unchanged."""
        stored = {message.offset: message.value for message in await read_all(self._lift, self.stream)}
        assert stored == self.acked


async def make_stream(lift: liftpy.Lift, name: str = "s", count: int = 20, **settings: object) -> Published:
    """A stream with three replicas and some messages."""
    await create(lift, name, name, **settings)
    published = Published(lift, name)
    await published.more(count)
    return published


def is_told(node: NodeProcess, *texts: str) -> bool:
    """Whether a node's log has each of these texts."""
    log = node.log()
    return all(text in log for text in texts)


async def told(node: NodeProcess, *texts: str, timeout_s: float = 40.0) -> None:
    """Wait until it has."""
    await eventually(lambda: is_told(node, *texts), timeout_s, f"{node.home.name} does not say {texts}:\n{node.log()}")


async def ends(node: NodeProcess, timeout_s: float = 40.0) -> str:
    """Wait until a node ends by itself; what it logged last."""
    await eventually(lambda: not node.is_running, timeout_s, f"{node.home.name} does not end:\n{node.log()}")
    assert node.process is not None
    assert node.process.returncode == 1
    await asyncio.to_thread(node.kill)
    return node.log().strip().splitlines()[-1]


def reconfigure(node: NodeProcess, **settings: str) -> None:
    """Change lines of a node's settings file; an empty value takes the line out."""
    path = node.home / "liftpy.toml"
    text = path.read_text()
    for key, value in settings.items():
        line = f"{key} = {value}\n" if value else ""
        text, count = re.subn(rf"(?m)^{key} = .*\n", lambda _, line=line: line, text, count=1)
        if not count:
            text = text.replace("[cluster]\n", f"[cluster]\n{line}")
    path.write_text(text)


async def let_join(node: NodeProcess) -> None:
    """Start a node, with nothing in its data directory, that asks to be taken in."""
    reconfigure(node, peers="", join="true")
    await asyncio.to_thread(node.start)


async def in_sync(lift: liftpy.Lift, stream: str, nodes: Iterable[str]) -> None:
    """Wait until these nodes are in sync, and no others."""
    wanted = set(nodes)

    async def are_in_sync() -> bool:
        return all(set(each.isr) == wanted for each in await partitions(lift, stream))

    await eventually(are_in_sync, 60.0, f"the in-sync replicas of {stream} are never {wanted}")


async def whole_again(kit: ClusterKit, lift: liftpy.Lift, *published: Published) -> None:
    """Every node runs, every replica is in sync, everything acknowledged is there, and no node stumbled."""
    await settled(lift, [each.stream for each in published])
    for each in published:
        await each.check()
    for node in kit.nodes.values():
        assert node.is_running
        assert "Traceback" not in node.log(), node.log()


async def remove(lift: Lift, node: str) -> None:
    """Take a node out of the cluster that keeps no replica but one of the events, which a drain takes from it."""
    await lift.drain_node(node)

    async def keeps_nothing() -> bool:
        return all(each.replicas == 0 for each in await lift.node_details() if each.node_id == node)

    await eventually(keeps_nothing, 40.0)
    await lift.remove_node(node)
