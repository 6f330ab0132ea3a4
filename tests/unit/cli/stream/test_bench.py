"""`liftpy bench` deletes its stream, whatever happens."""

from __future__ import annotations

import pytest

from liftpy.cli.stream.bench import _checked, _stream
from liftpy_client.errors import NodeUnavailableError
from liftpy_envelope.errors import LiftError


class FakeLift:
    """Notes which streams there are."""

    def __init__(self):
        self.streams = set()
        self.failure = None

    async def create_stream(self, name, *, subject, **settings):
        assert subject.startswith("bench.")
        assert settings == {"replicas": 1}
        self.streams.add(name)

    async def delete_stream(self, name):
        if self.failure is not None:
            raise self.failure
        self.streams.remove(name)


async def test_the_stream_is_deleted_after_a_failure():
    lift = FakeLift()
    with pytest.raises(ZeroDivisionError):
        async with _stream(lift, {"replicas": 1}) as (lift.created, _):
            raise ZeroDivisionError
    assert lift.created.startswith("bench-")
    assert lift.streams == set()


async def test_a_stream_that_stays_is_named_and_hides_no_failure(capsys):
    lift = FakeLift()
    lift.failure = NodeUnavailableError("no node")
    with pytest.raises(ZeroDivisionError):
        async with _stream(lift, {"replicas": 1}) as (name, _):
            raise ZeroDivisionError
    assert f"stream {name} stays: no node; liftpy stream rm {name}" in capsys.readouterr().err


def test_a_message_that_is_missing_is_no_measurement():
    assert _checked("bench-1", 5, 5) == 5
    with pytest.raises(LiftError, match="5 messages were acknowledged, but 4 were read"):
        _checked("bench-1", 4, 5)
