"""Marks: what nodes publish to cut what two of them hear into the same pieces (see `handover.matching`).

All nodes hear all marks, on the connection on which they hear publishers: there a mark stands among the messages where
NATS has it, and chunks are parsed up to it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from liftpy_server.ingest.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.partition import Partition

__all__ = ["MARK_SUBJECT", "Marks"]

MARK_SUBJECT: Final = "LIFT.NODE.MARK"
_MARK: Final = f"MSG {MARK_SUBJECT} ".encode()


class _NoStream:
    """Marks belong to no stream, and nobody misses one."""

    uuid = ""
    name = "marks"


class Marks(Binding):
    """The subscription of a node, and who waits for marks."""

    def __init__(self) -> None:
        self.stream = _NoStream()  # type: ignore[assignment]
        self.subject = MARK_SUBJECT
        self.group = None
        self.partitions = {}
        self.skip = 0
        self._expected: dict[bytes, Callable[[str], None]] = {}

    def expect(self, name: str, on_mark: Callable[[str], None]) -> None:
        """Call `on_mark` with the token of each mark of that name, where it stands among the messages."""
        self._expected[name.encode()] = on_mark

    def forget(self, name: str) -> None:
        """Take back an `expect`."""
        self._expected.pop(name.encode(), None)

    def deliver(self, run: Run, now_ns: int, touched: dict[Partition, None]) -> None:
        """See `Binding`; nothing is appended."""
        del now_ns, touched
        for message in run.messages():
            name, _, token = message.value.partition(b" ")
            on_mark = self._expected.get(name)
            if on_mark is not None:
                on_mark(token.decode(errors="replace"))

    def pieces(self, data: bytes) -> list[bytes]:
        """A chunk cut in front of each mark, while some are expected.

        What is cut may be a payload that looks like a mark: a chunk may end anywhere.
        """
        if not self._expected or _MARK not in data:
            return [data]
        head, *rest = data.split(_MARK)
        return [*([head] if head else []), *(_MARK + piece for piece in rest)]
