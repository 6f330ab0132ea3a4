"""A voter in a process of its own, under load: `python -m support.raft_process`, settings as JSON on standard input.

Every acknowledged command is written, before the next one is proposed, to a file that outlives the process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from liftpy_envelope.errors import LiftError
from liftpy_log.clock import SystemClock
from liftpy_server.consensus.settings import RaftSettings, Voter
from liftpy_server.consensus.store import RaftMetadataStore


def register(node_id):
    """A command that leaves a mark if it was applied, and another if it was applied twice."""
    return {"node": {"node_id": node_id, "pull_host": "127.0.0.1", "pull_port": 1}}


class VoterProcess:
    """Runs this module."""

    def __init__(self, cluster, name, run, **more):
        self.acked_path = cluster.folder / f"acked-{name}-{run}"
        folder = cluster.folder / name
        folder.mkdir(exist_ok=True)
        settings = {
            "name": name,
            "run": run,
            "voters": [voter.to_plain() for voter in cluster.voters[: cluster.size]],
            "folder": str(folder),
            "acked": str(self.acked_path),
            "key": cluster.settings["cluster_key"].decode(),
            "snapshot_every_entries": cluster.settings.get("snapshot_every_entries", 10_000),
            "file_bytes_max": 0,
        } | more
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.raft_process"],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            text=True,
        )
        self.process.stdin.write(json.dumps(settings))
        self.process.stdin.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def acked(self):
        """Node ids whose registration was acknowledged."""
        if not self.acked_path.exists():
            return []
        text = self.acked_path.read_text()
        return text[: text.rfind("\n") + 1].split()


async def load(store, label, acked):
    """One command after the other, for ever."""
    for number in itertools.count():
        node_id = f"{label}-{number}"
        try:
            await store.propose("register_node", **register(node_id))
        except LiftError:
            continue
        os.write(acked, f"{node_id}\n".encode())


async def run(given):
    if given["file_bytes_max"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["file_bytes_max"],) * 2)
    voters = tuple(map(Voter.from_plain, given["voters"]))
    settings = RaftSettings(
        node_id=given["name"],
        voters=voters,
        folder=Path(given["folder"]),
        bind_port=next(voter.port for voter in voters if voter.node_id == given["name"]),
        cluster_key=given["key"].encode(),
        election_timeout_min_s=0.4,
        propose_timeout_s=3.0,
        snapshot_every_entries=given["snapshot_every_entries"],
    )
    store = RaftMetadataStore(settings, SystemClock())
    await store.start()
    acked = os.open(given["acked"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    labels = [f"{given['name']}-{given['run']}-{number}" for number in range(4)]
    await asyncio.gather(*(load(store, label, acked) for label in labels))


if __name__ == "__main__":
    asyncio.run(run(json.load(sys.stdin)))
