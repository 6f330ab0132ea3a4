"""The streams of a node follow the metadata, also after something went wrong on the way."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from liftpy_server.streams.streams import Streams


async def test_a_change_that_failed_is_made_when_the_metadata_change_again(kit, monkeypatch):
    opening = SimpleNamespace(leads=lambda _info: False)
    streams = Streams(opening, SimpleNamespace(follow_nodes=lambda _state: ()), None)
    before, after = kit.info, replace(kit.info, version=2)
    local = streams.by_uuid[before.uuid] = SimpleNamespace(info=before)
    tried = []

    async def change(stream, info, _state):
        tried.append((stream.info, info))
        stream.info = info
        if len(tried) == 1:
            raise OSError("told to fail")

    monkeypatch.setattr(streams, "_change", change)
    for info in (before, after, after):
        await streams.follow(SimpleNamespace(streams={info.name: info}))
    assert tried == [(before, after), (before, after)]
    assert local.info is after
