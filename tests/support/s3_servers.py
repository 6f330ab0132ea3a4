"""S3 servers for tests: on loopback, random ports, a directory of the test, gone afterwards.

with seaweedfs(tmp_path) as server:       # a real server: persistent, real signatures; starts in 1 s
    store = server.store("some/prefix")   # an S3Store
    server.kill(); server.start()         # what was acknowledged is there again

with moto_server() as server:             # in this process, quick, keeps nothing, takes any credentials
    ...
with seaweedfs(tmp_path) as server, server.in_environment():  # for what reads the AWS_* variables itself
    ...
"""

from __future__ import annotations

import itertools
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import boto3
from moto.server import ThreadedMotoServer

from liftpy.cli.dev.seaweed import BUCKET, SeaweedServer
from liftpy_bucket.store.s3 import S3Store
from liftpy_bucket.store.s3_settings import S3Settings
from support.bucket_audit import leaks_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["S3Server", "aws_environment", "moto_server", "seaweedfs"]

REGION = "us-east-1"


class S3Server:
    """A server with a bucket.

    Args:
        endpoint: its address.
        environment: the credentials, as environment variables.
        process: the process behind it, where there is one.

    Attributes:
        prefixes: Where nodes keep something that is audited in the end.
    """

    def __init__(self, endpoint: str, environment: dict[str, str], process: SeaweedServer | None = None) -> None:
        self.endpoint = endpoint
        self.environment = environment
        self.bucket = BUCKET
        self.prefixes: set[str] = set()
        self._process = process

    def url(self, prefix: str = "") -> str:
        """For S3Settings."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    @contextmanager
    def in_environment(self) -> Iterator[None]:
        """The credentials are those of this process."""
        with aws_environment(**self.environment):
            yield

    def settings(self, prefix: str = "", **changes: Any) -> S3Settings:
        """An S3Settings."""
        return S3Settings(**{"url": self.url(prefix), "endpoint": self.endpoint} | changes)

    def store(self, prefix: str = "", **changes: Any) -> S3Store:
        """A store of a prefix."""
        with self.in_environment():
            return S3Store(self.settings(prefix, **changes))

    def client(self) -> Any:
        """A boto3 client."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
        )

    def audit(self) -> None:
        """See that nothing was left where nodes kept something but what is named; they are gone by now."""
        found = {prefix: leaks for prefix in sorted(self.prefixes) if (leaks := leaks_in(self.store(prefix)))}
        assert not found, f"nothing names {found}"

    def kill(self) -> None:
        """With SIGKILL."""
        assert self._process is not None, "this server is no process"
        self._process.kill()

    def start(self) -> None:
        """Again, after `kill`."""
        assert self._process is not None, "this server is no process"
        self._process.start()


@contextmanager
def aws_environment(**variables: str) -> Iterator[None]:
    """The environment without what it says of AWS, and with these variables; nothing looks for a cloud around us."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    quiet = nowhere | {"AWS_EC2_METADATA_DISABLED": "true"}
    with mock.patch.dict(os.environ, kept | quiet | variables, clear=True):
        yield


@contextmanager
def seaweedfs(directory: Path) -> Iterator[S3Server]:
    """A SeaweedFS with real credentials; what is in the directory from an earlier one is there again."""
    process = SeaweedServer(directory / "seaweedfs", directory / "seaweedfs.log")
    process.start()
    try:
        server = S3Server(process.endpoint, process.environment, process)
        yield server
        server.audit()
    finally:
        process.kill()


_MOTO_NUMBERS = itertools.count(1)


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Moto in a thread. All in this process share what they keep, so each has a bucket of its own."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    behind = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    behind.start()
    try:
        host, port = behind.get_host_and_port()
        environment = {"AWS_ACCESS_KEY_ID": "moto", "AWS_SECRET_ACCESS_KEY": "not checked"}
        server = S3Server(f"http://{host}:{port}", environment)
        server.bucket = f"{BUCKET}-{next(_MOTO_NUMBERS)}"
        server.client().create_bucket(Bucket=server.bucket)
        yield server
        server.audit()
    finally:
        behind.stop()
