"""The canary of a node: a process beside it, started again when it ends, and what it told so far."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.settings import to_plain
from liftpy_log.histogram import Histogram
from liftpy_server.canary.ledger import BUCKET, WayCounts
from liftpy_server.workers.child_process import end_child, kill_child, start_child
from liftpy_server.workers.json_lines import read_line, to_line

if TYPE_CHECKING:
    from liftpy_log.clock import Clock
    from liftpy_server.settings.config import NodeConfig

__all__ = ["CanaryHost"]

logger = logging.getLogger(__name__)

_MODULE: Final = "liftpy_server.canary.child"
_AGAIN_S: Final = 5.0
_AGAIN_MAX_S: Final = 60.0


class CanaryHost:
    """See the module.

    Args:
        config: Configuration of the node.
        clock: Clock of the node.

    Attributes:
        acked: Messages that were acknowledged.
        unacked: Messages that were not.
        ways: What became of them, by way of reading.
        seconds: Seconds until acks, and until messages were read, by way of reading.
    """

    def __init__(self, config: NodeConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._read_s = clock.monotonic()
        self._task: asyncio.Task[None] | None = None
        self.acked = 0
        self.unacked = 0
        ways = ["pull", "group", *([BUCKET] if config.tier.is_on else [])]
        self.ways = {way: WayCounts() for way in ways}
        self.seconds = {what: Histogram() for what in ("ack", *ways)}

    @property
    def silent_s(self) -> float:
        """For how long no message has come back by pull."""
        return self._clock.monotonic() - self._read_s

    def start(self) -> None:
        """Start the process, and look after it."""
        self._task = asyncio.get_running_loop().create_task(self._look_after())

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_after(self) -> None:
        again_s = _AGAIN_S / 2
        while True:
            before = self.acked
            problem = await self._run()
            again_s = _AGAIN_S if self.acked > before else min(again_s * 2, _AGAIN_MAX_S)
            logger.warning("canary: stream %s: it ended, and starts again in %g s: %s", self._stream, again_s, problem)
            await asyncio.sleep(again_s)

    @property
    def _stream(self) -> str | None:
        return self._config.canary.stream

    async def _run(self) -> str:
        """Run the process to its end; what it said last of a problem."""
        try:
            process = await start_child(_MODULE)
        except OSError as error:
            return str(error)
        problem = "it was killed"
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(to_line(self._settings()))
            await process.stdin.drain()
            while line := await process.stdout.readline():
                told = read_line(line)
                if "problem" in told:
                    problem = str(told["problem"])
                else:
                    self._add(told)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{error!s:.200}"
        except asyncio.CancelledError:
            await end_child(process, "the canary")
            raise
        await kill_child(process)
        return problem

    def _settings(self) -> dict[str, Any]:
        config = self._config
        return {
            "name": f"liftpy {config.node_id} canary",
            "group": f"liftpy-canary-{config.node_id}",
            "nats": to_plain(config.nats),
            "canary": to_plain(config.canary),
            "tier": to_plain(config.tier) if config.tier.is_on else None,
        }

    def _add(self, told: dict[str, Any]) -> None:
        self.acked += told["acked"]
        self.unacked += told["unacked"]
        for way, counts in told["ways"].items():
            known = self.ways[way]
            known.read += counts["read"]
            known.late += counts["late"]
            known.lost += counts["lost"]
            known.doubled += counts["doubled"]
        for what, duration_s in told["seconds"]:
            self.seconds[what].observe(duration_s)
        if told["ways"]["pull"]["read"]:
            self._read_s = self._clock.monotonic()
        lost = [way for way, counts in told["ways"].items() if counts["lost"] or counts["doubled"]]
        if lost:
            logger.error("canary: stream %s: acknowledged messages are lost or doubled: %s", self._stream, told)
