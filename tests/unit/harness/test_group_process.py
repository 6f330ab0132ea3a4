"""A member in a process of its own: what it said is known whole, whenever it is killed."""

from __future__ import annotations

import sys

from support.cluster import eventually
from support.group_process import MemberProcess

TORN = r"""
import os, time
os.write(1, b"message 0 7\nmessage 1 23\nmessage 1 2")
time.sleep(600)
"""


async def test_a_line_that_was_torn_by_the_kill_was_not_said():
    member = MemberProcess("", "", "")
    member._command = [sys.executable, "-c", TORN]
    async with member:
        await eventually(lambda: member.count("message") == 2)
        await member.kill()
    assert member.lines == [["message", "0", "7"], ["message", "1", "23"]]
