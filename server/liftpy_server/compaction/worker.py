"""The process that compacts: it takes passes from its standard input, one after the other, and ends with it.

It runs beside a node, with low priority, and never outlives it: what it leaves behind then is what a crash leaves, and
it must not touch names that a new process of the node may be using.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa

from liftpy_envelope.no_pandas import keep_pandas_out
from liftpy_log.compaction.compact import compact
from liftpy_log.errors import SegmentCorruptError
from liftpy_log.segments.leftovers import drop_leftovers
from liftpy_log.storage.disk import OsDisk
from liftpy_server.compaction.wire import decode_pass, encode_replace, encode_save
from liftpy_server.workers.child_process import become_child, leave
from liftpy_server.workers.json_lines import read_line, to_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftpy_log.compaction.state import Cleaned, CleanedSegment, SealedSegment

__all__ = ["main", "serve"]

_NICENESS: Final = 10
_ALIVE_INTERVAL_S: Final = 5.0
_SEED_BYTES: Final = 32


class _NodeRefusedError(Exception):
    """The node could not do what it was asked for; it knows why."""


class _Node:
    """The node at the other ends of the pipes, as the owner of the log."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._from = requests
        self._to = answers
        self._told_s = time.monotonic()

    def next_pass(self) -> dict[str, Any] | None:
        line = self._from.readline()
        return read_line(line) if line else None

    def tell(self, line: bytes) -> None:
        try:
            self._to.write(line)
            self._to.flush()
        except BrokenPipeError:
            leave()
        self._told_s = time.monotonic()

    def replace_segments(self, old: Sequence[SealedSegment], new: CleanedSegment, cuts: int) -> bool:
        return self._ask(encode_replace(list(old), new, cuts))

    def save_cleaned(self, cleaned: Cleaned, cuts: int) -> bool:
        return self._ask(encode_save(cleaned, cuts))

    def _ask(self, line: bytes) -> bool:
        self.tell(line)
        answer = self._from.readline()
        if not answer:
            leave()
        message = read_line(answer)
        if "failed" in message:
            raise _NodeRefusedError(message["failed"])
        return bool(message["done"])

    def pause(self, _size_bytes: int) -> None:
        """Between two reads: say that all is well."""
        if time.monotonic() - self._told_s >= _ALIVE_INTERVAL_S:
            self.tell(to_line({"alive": True}))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Run passes until there are no more."""
    node = _Node(requests, answers)
    while (message := node.next_pass()) is not None:
        node.tell(to_line(_run(message, node)))


def _run(message: dict[str, Any], node: _Node) -> dict[str, Any]:
    plan, config = decode_pass(message)
    disk = OsDisk()
    try:
        drop_leftovers(disk, plan.directory)
        report = compact(disk, plan, config, node, seed=os.urandom(_SEED_BYTES), pause=node.pause)
    except SegmentCorruptError as error:
        return {"failure": "corrupt", "message": str(error)}
    except (_NodeRefusedError, OSError) as error:
        return {"failure": "passing", "message": str(error)}
    return {"report": list(report)}


def main() -> None:
    """Serve the node that started this process."""
    become_child(_NICENESS)
    keep_pandas_out()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
