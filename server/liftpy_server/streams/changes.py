"""Which streams differ from what the node does: those that changed in the metadata, not all there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from liftpy_server.metadata.state import StreamInfo

__all__ = ["StreamChanges"]


class StreamChanges:
    """Compares the streams of one state of the metadata with those of the one before.

    Attributes:
        known: UUIDs of all streams of the newest state, as bytes.
    """

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self._before: Mapping[str, StreamInfo] = {}
        self._failed: set[str] = set()

    def failed(self, uuid: str) -> None:
        """What a stream asked for could not be done: it is among the next changes again."""
        self._failed.add(uuid)

    def take(self, streams: Mapping[str, StreamInfo]) -> tuple[list[str], list[StreamInfo]]:
        """The uuids of streams that are gone, and the streams that are new or another than before."""
        before, self._before = self._before, streams
        gone = [info.uuid for name, info in before.items() if name not in streams or streams[name].uuid != info.uuid]
        changed = {info.uuid: info for name, info in streams.items() if before.get(name) is not info}
        self.known.difference_update(map(bytes.fromhex, gone))
        self.known.update(map(bytes.fromhex, changed))
        if self._failed:
            wanted = {info.uuid: info for info in streams.values()}
            changed |= {uuid: wanted[uuid] for uuid in self._failed if uuid in wanted}
            gone += [uuid for uuid in self._failed if uuid not in wanted and uuid not in gone]
            self._failed.clear()
        return gone, list(changed.values())
