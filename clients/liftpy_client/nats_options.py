"""How to reach NATS: what a user says in arguments, environment variables or a context of the nats CLI.

Arguments win over the environment, the environment over the context. The names are those of the nats CLI, and its
contexts (`~/.config/nats/context/<name>.json`, the chosen one in `context.txt`) are read as they are.
"""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from liftpy_envelope.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_URL", "NatsOptions"]

DEFAULT_URL: Final = "nats://127.0.0.1:4222"

_ENVIRONMENT: Final = {
    "NATS_URL": "url",
    "NATS_CREDS": "creds",
    "NATS_NKEY": "nkey",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CERT": "tls_cert",
    "NATS_KEY": "tls_key",
    "NATS_CA": "tls_ca",
    "NATS_TIMEOUT": "timeout_s",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Where NATS is, and who we are to it.

    Attributes:
        url: one or more `nats://` or `tls://` addresses, separated by commas.
        creds: a credentials file.
        nkey: a file with an nkey seed.
        user: user name; with `password`.
        password: of `user`.
        token: instead of user and password.
        tls_ca: certificates of authorities to trust, instead of the system's.
        tls_cert: our certificate.
        tls_key: its key.
        tls_first: TLS before the server speaks.
        timeout_s: for connecting, and for requests.
        inbox_prefix: of the subjects on which replies come.
    """

    url: str = DEFAULT_URL
    creds: str | None = None
    nkey: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_first: bool = False
    timeout_s: float = 5.0
    inbox_prefix: str = "_INBOX"

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("url", "names no NATS server")
        for server in self.servers:
            scheme, separator, _ = server.partition("://")
            if separator and scheme not in {"nats", "tls"}:
                raise ConfigError("url", f"{_without_secret(server)} is neither a nats:// nor a tls:// address")
        if not 0 < self.timeout_s <= 3_600:
            raise ConfigError("timeout_s", f"must be between 0 and 3600, not {self.timeout_s}")
        for name in ("creds", "nkey", "tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).expanduser().is_file():
                raise ConfigError(name, f"there is no file {path}")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("tls_key", "needs tls_cert beside it")

    def __repr__(self) -> str:
        return f"NatsOptions(url={self.shown_url!r})"

    @property
    def servers(self) -> list[str]:
        """The addresses."""
        return [server.strip() for server in self.url.split(",") if server.strip()]

    @property
    def shown_url(self) -> str:
        """The addresses without the secrets that may stand in them."""
        return ",".join(map(_without_secret, self.servers))

    def connect_arguments(self) -> dict[str, Any]:
        """Arguments for nats-py's `connect`."""
        arguments: dict[str, Any] = {
            "servers": [server if "://" in server else f"nats://{server}" for server in self.servers],
            "user_credentials": _expand(self.creds),
            "nkeys_seed": _expand(self.nkey),
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "connect_timeout": self.timeout_s,
            "inbox_prefix": self.inbox_prefix,
            "tls_handshake_first": self.tls_first,
        }
        if self.tls_ca or self.tls_cert or self.tls_first or any(s.startswith("tls://") for s in self.servers):
            arguments["tls"] = self._tls_context()
        return {name: value for name, value in arguments.items() if value is not None}

    def _tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=_expand(self.tls_ca))
            if self.tls_cert is not None:
                context.load_cert_chain(str(_expand(self.tls_cert)), _expand(self.tls_key))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("tls", f"the certificates can not be used: {error}") from error
        return context

    @classmethod
    def resolve(
        cls,
        *,
        context: str | None = None,
        environment: Mapping[str, str] | None = None,
        config_home: Path | None = None,
        **given: Any,
    ) -> NatsOptions:
        """Put options together from arguments, environment and context.

        Args:
            context: name of a context; by default the chosen one, if there is one.
            environment: by default the process's.
            config_home: by default `$XDG_CONFIG_HOME` or `~/.config`.
            given: fields; None means not given.

        Raises:
            ConfigError: something given can not be used.
        """
        environment = os.environ if environment is None else environment
        home = config_home or Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        chosen = context or environment.get("NATS_CONTEXT")
        values = _read_context(home / "nats", chosen)
        for variable, name in _ENVIRONMENT.items():
            text = environment.get(variable)
            if text:
                values[name] = _seconds(variable, text) if name == "timeout_s" else text
        values |= {name: value for name, value in given.items() if value is not None}
        return cls(**values)

    def with_url(self, url: str | None) -> NatsOptions:
        """The same with another address."""
        return self if url is None else replace(self, url=url)


def _expand(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


def _without_secret(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _seconds(variable: str, text: str) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0}
    for unit, factor in units.items():
        if text.endswith(unit):
            text, scale = text.removesuffix(unit), factor
            break
    else:
        scale = 1.0
    try:
        return float(text) * scale
    except ValueError:
        raise ConfigError(variable, f"{text!r} is not a time such as 5s") from None


def _read_context(directory: Path, name: str | None) -> dict[str, Any]:
    if name is None:
        try:
            name = (directory / "context.txt").read_text().strip()
        except OSError:
            return {}
        if not name:
            return {}
    path = directory / "context" / f"{name}.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError("context", f"there is no NATS context {name!r} in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise ConfigError("context", f"{path} can not be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("context", f"{path} is not a NATS context")
    known = {field.name for field in fields(NatsOptions)}
    values = {_CONTEXT[key]: value for key, value in content.items() if key in _CONTEXT and value}
    return {key: value for key, value in values.items() if key in known}
