"""Which messages a leader has refused, and said so, while others hear them too: nobody may store them later.

A publisher that is told "not stored" may send the message again, or decide on something else. What it is told, it is
told at the message's ack destination, so that tells the message: a request's reply subject is used once. Where
publishers use one destination for many messages, as many of the first ones of it are left out as were refused.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from liftpy_server.messages.incoming import read_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from liftpy_envelope.stream_config import StreamConfig
    from liftpy_server.messages.incoming import Incoming
    from liftpy_server.messages.runs import Run
    from liftpy_server.partition.acks import AckItem

__all__ = ["Refused"]

_DIGEST_BYTES: Final = 8


class Refused:
    """Messages that a leader refused while others heard them too, so that no leader stores them later.

    Args:
        most: How many are remembered.
        known: Those of another node, as `names` gave them.

    Attributes:
        is_full: There were more.
    """

    def __init__(self, most: int, known: Iterable[str] = ()) -> None:
        self._left = most
        self._known = Counter(known)
        self.is_full = False

    @property
    def names(self) -> list[str]:
        """What names each of them; for another node."""
        return list(self._known.elements())

    def note(self, item: AckItem) -> None:
        """A publisher is told that its message is not stored."""
        if self._left:
            self._left -= 1
            self._known[_name(item.destination, item.correlation_id)] += 1
        else:
            self.is_full = True

    def without(
        self, left: Iterable[tuple[Run | list[Incoming], int]], config: StreamConfig
    ) -> Iterable[tuple[Run | list[Incoming], int]]:
        """Messages, and the size of their subjects' prefix, without those that were refused.

        If not all of those are known, without any whose publisher may have been told. It hears nothing then.
        """
        for messages, skip in left:
            if not self._known and not self.is_full:
                yield messages, skip
                continue
            if isinstance(messages, list):
                read = messages
            else:
                read = [read_message(message, config, skip) for message in messages.messages()]
            kept = [message for message in read if not self._was_refused(message)]
            if kept:
                yield kept, skip

    def _was_refused(self, message: Incoming) -> bool:
        if not message.destination:
            return False
        if self.is_full:
            return True
        name = _name(message.destination, message.options.correlation_id)
        if not self._known[name]:
            return False
        self._known[name] -= 1
        return True


def _name(destination: bytes, correlation_id: str | None) -> str:
    text = destination if correlation_id is None else b"%b %b" % (destination, correlation_id.encode())
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
