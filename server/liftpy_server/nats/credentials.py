"""The line with which a connection says who it is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nkeys

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from liftpy_client.connection.nats_options import NatsOptions
    from liftpy_server.nats.server_pool import ServerAddress

__all__ = ["CredentialsError", "connect_line"]

_JWT_MARK: Final = "BEGIN NATS USER JWT"
_SEED_MARK: Final = "BEGIN USER NKEY SEED"


class CredentialsError(LiftError):
    """The credentials can not be read."""


def connect_line(options: NatsOptions, name: str, address: ServerAddress, info: dict[str, Any]) -> bytes:
    """The `CONNECT` line.

    Args:
        options: Say who we are. Files are read anew: credentials are exchanged while a node runs.
        name: Name of the connection.
        address: Address of the server; what is named in it counts when the options name nobody.
        info: What the server said of itself.

    Raises:
        CredentialsError: a file can not be read, or does not hold what it should.
    """
    fields: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "lang": "python3",
        "version": "liftpy",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": False,
        "name": name,
    }
    fields |= _identity(options, address, info.get("nonce"))
    return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"


def _identity(options: NatsOptions, address: ServerAddress, nonce: str | None) -> dict[str, str]:
    if nonce is not None and options.creds is not None:
        content = _read("creds", options.creds)
        seed = _after_mark(content, _SEED_MARK, options.creds)
        signed = {"jwt": _after_mark(content, _JWT_MARK, options.creds), "sig": _sign(options.creds, seed, nonce)[0]}
    elif nonce is not None and options.nkey is not None:
        signature, public = _sign(options.nkey, _read("nkey", options.nkey).strip(), nonce)
        signed = {"nkey": public, "sig": signature}
    elif options.user is not None and options.password is not None:
        return {"user": options.user, "pass": options.password}
    elif options.token is None and address.user is not None:
        if address.password is None:
            return {"auth_token": address.user}
        return {"user": address.user, "pass": address.password}
    else:
        signed = {}
    return signed if options.token is None else signed | {"auth_token": options.token}


def _read(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{name}: {path} can not be read: {error}") from error


def _after_mark(content: str, mark: str, path: str) -> str:
    lines = iter(content.splitlines())
    if any(mark in line for line in lines):
        found = next(lines, "").strip()
        if found:
            return found
    raise CredentialsError(f"creds: {path} is not a NATS credentials file: nothing follows {mark!r}")


def _sign(path: str, seed: str, nonce: str) -> tuple[str, str]:
    """The signature of a nonce, and the public key that it can be checked with."""
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
    except (nkeys.NkeysError, ValueError) as error:
        raise CredentialsError(f"{path} does not hold an nkey seed") from error
    try:
        return base64.b64encode(pair.sign(nonce.encode())).decode(), pair.public_key.decode()
    finally:
        pair.wipe()
