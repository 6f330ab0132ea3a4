"""What can be known of a NATS server that drops this node as a slow consumer.

nats-server closes the connection of a client for which it holds more than `max_pending`, or whose socket takes nothing
for `write_deadline`. It says nothing then: no error, and none of what it held. Clients are told neither bound; the
monitoring port has both. So the cause is concluded from how far this node was behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from liftpy_server.nats.monitoring import SlowConsumerLimits

__all__ = ["advice_on_pending", "probable_cause", "small_room"]

_BEHIND_S: Final = 2.5  # of a node that keeps up the last answered question is at most a little over a second old
_LARGE_BYTES: Final = 1024 * 1024
_PAYLOAD_BYTES: Final = 8 * 1024 * 1024  # max_pending is 64 MiB where nobody sets it
_PENDING_BYTES: Final = 256 * 1024 * 1024  # a third of a second at full speed fills 64 MiB
_DEADLINE_S: Final = 10.0  # nats-server's own
_MIB: Final = 1024 * 1024


def probable_cause(behind_s: float, unfinished_bytes: int, room: str) -> str | None:
    """Why a server has closed a connection without a word, if it looks like a slow consumer.

    Args:
        behind_s: How old the newest message was that is known to have arrived.
        unfinished_bytes: Size of the message in the midst of which the connection ended.
        room: See `small_room`.
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
    if room:
        return f"the NATS server closed the connection, perhaps as it does with slow consumers: {room}"
    return None


def small_room(info: dict[str, Any], limits: SlowConsumerLimits | None) -> str:
    """What to say of a server that does not hold two of the largest messages; empty of others, and where nobody knows.

    Args:
        info: What the server says of itself to clients.
        limits: What it says at its monitoring port; None when that can not be asked.
    """
    payload = info.get("max_payload")
    if limits is None or not isinstance(payload, int) or limits.max_pending >= 2 * payload:
        return ""
    return (
        f"it holds {limits.max_pending / _MIB:.0f} MiB for this node at most (max_pending), and one message may have "
        f"{payload / _MIB:.0f} MiB (max_payload)"
    )


def advice_on_pending(info: dict[str, Any], limits: SlowConsumerLimits | None) -> str | None:
    """What to tell whoever runs a server that may drop this node as a slow consumer; None when all is well.

    Args:
        info: What the server says of itself to clients.
        limits: What it says at its monitoring port; None when that can not be asked.
    """
    told = info.get("max_payload")
    payload = told if isinstance(told, int) else 0
    is_large = payload > _PAYLOAD_BYTES
    wanted = 8 * payload if is_large else _PENDING_BYTES
    if limits is None:
        if not is_large:
            return None
        return (
            f"it takes messages of {payload / _MIB:.0f} MiB (max_payload); what it holds for this node (max_pending) "
            f"is not known here, and should be {wanted / _MIB:.0f} MiB or more, or some are lost under load"
        )
    advice = []
    if limits.max_pending < wanted:
        advice.append(
            f"it holds {limits.max_pending / _MIB:.0f} MiB for this node at most (max_pending); let it hold "
            f"{wanted / _MIB:.0f} MiB or more, or messages are lost under load"
        )
    if limits.write_deadline_s < _DEADLINE_S:
        advice.append(
            f"it gives this node up when that takes nothing for {limits.write_deadline_s:g} s (write_deadline); let "
            f"it wait for {_DEADLINE_S:g} s or more"
        )
    return "; ".join(advice) or None
