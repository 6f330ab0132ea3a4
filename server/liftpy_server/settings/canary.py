"""The settings of the canary of a node: table `[canary]`."""

from __future__ import annotations

from dataclasses import dataclass

from liftpy_envelope.errors import ConfigError, NameInvalidError, SubjectInvalidError
from liftpy_envelope.names import check_name
from liftpy_envelope.subject import check_literal

__all__ = ["CanaryConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """What a canary publishes, and how long it waits for it.

    Attributes:
        stream: Stream to publish to, which must exist; None for no canary.
        subject: Literal subject of the stream; by default that of the stream, with `canary` for wildcards.
        interval_s: Time between two messages, seconds.
        timeout_s: A message that was not read back so long after its ack is late.
        bucket_timeout_s: Time after which a message that is read from the bucket is late, seconds; above
            `tier.upload_age_s`.
    """

    stream: str | None = None
    subject: str | None = None
    interval_s: float = 10.0
    timeout_s: float = 30.0
    bucket_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        try:
            if self.stream is not None:
                check_name(self.stream)
        except NameInvalidError as error:
            raise ConfigError("canary.stream", str(error)) from None
        try:
            if self.subject is not None:
                check_literal(self.subject)
        except SubjectInvalidError as error:
            raise ConfigError("canary.subject", str(error)) from None
        for name, low, high in (("interval_s", 0.1, 60), ("timeout_s", 1, 3_600), ("bucket_timeout_s", 1, 86_400)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"canary.{name}", f"must be between {low} and {high}, not {value}")
