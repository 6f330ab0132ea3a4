"""Credentials of an operator, an account and a user, as `nsc` makes them: signed JWTs and the seeds of nkeys."""

from __future__ import annotations

import base64
import json
import os
import time
from typing import TYPE_CHECKING, Any

import nkeys

if TYPE_CHECKING:
    from pathlib import Path


class Identity:
    """A key pair.

    Args:
        kind: one of the prefixes of the nkeys library.
    """

    def __init__(self, kind: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), kind)
        self._pair = nkeys.from_seed(self.seed)
        self.public = self._pair.public_key.decode()

    def sign(self, subject: Identity, kind: str, claims: dict[str, Any]) -> str:
        """A JWT about another identity."""
        body = {
            "jti": subject.public,
            "iat": int(time.time()),
            "iss": self.public,
            "name": kind,
            "sub": subject.public,
            "nats": claims | {"type": kind, "version": 2},
        }
        text = f"{_encode({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encode(body)}"
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def user_nkey(path: Path) -> str:
    """A file with the seed of a new user; its public key."""
    user = Identity(nkeys.PREFIX_BYTE_USER)
    path.write_bytes(user.seed)
    return user.public


def operator_mode(creds: Path) -> str:
    """A credentials file of a new user, and the configuration of a nats-server that knows the user's operator."""
    operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
    account, user = Identity(nkeys.PREFIX_BYTE_ACCOUNT), Identity(nkeys.PREFIX_BYTE_USER)
    no_limits = {"subs": -1, "data": -1, "payload": -1}
    limits = no_limits | {"imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    operator_jwt = operator.sign(operator, "operator", {})
    account_jwt = operator.sign(account, "account", {"limits": limits})
    user_jwt = account.sign(user, "user", {"pub": {}, "sub": {}} | no_limits)
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return (
        f"listen: 127.0.0.1:4222\noperator: {operator_jwt}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {account_jwt} }}\n"
    )


def _encode(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
