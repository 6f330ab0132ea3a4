"""A bucket on this machine, nodes that use it, and what they say of it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack, contextmanager
from unittest import mock
from uuid import uuid4

import psutil

from bench.rig import Liftpy
from bench.wire import request
from liftpy.cli.dev.seaweed import SeaweedServer
from liftpy_bucket.manifest.catalog import CatalogFile
from liftpy_bucket.store.s3 import S3Store
from liftpy_bucket.store.s3_settings import S3Settings

__all__ = ["PUTS", "Bucket", "TierNode", "asked_text", "puts", "tier_rig", "until", "worker_of"]

PUTS = ("create", "replace")
_POLL_S = 0.1
_COUNTED_S = 6.0  # a node asks its worker how many requests there were every 5 s


class Bucket:
    """SeaweedFS with a bucket of which every node gets a prefix."""

    def __init__(self, home):
        self.server = SeaweedServer(home / "seaweedfs", home / "seaweedfs.log")
        nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        self.environment = self.server.environment | nowhere | {"AWS_EC2_METADATA_DISABLED": "true"}

    def settings(self, prefix):
        """Of a node or a worker: where the bucket is."""
        return {"url": f"{self.server.url}/{prefix}", "endpoint": self.server.endpoint}

    @contextmanager
    def in_environment(self):
        """The credentials are those of this process, and of those that it starts."""
        with mock.patch.dict(os.environ, self.environment):
            yield

    def sizes(self, prefix):
        """By key, the bytes of everything below a prefix."""
        with self.in_environment():
            store = S3Store(S3Settings(**self.settings(prefix)))
        return {entry.key: entry.size for entry in store.list("")}

    def wait_known(self, prefix, name, timeout_s=60.0):
        """Wait until the catalog below a prefix names a stream, which then can be restored."""
        with self.in_environment():
            store = S3Store(S3Settings(**self.settings(prefix)))
        catalog = CatalogFile(store, new_id=lambda: uuid4().hex)

        def is_known():
            loaded = catalog.load()
            return loaded is not None and name in {stream.name for stream in loaded.catalog.streams.values()}

        until(is_known, timeout_s, f"the catalog names {name}")


class TierNode(Liftpy):
    """A node with a bucket. It looks at retention often, so that what is to leave the disk does so soon."""

    def __init__(self, home, bucket, **tier):
        environment = {"LIFTPY_STORAGE_RETENTION_INTERVAL_S": "0.5"}
        if bucket is not None:
            environment |= bucket.environment
            settings = bucket.settings(home.name) | tier
            environment |= {f"LIFTPY_TIER_{name.upper()}": str(value) for name, value in settings.items()}
        super().__init__(home, environment)

    def tier(self):
        """What the node says of the bucket."""
        return request(self.port, "LIFT.API.TIER.STATUS", {})

    def requests(self):
        """Requests of what uploads, by kind, when all of them were counted."""
        time.sleep(_COUNTED_S)
        return {kind: count for kind, count in self.tier()["requests"].items() if count}

    def wait_tiered(self, timeout_s=120.0):
        """Wait until the bucket has everything."""
        until(lambda: self._untiered() == 0, timeout_s, "the bucket has everything")

    def _untiered(self):
        return sum(each["high_watermark"] - each["tiered_end"] for each in self.tier()["partitions"])

    def wait_dropped(self, name, share, timeout_s=60.0):
        """Wait until a part of a stream has left the disk."""

        def is_dropped():
            (partition,) = self.info(name)["partitions"]
            return partition["local_start"] >= share * partition["high_watermark"]

        until(is_dropped, timeout_s, f"{share:.0%} of {name} has left the disk")

    def lose_disk(self):
        """SIGKILL, and nothing of the node is left; it is not started again."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self._home / "data")


@contextmanager
def tier_rig(home):
    """(the bucket, what starts a node: name and tier settings; `bucket=None` for one without)."""
    home = home / "tier"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    with ExitStack() as stack:
        bucket = Bucket(home)
        stack.callback(bucket.server.kill)
        bucket.server.start()

        def start(name, *, is_tiered=True, **tier):
            node = TierNode(home / name, bucket if is_tiered else None, **tier)
            stack.callback(node.stop)
            return node

        yield bucket, start


def until(condition, timeout_s, what):
    """Wait for a condition; what it gave."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
    return found


def worker_of(pid, name):
    """Process id of the tier worker `name` ("upload" or "read") that a process has started."""
    for child in psutil.Process(pid).children():
        command = child.cmdline()
        if "liftpy_server.tier.worker.main" in command and name in command:
            return child.pid
    raise LookupError(f"process {pid} has no tier worker {name!r}")


def puts(asked):
    """How many of requests by kind were PUTs."""
    return sum(asked.get(kind, 0) for kind in PUTS)


def asked_text(after, before=None):
    """Requests between two looks, by kind, for a note."""
    grown = {kind: count - (before or {}).get(kind, 0) for kind, count in sorted(after.items())}
    return ", ".join(f"{count:,} {kind}" for kind, count in grown.items() if count) or "none"
