"""One pass over the partitions of the groups that a node leads: first all of them append, then all become durable.

A round of group commit begins as soon as it is asked for. If every partition asked when it had appended, the round
would begin with the first one of the pass, and all others would wait for that one before they get theirs.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["AppendScheduler"]


class _Hosted(Protocol):
    """A partition that appends in passes; neither call raises."""

    def append_pending(self) -> None:
        """Take the pending requests, and append what comes of them."""

    def end_pass(self) -> None:
        """Have what was appended made durable, and replicated."""


class AppendScheduler:
    """Lets all partitions of a pass append before any of them asks for durability."""

    def __init__(self) -> None:
        self._wanted: dict[_Hosted, None] = {}
        self._appended: dict[_Hosted, None] | None = None  # in this pass; None outside of passes

    def schedule(self, hosted: _Hosted) -> None:
        """Have a partition append in the next pass; all requests that arrive until then go into it."""
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._run)
        self._wanted[hosted] = None

    def appended(self, hosted: _Hosted) -> None:
        """A partition has appended: its pass ends with this one, or at once when that was in none."""
        if self._appended is None:
            hosted.end_pass()
        else:
            self._appended[hosted] = None

    def _run(self) -> None:
        wanted, self._wanted = self._wanted, {}
        appended = self._appended = {}
        try:
            for hosted in wanted:
                hosted.append_pending()
        finally:
            self._appended = None
            for hosted in appended:
                hosted.end_pass()
