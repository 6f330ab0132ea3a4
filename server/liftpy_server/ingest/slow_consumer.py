"""What can be known of a NATS server that drops this node as a slow consumer.

nats-server closes the connection of a client for which it holds more than `max_pending`, or whose socket takes nothing
for `write_deadline`. It says nothing then: no error, and none of what it held. Neither bound is in what it tells of
itself. So the cause is concluded from how far this node was behind.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["advice_on_pending", "probable_cause"]

_BEHIND_S: Final = 2.5  # of a node that keeps up the last answered question is at most a little over a second old
_LARGE_BYTES: Final = 1024 * 1024
_PAYLOAD_BYTES: Final = 8 * 1024 * 1024  # max_pending is 64 MiB where nobody sets it
_MIB: Final = 1024 * 1024


def probable_cause(behind_s: float, unfinished_bytes: int) -> str | None:
    """Why a server has closed a connection without a word, if it looks like a slow consumer.

    Args:
        behind_s: how old the newest message was that is known to have arrived.
        unfinished_bytes: size of the message in the midst of which the connection ended.
    """
    if behind_s > _BEHIND_S:
        return (
            f"the NATS server closed the connection while this node was {behind_s:.1f} s behind, "
            "as it does with slow consumers (max_pending, write_deadline)"
        )
    if unfinished_bytes > _LARGE_BYTES:
        return (
            f"the NATS server closed the connection in the midst of a message of {unfinished_bytes / _MIB:.1f} MiB, "
            "as it does with slow consumers (max_pending has to hold several messages)"
        )
    return None


def advice_on_pending(info: dict[str, Any]) -> str | None:
    """What to tell whoever runs a server that takes large messages; None when they are not large."""
    payload = info.get("max_payload")
    if not isinstance(payload, int) or payload <= _PAYLOAD_BYTES:
        return None
    return (
        f"it takes messages of {payload / _MIB:.0f} MiB (max_payload); what it holds for this node (max_pending) is "
        f"not known here, and should be {8 * payload / _MIB:.0f} MiB or more, or some are lost under load"
    )
