"""The node processes of `liftpy dev --nodes`: started, watched and stopped together, never restarted."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Any

from liftpy.cli.child_processes import NodeProcess, wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from liftpy.cli.dev.layout import DevLayout, NodePlace

__all__ = ["DevNodes"]


class DevNodes:
    """Node processes of one `liftpy dev`.

    Args:
        layout: Ids, ports and directories of the nodes.
        command: Command that starts a node, without its flags.
        environment: Environment of the processes.
        flags: Further flags of `liftpy server`, one list per node.
    """

    def __init__(
        self, layout: DevLayout, command: Sequence[str], environment: Mapping[str, str], flags: Iterable[list[str]]
    ) -> None:
        self._layout = layout
        self._command = command
        self._environment = dict(environment)
        self._flags = dict(zip(layout.nodes, flags, strict=True))
        self._nodes: dict[NodePlace, NodeProcess] = {}
        self._untold: list[NodeProcess] = []

    async def start(self) -> None:
        """Start all of them; returns when all of them are up.

        Raises:
            LiftError: one of them ended, or does not come up.
        """
        joining = self._layout.joining
        # The others make up the majority that takes these in, one after the other.
        await self._start([place for place in self._layout.nodes if place not in joining], joins=False)
        for place in joining:
            await self._start([place], joins=True)

    async def _start(self, places: Iterable[NodePlace], *, joins: bool) -> None:
        started = []
        for place in places:
            flags = self._layout.flags(place, joins=joins) + self._flags[place]
            log = self._layout.log_path(place)
            node = NodeProcess(place.node_id, [*self._command, *flags], self._environment, log)
            await node.spawn()
            started.append(node)
            self._nodes[place] = node
            self._untold.append(node)
        await wait_ready(started)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The nodes that came up: id, ports and pid, as JSON."""
        return [
            {
                "node_id": place.node_id,
                "pull_port": node.ready["pull_port"],
                "cluster_port": place.cluster_port,
                "http_port": node.ready["http_port"],
                "pid": node.pid,
            }
            for place, node in self._nodes.items()
        ]

    @property
    def obituaries(self) -> list[str]:
        """What became of the nodes that ended."""
        return [self._obituary(node) for node in self._nodes.values() if node.has_ended]

    def _obituary(self, node: NodeProcess) -> str:
        """What became of a node, and how to start it again."""
        if "LIFTPY_TIER_URL" in self._environment:
            return f"{node.obituary()}; to start it again, end liftpy dev and start that again"
        place = next(place for place in self._nodes if place.node_id == node.node_id)
        command = [word for word in self._command[3:] if word != "--json"]
        command += self._layout.flags(place, joins=False) + self._flags[place]
        return f"{node.obituary()}; to start it again: liftpy {shlex.join(command)}"

    async def next_end(self) -> str | None:
        """Wait until one more of the nodes ends, and tell of it; None when none is left."""
        if not self._untold:
            return None
        waits = {asyncio.ensure_future(node.wait_ended()): node for node in self._untold}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        node = waits[done.pop()]
        self._untold.remove(node)
        return self._obituary(node)

    async def stop(self) -> None:
        """Stop all of them: with SIGTERM, and with SIGKILL those that do not listen."""
        await asyncio.gather(*(node.stop() for node in self._nodes.values()))
