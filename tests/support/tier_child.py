"""A tier worker with jobs that do what a test tells them, in place of the real one: see `liftpy_server.tier`."""

from __future__ import annotations

import os
import sys
import threading
import time
from itertools import count

from liftpy_bucket.errors import OvertakenError
from liftpy_bucket.store.memory import MemoryStore
from liftpy_server.tier.jobs.parts.context import Context
from liftpy_server.tier.requests import UploadedObject
from liftpy_server.tier.worker.main import serve
from liftpy_server.workers.child_process import become_child
from liftpy_server.workers.json_lines import read_line

RUNNING = [0, 0]  # now, and at most so far
LOCK = threading.Lock()


def echo(_context, arguments):
    return {"pid": os.getpid(), **arguments}


def overtaken(_context, _arguments):
    raise OvertakenError("another one was faster")


def broken(_context, _arguments):
    return {}["nothing"]


def unspeakable(_context, _arguments):
    return {"set": {1}}


def die(_context, _arguments):
    os._exit(3)


def nonsense(_context, _arguments):
    os.write(sys.stdout.fileno(), b"[]\n")
    time.sleep(60)


def silent(_context, arguments):
    time.sleep(arguments["seconds"])
    return {}


def talking(context, arguments):
    for _ in range(arguments["times"]):
        time.sleep(arguments["seconds"])
        context.progress()
    return {}


def in_parts(context, arguments):
    for end in arguments["ends"]:
        context.progress()
        context.teller()(UploadedObject(end=end, bytes=2, stored_bytes=1))
    return {}


def together(_context, arguments):
    with LOCK:
        RUNNING[0] += 1
        RUNNING[1] = max(RUNNING)
    time.sleep(arguments["seconds"])
    with LOCK:
        RUNNING[0] -= 1
        return {"most": RUNNING[1]}


_ALL = (echo, overtaken, broken, unspeakable, die, nonsense, silent, talking, in_parts, together)
JOBS = {job.__name__: job for job in _ALL}


def main():
    become_child(0)
    settings = read_line(sys.stdin.buffer.readline())["settings"]
    context = Context(
        MemoryStore(),
        new_id=count(1).__next__,
        now_ns=time.time_ns,
        memory_bytes_max=1,
        object_bytes=1,
        grace_ns=0,
    )
    jobs = {**JOBS, "settings": lambda _context, _arguments: settings}
    serve(sys.stdin.buffer, sys.stdout.buffer, context, lambda where, job, arguments: jobs[job](where, arguments))


if __name__ == "__main__":
    main()
