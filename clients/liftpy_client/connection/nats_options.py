"""How to reach NATS: what a user says in arguments, environment variables or a context of the nats CLI.

Arguments win over the environment, the environment over the context. The names are those of the nats CLI, and its
contexts (`~/.config/nats/context/<name>.json`, the chosen one in `context.txt`) are read as they are.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import urlsplit

from liftpy_client.connection.nats_context import read_context
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import check_names

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_URL", "ConnectOptions", "NatsOptions"]

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
_CREDS_MARKS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0}
_GO_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smh]))+")
_GO_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smh])")


class ConnectOptions(TypedDict, total=False):
    """Fields of `NatsOptions` beside the address, as keyword arguments; None means not given."""

    creds: str | None
    nkey: str | None
    user: str | None
    password: str | None
    token: str | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_first: bool | None
    timeout_s: float | None
    inbox_prefix: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """Where NATS is, and who we are to it.

    Attributes:
        url: One or more `nats://` or `tls://` addresses, separated by commas.
        creds: A credentials file.
        nkey: A file with an nkey seed.
        user: User name; with `password`.
        password: Password of `user`.
        token: Instead of user and password.
        tls_ca: Certificates of authorities to trust, instead of the system's.
        tls_cert: Our certificate.
        tls_key: Key of the certificate.
        tls_first: TLS before the server speaks.
        timeout_s: Time for connecting, and for requests, seconds.
        inbox_prefix: Prefix of the subjects on which replies come.
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
            _check_server(server)
        if not 0 < self.timeout_s <= 3_600:
            raise ConfigError("timeout_s", f"must be between 0 and 3600, not {self.timeout_s}")
        for name in ("creds", "nkey", "tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).expanduser().is_file():
                raise ConfigError(name, f"there is no file {path}")
        self._check_secrets()
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("tls_key", "needs tls_cert beside it")

    def _check_secrets(self) -> None:
        """Look into the files now: nats-py would search a file without the marks of credentials for ever."""
        if self.creds is not None:
            content = _read("creds", self.creds)
            if not all(mark in content for mark in _CREDS_MARKS):
                raise ConfigError("creds", f"{self.creds} is not a NATS credentials file")
        if self.nkey is not None:
            import nkeys  # noqa: PLC0415 - with libsodium, which few connections need

            try:
                nkeys.from_seed(bytearray(_read("nkey", self.nkey).strip())).wipe()
            except (nkeys.NkeysError, ValueError):
                raise ConfigError("nkey", f"{self.nkey} does not hold an nkey seed") from None

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
        if self.prefers_tls:
            arguments["tls"] = self.tls_context()
        return {name: value for name, value in arguments.items() if value is not None}

    @property
    def prefers_tls(self) -> bool:
        """Whether something here says TLS; a server may want it all the same."""
        return bool(self.tls_ca or self.tls_cert or self.tls_first or any(s.startswith("tls://") for s in self.servers))

    def tls_context(self) -> ssl.SSLContext:
        """What TLS to NATS is checked with.

        Raises:
            ConfigError: the certificates cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=_expand(self.tls_ca))
            if self.tls_cert is not None:
                context.load_cert_chain(str(_expand(self.tls_cert)), _expand(self.tls_key))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("tls", f"the certificates cannot be used: {error}") from error
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
            context: Name of a context; by default the chosen one, if there is one.
            environment: Environment; by default that of the process.
            config_home: Home of configuration; by default `$XDG_CONFIG_HOME` or `~/.config`.
            given: Fields; None means not given.

        Raises:
            ConfigError: something given cannot be used.
        """
        check_names(cls, given)
        environment = os.environ if environment is None else environment
        home = config_home or Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        chosen = context or environment.get("NATS_CONTEXT")
        values = read_context(home / "nats", chosen)
        for variable, name in _ENVIRONMENT.items():
            text = environment.get(variable)
            if text:
                values[name] = _seconds(variable, text) if name == "timeout_s" else text
        values |= {name: value for name, value in given.items() if value is not None}
        return cls(**values)


def _expand(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


def _without_secret(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _check_server(server: str) -> None:
    scheme, separator, _ = server.partition("://")
    if separator and scheme not in {"nats", "tls"}:
        raise ConfigError("url", f"{_without_secret(server)} is neither a nats:// nor a tls:// address")
    try:
        parts = urlsplit(server if separator else f"nats://{server}")
        sound = bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError("url", f"{_without_secret(server)} is not an address such as nats://host:4222")


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(name, f"{path} cannot be read: {error.strerror}") from None


def _seconds(variable: str, text: str) -> float:
    """Seconds, or what Go calls a duration: the nats CLI reads the same variable."""
    try:
        if _GO_DURATION.fullmatch(text):
            return sum(float(number) * _SECONDS[unit] for number, unit in _GO_DURATION_PART.findall(text))
        return float(text)
    except ValueError:
        raise ConfigError(variable, f"{text!r} is not a time such as 5s") from None
