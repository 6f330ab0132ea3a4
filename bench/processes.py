"""What processes cost, as the kernel counts it: CPU, memory, files, and bytes on the network. Linux only."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROCESS = re.compile(r"\bpid=(\d+),")
_BYTES = re.compile(r"\bbytes_(?:sent|received):(\d+)")


def cpu_s(pid):
    """CPU seconds of a process so far, all threads, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def open_files(pid):
    """File descriptors of a process, sockets among them."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def traffic(pids, kinds):
    """What the open TCP connections of processes have sent and received.

    Args:
        pids: the processes.
        kinds: by port at either end, what a connection is for; others are left out.

    Returns:
        By process and kind, bytes sent and received.
    """
    output = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=True).stdout
    return count_traffic(output, pids, kinds)


def count_traffic(output, pids, kinds):
    """See `traffic`; from what `ss -tinpOH` printed."""
    totals = {pid: dict.fromkeys(kinds.values(), 0) for pid in pids}
    for line in output.splitlines():
        local, peer = (int(end.rpartition(":")[2]) for end in line.split()[3:5])
        kind = kinds.get(local) or kinds.get(peer)
        if kind is not None:
            count = sum(int(found) for found in _BYTES.findall(line))
            for pid in {int(found) for found in _PROCESS.findall(line)} & totals.keys():
                totals[pid][kind] += count
    return totals
