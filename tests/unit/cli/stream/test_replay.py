"""`liftpy replay-dlq` when it fails on the way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from liftpy.cli.stream.replay import _replay_dead_letters
from liftpy_client.message import Message
from liftpy_envelope.errors import LiftError
from liftpy_envelope.headers import encode_header_block


class FakeLift:
    """A stream of three dead letters, of which the second cannot be published, and a group that cannot be set."""

    async def committed(self, _group, _stream):
        return {}

    async def stream_info(self, _stream):
        return SimpleNamespace(partitions=[SimpleNamespace(log_start=0)])

    def consume(self, _stream, **_):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def __aiter__(self):
        block = encode_header_block({"Dead-Letter-Subject": "s.x"})
        for offset in range(3):
            yield Message("dlq", 0, offset, 0, "dead.s", None, block, b"%d" % offset)

    async def publish(self, _subject, value, **_):
        if value == b"1":
            raise LiftError("refused: too large")
        return SimpleNamespace(offset=7, partition=0)

    async def reset_group(self, _group, offsets):
        assert offsets == {"dlq": {0: 1}}
        raise LiftError("the group is in use")


async def replay(found):
    async for replayed in _replay_dead_letters(FakeLift(), "dlq", again=False, dry_run=False):
        found += [replayed.letter.offset]


async def test_an_error_is_not_hidden_by_that_of_storing_the_position():
    found = []
    with pytest.raises(LiftError, match="refused: too large") as raised:
        await replay(found)
    assert found == [0]
    assert raised.value.__notes__ == [
        "and how far was replayed is not stored in group 'replay-dlq': the group is in use"
    ]
