"""Warnings that something may cause again and again, logged at a rate that falls while it goes on.

The first is logged at once, the next after `LOG_REPEAT_S`, and then each after twice the time before, up to
`_EVERY_S_MAX`: ten lines for half an hour. A line says how many were left out since the last one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from liftpy_server.settings.limits import LOG_REPEAT_S

if TYPE_CHECKING:
    import logging

__all__ = ["RepeatedWarnings"]

_EVERY_S_MAX: Final = 300.0
_QUIET_S: Final = 60.0  # what did not happen for so long is news when it does
_KINDS_MAX: Final = 64
_OTHERS: Final = "others"


@dataclass(slots=True)
class _Kind:
    told_s: float
    happened_s: float
    every_s: float = 0.0
    left_out: int = 0


class RepeatedWarnings:
    """Warnings that are logged at once, and then at most every so many seconds. May be used by any thread.

    Args:
        logger: Logger of the module that warns.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def tell(self, kind: str, text: str, now_s: float, *, error: BaseException | None = None) -> None:
        """Log a warning, or count it when one of its kind was logged lately.

        Args:
            kind: What counts as the same warning. Beyond 64 kinds at once, the rest are one.
            text: Error text.
            now_s: Current monotonic time in seconds.
            error: Error whose traceback the line shall have.
        """
        with self._lock:
            known = self._kind(kind, now_s)
            known.happened_s = now_s
            if now_s - known.told_s < known.every_s:
                known.left_out += 1
                return
            if known.left_out:
                text = f"{text} ({known.left_out} more like it in the last {now_s - known.told_s:.0f} s)"
            known.told_s, known.left_out = now_s, 0
            known.every_s = min(max(2 * known.every_s, LOG_REPEAT_S), _EVERY_S_MAX)
        self._logger.warning("%s", text, exc_info=error)

    def _kind(self, kind: str, now_s: float) -> _Kind:
        known = self._kinds.get(kind)
        if known is None and len(self._kinds) >= _KINDS_MAX:
            self._kinds = {name: each for name, each in self._kinds.items() if now_s - each.happened_s < _QUIET_S}
            if len(self._kinds) >= _KINDS_MAX:
                kind = _OTHERS
                known = self._kinds.get(kind)
        if known is None or now_s - known.happened_s >= _QUIET_S:
            known = self._kinds[kind] = _Kind(now_s, now_s)
        return known
