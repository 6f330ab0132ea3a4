"""A node that says where its time goes: `python -m bench.profiled ARGUMENTS-OF-LIFTPY`.

SIGUSR1 begins, SIGUSR2 ends and writes to the file that `BENCH_PROFILE` names (`PID` in it is replaced).
`BENCH_PROFILER` is `calls` (cProfile: counts calls, and makes small functions dearer than they are) or `samples`
(looks at the stack every few ms of CPU time: costs next to nothing, and takes a C function for part of the one that
calls it).
"""

from __future__ import annotations

import cProfile
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from liftpy.__main__ import main

_SAMPLE_S = 0.004


class Calls:
    """cProfile of the main thread, in wall time less what the event loop waits."""

    def __init__(self):
        self._profile = cProfile.Profile()

    def begin(self):
        self._profile.enable()

    def end(self, path):
        self._profile.disable()
        self._profile.dump_stats(path)


class Samples:
    """Stacks of the main thread, one per tick of CPU time of the process."""

    def __init__(self):
        self._stacks = Counter()

    def begin(self):
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def _look(self, _signal, frame):
        stack = []
        while frame is not None:
            code = frame.f_code
            stack.append(f"{Path(code.co_filename).name}:{code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def end(self, path):
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_text(json.dumps([[count, stack] for stack, count in self._stacks.most_common()]))


def run():
    profiler = {"calls": Calls, "samples": Samples}[os.environ.get("BENCH_PROFILER", "samples")]()
    path = Path(os.environ["BENCH_PROFILE"].replace("PID", str(os.getpid())))
    signal.signal(signal.SIGUSR1, lambda *_: profiler.begin())
    signal.signal(signal.SIGUSR2, lambda *_: profiler.end(path))
    sys.argv[0] = "liftpy"
    main()


if __name__ == "__main__":
    run()
