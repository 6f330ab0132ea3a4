"""Which process has a socket, on Linux. Cheap also where there are thousands of sockets, as tests leave them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["has_socket", "inodes_of"]

_SOCKETS = Path("/proc/net/tcp")


def inodes_of(port: int) -> set[int]:
    """The IPv4 sockets at a local port, but for those that no process has any more."""
    table, mark, found = _SOCKETS.read_bytes(), b":%04X " % port, set()
    at = table.find(mark)
    while at >= 0:
        begin, end = table.rfind(b"\n", 0, at) + 1, table.find(b"\n", at)
        fields = table[begin:end].split()
        if fields[1].endswith(mark.rstrip()):  # rather than at the port of its peer
            found.add(int(fields[9]))
        at = table.find(mark, end)
    return found - {0}


def has_socket(pid: int, inodes: set[int]) -> bool:
    """Whether a process has one of these sockets; it may have ended."""
    names = {f"socket:[{inode}]" for inode in inodes}
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if str(each.readlink()) in names:
                    return True
    return False
