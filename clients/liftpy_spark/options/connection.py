"""The options by which readers and writers alike reach NATS and the bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from liftpy_spark.options.values import OptionError

if TYPE_CHECKING:
    from liftpy_spark.options.values import Options

__all__ = ["ConnectionOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How NATS and the bucket are reached. Secrets are no part of it: files and variables of each machine have them.

    Attributes:
        servers: Addresses of NATS, separated by commas; None takes those of the context.
        context: Name of a context of the nats CLI.
        credentials_file: A NATS credentials file, which is on every machine.
        bucket: `s3://bucket/prefix`; None takes the one that the nodes use.
        s3_endpoint: S3 endpoint of a store that is not AWS; None takes that of the nodes, where their bucket is taken.
        s3_region: S3 region of the bucket; None likewise.
    """

    servers: str | None = None
    context: str | None = None
    credentials_file: str | None = None
    bucket: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None

    @classmethod
    def read(cls, options: Options) -> Self:
        """Read the options that a user gave.

        Raises:
            OptionError: an option means nothing.
        """
        found = cls(
            servers=options.text("servers"),
            context=options.text("context"),
            credentials_file=options.text("credentialsFile"),
            bucket=options.text("bucket"),
            s3_endpoint=options.text("s3.endpoint"),
            s3_region=options.text("s3.region"),
        )
        if found.servers is None and found.context is None:
            raise OptionError("servers", "say where NATS is, for instance nats://127.0.0.1:4222")
        return found
