"""The streams of a member: some by name, others by pattern."""

from __future__ import annotations

import logging
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.groups import SUBSCRIPTIONS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Subscriptions", "is_pattern"]

logger = logging.getLogger(__name__)
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*-]{1,128}")
_PAGE: Final = 256


def is_pattern(name: object) -> bool:
    """Whether what stands for a stream's name is a pattern: `*` stands for any characters."""
    return isinstance(name, str) and "*" in name and _PATTERN.fullmatch(name) is not None


class Subscriptions:
    """Names and patterns of streams.

    Attributes:
        names: The names.
        patterns: The patterns.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self.names = tuple(name for name in given if not is_pattern(name))
        self.patterns = tuple(name for name in given if is_pattern(name))
        self._left_out: tuple[str, ...] = ()

    async def find(self, cluster: Any) -> tuple[str, ...]:
        """Return the names, and those of the streams that match a pattern now.

        Streams that match beyond what a group can have are left out, with a warning.

        Raises:
            AdminError, NodeUnavailableError, DisconnectedError: the streams are not known.
        """
        found = dict.fromkeys(self.names)
        offset, total = 0, 1
        while offset < total:
            page = await cluster.request("STREAM.LIST", {"offset": offset, "limit": _PAGE, "internal": False})
            total = page["total"]
            if not page["streams"]:
                break  # some were deleted meanwhile
            offset += len(page["streams"])
            listed = (stream["name"] for stream in page["streams"])
            found |= dict.fromkeys(name for name in listed if any(fnmatchcase(name, each) for each in self.patterns))
        names = tuple(found)
        left_out = names[SUBSCRIPTIONS_MAX:]
        if left_out and left_out != self._left_out:
            logger.warning(
                "%d streams match %s, but a group has at most %d: %d are not consumed, the first of them %s",
                len(names),
                ", ".join(self.patterns),
                SUBSCRIPTIONS_MAX,
                len(left_out),
                left_out[0],
            )
        self._left_out = left_out
        return names[:SUBSCRIPTIONS_MAX]
