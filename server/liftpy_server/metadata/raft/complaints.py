"""What an operator must hear about a peer, and not every second: one warning per peer and kind in half a minute."""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["Complaints"]

logger = logging.getLogger(__name__)

_EVERY_S: Final = 30.0
_KINDS_MAX: Final = 64


class Complaints:
    """Warnings that repeat themselves are told once in `_EVERY_S`; those of more than 64 peers at once are not told."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], float] = {}

    def tell(self, peer: str, kind: str, text: object, now: float) -> None:
        """Log a warning, or keep silent if it was said lately.

        Args:
            peer: who it is about.
            kind: together with the peer, what counts as the same warning.
            text: for people.
            now: monotonic seconds.
        """
        self._told = {key: at for key, at in self._told.items() if now - at < _EVERY_S}
        if (peer, kind) not in self._told and len(self._told) < _KINDS_MAX:
            self._told[peer, kind] = now
            logger.warning("%s", text)
