"""Options of a publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from liftpy_client.errors import UsageError
from liftpy_envelope.ack import AckPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from liftpy_envelope.errors import LiftError

__all__ = ["PublisherOptions", "check_ack_policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherOptions:
    """Options of a publisher.

    Attributes:
        linger_s: Longest time that a message waits for its batch to fill.
        batch_bytes: Size at which a batch is sent, at most what NATS and the stream accept.
        in_flight_bytes: Limit of bytes without an ack. At the limit, publishing waits.
        ack_timeout_s: Seconds without an ack after which a batch is sent again in any case.
        delivery_timeout_s: Seconds after which the delivery of a batch fails.
        ack_policy: Ack policy; overrides that of the stream.
        envelope: Whether messages travel in batches, in binary envelopes. Without, each travels as a plain NATS message
            with headers, which other subscribers of the subject can read.
        on_error: Called with the error of each batch, or of each message without envelopes, that is not delivered.
            Without it, the next `publish`, `flush` or `close` raises the error.
    """

    linger_s: float = 0.005
    batch_bytes: int = 512 * 1024
    in_flight_bytes: int = 16 * 1024 * 1024
    ack_timeout_s: float = 5.0
    delivery_timeout_s: float = 60.0
    ack_policy: AckPolicy | None = None
    envelope: bool = True
    on_error: Callable[[LiftError], object] | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("linger_s", 0, 60),
            ("batch_bytes", 1, 2**26),
            ("in_flight_bytes", 1, 2**32),
            ("ack_timeout_s", 0.01, 3_600),
            ("delivery_timeout_s", 0.01, 86_400),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be between {low} and {high}, not {getattr(self, name)}")
        if self.on_error is not None and not callable(self.on_error):
            raise UsageError(f"on_error: {self.on_error!r:.60} cannot be called")


def check_ack_policy(given: AckPolicy | str | None) -> AckPolicy | None:
    """Return the ack policy of this name.

    Raises:
        UsageError: There is no such policy, or it sends no acks.
    """
    if given is None:
        return None
    try:
        policy = AckPolicy(given)
    except ValueError:
        raise UsageError(f"ack_policy: {given!r} is not one of leader, all") from None
    if policy is AckPolicy.NONE:
        raise UsageError("ack_policy: none means no ack to wait for; use the NATS connection's own publish")
    return policy
