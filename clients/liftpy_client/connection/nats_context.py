"""Contexts of the nats CLI: `~/.config/nats/context/<name>.json`, the chosen one named in `context.txt`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_context"]

_CONTEXT: Final = {
    "url": "url",
    "creds": "creds",
    "nkey": "nkey",
    "user": "user",
    "password": "password",
    "token": "token",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "tls_first": "tls_first",
    "inbox_prefix": "inbox_prefix",
}
_CONTEXT_UNSUPPORTED: Final = ("nsc", "user_jwt", "user_seed", "socks_proxy", "windows_cert_store")


def read_context(directory: Path, name: str | None) -> dict[str, Any]:
    """What a context says, by the names of the fields of `NatsOptions`.

    Args:
        directory: Where the nats CLI keeps its files.
        name: Name of the context; None for the chosen one, if there is one.

    Raises:
        ConfigError: there is no such context, or liftpy cannot use it.
    """
    if name is None:
        name = _chosen(directory)
        if not name:
            return {}
    path = directory / "context" / f"{name}.json"
    content = _load(path, name)
    for key in _CONTEXT_UNSUPPORTED:
        if content.get(key):
            raise ConfigError("context", f"{path} sets {key}, which liftpy cannot use")
    values: dict[str, Any] = {}
    for key, field in _CONTEXT.items():
        value = content.get(key)
        if value:
            if not isinstance(value, bool if field == "tls_first" else str):
                raise ConfigError("context", f"{path}: {key} is of the wrong type")
            values[field] = value
    return values


def _chosen(directory: Path) -> str:
    try:
        return (directory / "context.txt").read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("context", f"{directory / 'context.txt'} cannot be read: {error}") from None


def _load(path: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError("context", f"there is no NATS context {name!r} in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise ConfigError("context", f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("context", f"{path} is not a NATS context")
    return content
