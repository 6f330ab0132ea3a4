"""What a node is told of the bucket: the `[tier]` table of its settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftpy_bucket.staging.directory import check_path
from liftpy_bucket.store.s3_settings import AddressingStyle, Checksums, S3Settings, is_loopback
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TierConfig", "store_settings"]

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB
_TIB: Final = 1024 * _GIB
_OF_STORE: Final = (
    "url",
    "endpoint",
    "region",
    "addressing_style",
    "ca_file",
    "verify",
    "checksums",
    "quoted_etags",
    "sign_payload",
)
_OF_BUCKET: Final = (
    *("endpoint", "region", "ca_file", "addressing_style", "checksums", "sign_payload"),
    "staging_directory",
)
_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("upload_bytes", 64 * _KIB, 2 * _GIB),
    ("upload_age_s", 0.1, 86_400),
    ("set_member_bytes_max", 0, 2 * _GIB),
    ("merge_bytes", 64 * _KIB, 16 * _GIB),
    ("object_bytes", 64 * _KIB, 16 * _GIB),
    ("gc_interval_s", 0.1, 86_400),
    ("grace_s", 0, 30 * 86_400),
    ("cache_bytes", 16 * _MIB, 64 * _TIB),
    ("read_ahead_bytes", 512 * _KIB, 16 * _GIB),
    ("upload_memory_bytes", 16 * _MIB, 64 * _GIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """Where the history of streams goes, and when. Credentials come the usual AWS ways, and never from here.

    Attributes:
        url: `s3://bucket/prefix`; None keeps everything on the disks of the nodes.
        endpoint: URL of an S3-compatible store; None for that of AWS.
        region: Region of the bucket; None leaves it to the AWS environment.
        upload_bytes: Bytes of record batches; a partition that has as much that is not in the bucket is
            uploaded at once.
        upload_age_s: What is not in the bucket waits no longer than this.
        set_member_bytes_max: Partitions with at most so much share an object; those with more get one of their own.
        merge_bytes: Bytes of a partition in shared objects, until it gets an object of its own; a sixteenth of it after
            half a week to a week.
        object_bytes: Size up to which objects of a partition are merged.
        gc_interval_s: How often retention and the removal of what nothing names look at the bucket.
        grace_s: What nothing names stays for so long, for those that are reading it.
        cache_bytes: Maximum bytes of the disk, for what was read from the bucket.
        read_ahead_bytes: How far a sequential read is ahead of its reader, at most.
        upload_memory_bytes: Bytes of memory, for what uploads, merges and compactions work on at a time.
        staging_directory: Directory from which leaders read what the sink of Spark stages there; None for the bucket
            alone.
        ca_file: PEM file with the certificates that the store's certificate is checked against; None for the system's.
        verify: False takes any certificate of the store.
        trust_any_certificate: Has to be said as well where `verify` is False and the store is on another machine.
        addressing_style: Where the bucket's name stands; None is `path` where there is an endpoint, else `auto`.
        checksums: When requests carry checksums of their own; None is `when_required` where there is an endpoint.
        quoted_etags: False sends etags in conditions without quotes, which Ceph before version 17 wants.
        sign_payload: Whether signatures cover bodies; None does so where `S3Settings` says.
    """

    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    upload_bytes: int = 48 * _MIB
    upload_age_s: float = 60.0
    set_member_bytes_max: int = 8 * _MIB
    merge_bytes: int = 16 * _MIB
    object_bytes: int = 256 * _MIB
    gc_interval_s: float = 600.0
    grace_s: float = 3_600.0
    cache_bytes: int = _GIB
    read_ahead_bytes: int = 64 * _MIB
    upload_memory_bytes: int = 256 * _MIB
    staging_directory: str | None = None
    ca_file: str | None = None
    verify: bool = True
    trust_any_certificate: bool = False
    addressing_style: AddressingStyle | None = None
    checksums: Checksums | None = None
    quoted_etags: bool = True
    sign_payload: bool | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            _check_address(self.url, self.endpoint)
            self._check_verify()
        for name in _OF_BUCKET:
            if self.url is None and getattr(self, name) is not None:
                raise ConfigError(f"tier.{name}", "needs tier.url, the bucket: s3://bucket/prefix")
        self._check_staging()
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise ConfigError(f"tier.{name}", f"must be between {low} and {high}, not {describe(value)}")
        if self.upload_memory_bytes < self.upload_bytes:
            raise ConfigError(
                "tier.upload_memory_bytes",
                f"must hold one upload: tier.upload_bytes is {self.upload_bytes}, this is {self.upload_memory_bytes}",
            )

    def _check_staging(self) -> None:
        if self.staging_directory is None:
            return
        try:
            is_shortest = check_path(self.staging_directory) == self.staging_directory
        except ValueError as error:
            raise ConfigError("tier.staging_directory", str(error)) from None
        if not is_shortest:
            raise ConfigError("tier.staging_directory", f"say {check_path(self.staging_directory)}, which is the same")

    def _check_verify(self) -> None:
        if self.verify:
            return
        if self.ca_file is not None:
            raise ConfigError("tier.verify", "false leaves tier.ca_file without a use: give one of them")
        if not self.trust_any_certificate and not is_loopback(self.endpoint):
            raise ConfigError(
                "tier.verify",
                f"false lets whoever is between this node and {self.endpoint or 'AWS'} read and change everything: "
                "give tier.ca_file instead, or say tier.trust_any_certificate = true as well",
            )

    def check_files(self) -> None:
        """Look whether the certificates can be used.

        Raises:
            ConfigError: they can not.
        """
        if self.ca_file is None:
            return
        try:
            ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise ConfigError("tier.ca_file", f"{self.ca_file} can not be used: {error}") from error

    @property
    def is_on(self) -> bool:
        """Whether there is a bucket."""
        return self.url is not None


def _check_address(url: str, endpoint: str | None) -> None:
    if url.startswith(("http://", "https://")):
        text = "is the address of a store: that is tier.endpoint; here goes s3://bucket/prefix"
        raise ConfigError("tier.url", text)
    try:
        S3Settings(url=url, endpoint=endpoint)
    except ConfigError as error:
        raise ConfigError(f"tier.{error.field}", str(error).removeprefix(f"{error.field}: ")) from None


def store_settings(plain: Mapping[str, Any]) -> S3Settings:
    """How the store is reached, of a `TierConfig` as plain values.

    Raises:
        ConfigError: a setting is not as it should be.
    """
    return S3Settings.from_plain({name: plain[name] for name in _OF_STORE if name in plain})
