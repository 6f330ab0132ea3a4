"""A worker that is played by the test, and the shell around the schedule with one partition."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

from liftpy_server.metadata.state import LEVEL, PartitionInfo
from liftpy_server.settings.tier import TierConfig
from liftpy_server.tier.errors import TierWorkError
from liftpy_server.tier.host.tierer import Tierer
from support.cluster import eventually
from support.nats_frames import msg
from support.plain_worker import PlainWorker

__all__ = ["CONFIG", "Bench", "PlayedWorker"]

IDENTITY = SimpleNamespace(node_id="n1", incarnation=3, cluster_id="mine")
CONFIG = TierConfig(url="s3://bucket/prefix", upload_age_s=0.1)

ANSWERS = {
    "confirm": {},
    "adopt_sets": {"dropped": 1, "deleted": 1, "left": 0, "returned": []},
    "collect_sets": {"trimmed": 0, "merged": 0, "dropped": 0, "deleted": 0, "left": 0},
}


class PlayedWorker(PlainWorker):
    """A bucket in two numbers per partition.

    Attributes:
        calls: what was asked for, as (job, arguments).
        errors: by job, the code of the error that it gives.
        ends: where the bucket ends, by (uuid, partition).
        holders: nodes whose shared objects hold something of every partition.
        hold: jobs wait while this is not set.
        stops_after: so many objects an upload makes at most.
        merges_left: after so many more merges there is nothing left to be merged.
    """

    def __init__(self) -> None:
        self.calls = []
        self.errors = {}
        self.ends = {}
        self.starts = {}
        self.cluster_id = None
        self.generation = 0
        self.holders = []
        self.manifest_bytes = 0
        self.hold = asyncio.Event()
        self.hold.set()
        self.stops_after = sys.maxsize
        self.merges_left = 1
        self.is_closed = False

    async def answer(self, job, /, **arguments):
        self.calls.append((job, arguments))
        await self.hold.wait()
        if job in self.errors:
            raise TierWorkError(self.errors[job], f"{job} says {self.errors[job]}")
        if job == "probe":
            return {"cluster_id": self.cluster_id, "generation": self.generation}
        if job == "merge":
            self.merges_left -= 1
            return {"merged": 1, "more": self.merges_left > 0}
        if job in ANSWERS:
            return ANSWERS[job]
        if job == "counts":
            return {"counts": {"create": len(self.calls)}, "bytes_in": 1, "bytes_out": 2, "deleted": 3}
        if job == "upload_set":
            told = [self._upload(member) for member in arguments["members"]]
            return {"members": told, "stored_bytes": 10, "manifest_bytes": self.manifest_bytes}
        key = arguments["uuid"], arguments["partition"]
        if job in {"look", "claim"}:
            if key not in self.ends and not arguments.get("create"):
                raise TierWorkError("missing", "there is none")
            end = self.ends.setdefault(key, arguments["log_start"])
            start = self.starts.setdefault(key, 0)
            answer = {
                "start": start,
                "end": end,
                "epochs": [[7, start]],
                "delete_horizon": 0,
                "bytes": 5,
                "records": end,
            }
            told = {
                "sealed": False,
                "set_bytes": 0,
                "new_bytes": 0,
                "holders": self.holders,
                "merges": False,
                "is_new": True,
                "record_hash": "blake2b-256",
                "proven_end": end,
            }
            return answer | told
        if job == "upload":
            return {**self._upload(arguments), "stored_bytes": 10}
        if job == "retain":
            self.starts[key] = arguments["start"]
            return {"start": arguments["start"]}
        raise AssertionError(job)

    def _upload(self, arguments):
        key = arguments["uuid"], arguments["partition"]
        assert arguments["base"] == self.ends[key]
        ends = [arguments["end"], *(each["end"] for each in arguments.get("further", ()))]
        self.ends[key] = ends[: self.stops_after][-1]
        return {"uuid": key[0], "partition": key[1], "end": self.ends[key]}

    async def close(self):
        self.is_closed = True

    def jobs(self):
        return [job for job, _ in self.calls if job != "counts"]


class Bench:
    """A partition, and the shell that moves it."""

    def __init__(self, kit) -> None:
        self.kit = kit
        self.partition = kit.partition
        self.worker = PlayedWorker()
        self.is_started = False
        self.members = SimpleNamespace(nodes={"n1": SimpleNamespace(expired=False)}, is_leader=False, level=LEVEL)
        self.tierer = Tierer(CONFIG, IDENTITY, self.worker, kit.clock, self.members)

    def start(self) -> None:
        if not self.is_started:
            self.is_started = True
            self.tierer.start()

    async def check(self, timeout_s=5.0, *, may_be_foreign=False) -> None:
        self.start()
        await self.tierer.check(timeout_s, may_be_foreign=may_be_foreign)

    def open(self, **info) -> None:
        self.start()
        described = {"replicas": ("n1",), "isr": ("n1",), "leader": "n1", "leader_epoch": 7} | info
        self.tierer.opened(self.partition, PartitionInfo(**described))

    def store(self, count=4) -> None:
        for _ in range(count):
            self.kit.receive(msg(b"orders.a", bytes(1_000), reply=b"r"))
        self.kit.sync()

    async def until(self, condition) -> None:
        """Let time pass until something holds."""

        def passes():
            self.kit.clock.advance(0.05)
            return condition()

        await eventually(passes, 5.0)

    async def tiered(self) -> None:
        partition = self.partition
        await self.until(lambda: partition.cold is not None and partition.cold.end == partition.high_watermark)
