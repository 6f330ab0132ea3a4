"""How a bucket is reached. Credentials are no part of it: they come only the ways every AWS tool takes them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import describe, parse_settings, to_plain

__all__ = ["AddressingStyle", "Checksums", "S3Settings", "is_loopback"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9!_.*'()/=-]*")
_PREFIX_BYTES_MAX: Final = 512  # S3 takes keys of 1,024 bytes; ours need less than 200 behind it
_RANGES: Final = (
    ("connections_max", 1, 1_000),
    ("attempts_max", 1, 20),
    ("connect_timeout_s", 0.01, 600.0),
    ("read_timeout_s", 0.01, 3_600.0),
)


class AddressingStyle(StrEnum):
    """Where the bucket's name stands: in the path, in the host name, or as botocore finds fit."""

    PATH = "path"
    VIRTUAL = "virtual"
    AUTO = "auto"


class Checksums(StrEnum):
    """When botocore adds checksums of its own, beyond those of the signature or TLS.

    Over HTTPS `when_supported` sends them behind the body, which some servers store as part of the object.
    """

    WHEN_SUPPORTED = "when_supported"
    WHEN_REQUIRED = "when_required"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where a bucket is, and how it is reached.

    Attributes:
        url: "s3://bucket" or "s3://bucket/prefix"; everything of the log lies below it.
        endpoint: "https://host:port" of a store that is not AWS.
        region: Region of the bucket; None takes what the environment or the profile says.
        profile: Profile of the files of AWS tools, whose credentials are taken before those of the environment; None:
            as these tools find them by themselves.
        addressing_style: None is `path` where there is an endpoint, else `auto`.
        ca_file: PEM file with the certificates that the store's certificate is checked against.
        verify: False takes any certificate: for trying things out only.
        connections_max: Number of connections that are kept open to the store; as many threads can ask at once without
            new ones.
        attempts_max: Maximum attempts of a request that may be repeated; conditional writes are always made once.
        connect_timeout_s: Time for a connection to come up, seconds.
        read_timeout_s: Time for the store to say anything, seconds; large objects get more.
        checksums: None is `when_required` where there is an endpoint, else `when_supported`.
        quoted_etags: False sends etags in conditions without quotes, which Ceph before version 17 wants.
        sign_payload: Whether signatures of writes cover a SHA-256 of the body, a second of a core for a GiB. None is
            False where the endpoint is plain HTTP on this machine, and else what botocore does: it signs a body
            unless TLS and a checksum cover it.

    Raises:
        ConfigError: a setting is not as above.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: AddressingStyle | None = None
    ca_file: str | None = None
    verify: bool = True
    connections_max: int = 16
    attempts_max: int = 5
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 10.0
    checksums: Checksums | None = None
    quoted_etags: bool = True
    sign_payload: bool | None = None

    def __post_init__(self) -> None:
        self._check_url()
        self._check_endpoint()
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise ConfigError(name, f"must be between {low} and {high}, not {describe(value)}")

    def _check_url(self) -> None:
        parts = _split("url", self.url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ConfigError("url", f"{self.url!r:.200} is not of the form s3://bucket/prefix")
        if not _BUCKET.fullmatch(parts.netloc):
            raise ConfigError("url", f"{parts.netloc!r:.80} is not the name of a bucket")
        if not _PREFIX.fullmatch(self.prefix) or len(self.prefix) > _PREFIX_BYTES_MAX or "//" in self.prefix:
            raise ConfigError(
                "url", f"the prefix {self.prefix!r:.200} has characters that not every store takes, or is too long"
            )

    def _check_endpoint(self) -> None:
        if self.endpoint is None:
            return
        parts = _split("endpoint", self.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise ConfigError("endpoint", f"{self.endpoint!r:.200} is not of the form https://host:port")

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """What every key begins with: nothing, or something that ends in a slash."""
        path = urlsplit(self.url).path.strip("/")
        return f"{path}/" if path else ""

    @property
    def shown(self) -> str:
        """Bucket and endpoint, for messages."""
        return self.url + (f" at {self.endpoint}" if self.endpoint else "")

    @property
    def effective_addressing_style(self) -> AddressingStyle:
        """The addressing style that is set, or the one that fits the endpoint."""
        return self.addressing_style or (AddressingStyle.PATH if self.endpoint else AddressingStyle.AUTO)

    @property
    def effective_checksums(self) -> Checksums:
        """The checksums that are set, or those that fit the endpoint."""
        return self.checksums or (Checksums.WHEN_REQUIRED if self.endpoint else Checksums.WHEN_SUPPORTED)

    @property
    def effective_sign_payload(self) -> bool | None:
        """Whether payloads are signed, as set or as fits the endpoint; None leaves it to botocore."""
        if self.sign_payload is None and urlsplit(self.endpoint or "").scheme == "http" and is_loopback(self.endpoint):
            return False  # what leaves this process does not leave the machine
        return self.sign_payload

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Read settings that `to_plain` wrote, or a person.

        Raises:
            ConfigError: a setting is unknown, of the wrong type or out of range.
        """
        return parse_settings(cls, plain)

    def to_plain(self) -> dict[str, Any]:
        """The settings as text, numbers and None, for JSON."""
        return to_plain(self)


def is_loopback(endpoint: str | None) -> bool:
    """Whether a store is on this machine, as far as its URL says; None, AWS, is not."""
    host = urlsplit(endpoint or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(field: str, url: str) -> SplitResult:
    """Take a URL apart; one with credentials in it is refused without being shown."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(field, f"is not a URL: {error}") from None
    if "@" in parts.netloc:
        raise ConfigError(
            field,
            "has credentials in it; give them as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or as a profile or role",
        )
    if parts.query or parts.fragment:
        raise ConfigError(field, "has a query or a fragment, which means nothing here")
    return parts
