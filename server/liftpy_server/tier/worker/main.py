"""The process that works on the bucket: it takes calls from its standard input, and ends with it.

A few threads do the jobs side by side; what they are given to do is bounded by the node, what they hold in memory by
the context. The process may end between any two requests to the bucket: what it leaves behind then is at most an
object that no manifest names.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from uuid import uuid4

import pyarrow as pa

from liftpy_bucket.store.s3 import S3Store
from liftpy_envelope.no_pandas import keep_pandas_out
from liftpy_server.settings.tier import store_settings
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.jobs.table import run
from liftpy_server.tier.worker.memory import keep_memory, settle_objects
from liftpy_server.tier.worker.wire import encode_error, encode_progress, encode_result
from liftpy_server.workers.child_process import become_child, leave
from liftpy_server.workers.json_lines import read_line
from liftpy_server.workers.requests import to_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["main", "serve"]

_NICENESS: Final = {"upload": 10, "read": 0}
_KEEPING_MEMORY: Final = frozenset({"read"})
_THREADS: Final = 4


class _Node:
    """The node at the other ends of the pipes."""

    def __init__(self, answers: BinaryIO) -> None:
        self._to = answers
        self._lock = threading.Lock()

    def tell(self, line: bytes) -> None:
        try:
            with self._lock:
                self._to.write(line)
                self._to.flush()
        except BrokenPipeError:
            leave()


def serve(requests: BinaryIO, answers: BinaryIO, context: Context, do: Callable[[Context, str, Any], Any]) -> None:
    """Do jobs until there are no more calls; those that run then are given up by who calls this."""
    node = _Node(answers)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="job")
    for line in requests:
        pool.submit(_do, read_line(line), context, do, node)
    pool.shutdown(wait=False, cancel_futures=True)


def _do(message: dict[str, Any], context: Context, do: Callable[[Context, str, Any], Any], node: _Node) -> None:
    number = message["id"]
    with context.progress_to(lambda part: node.tell(encode_progress(number, part and to_plain(part)))):
        context.progress()
        try:
            line = encode_result(number, do(context, message["job"], message["arguments"]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the node is told, and the others go on
            line = encode_error(number, error)
    node.tell(line)


def _run_and_give_back(context: Context, job: str, arguments: Any) -> Any:
    """Do a job, and give back what Arrow keeps of the memory for it: the next one may be long in coming."""
    try:
        return run(context, job, arguments)
    finally:
        pa.default_memory_pool().release_unused()


def _open(settings: Mapping[str, Any]) -> Context:
    """The context for a tier configuration."""
    return Context(
        S3Store(store_settings(settings)),
        new_id=lambda: uuid4().hex,
        now_ns=time.time_ns,
        memory_bytes_max=settings["upload_memory_bytes"],
        object_bytes=settings["object_bytes"],
        grace_ns=int(settings["grace_s"] * 1e9),
    )


def main() -> None:
    """Serve the node that started this process."""
    name = sys.argv[2]
    become_child(_NICENESS[name])
    do = _run_and_give_back
    if name in _KEEPING_MEMORY:
        do = run
        keep_memory()
    keep_pandas_out()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    settings = sys.stdin.buffer.readline()
    if settings:
        context = _open(read_line(settings)["settings"])
        settle_objects()
        serve(sys.stdin.buffer, sys.stdout.buffer, context, do)
    leave()


if __name__ == "__main__":
    main()
