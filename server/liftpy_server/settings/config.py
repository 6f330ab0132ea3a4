"""A node's configuration: `liftpy.toml`, then `LIFTPY_*` variables, then flags, each over the one before."""

from __future__ import annotations

import re
import ssl
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from liftpy_client.connection.nats_options import NatsOptions
from liftpy_envelope.errors import ConfigError, NameInvalidError, SubjectInvalidError
from liftpy_envelope.names import check_name
from liftpy_envelope.settings import from_text, parse_settings
from liftpy_envelope.subject import check_pattern
from liftpy_server.settings.canary import CanaryConfig
from liftpy_server.settings.cluster import ClusterConfig
from liftpy_server.settings.events import EventsConfig
from liftpy_server.settings.groups import GroupsConfig
from liftpy_server.settings.tier import TierConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "HttpConfig",
    "MetricsConfig",
    "NodeConfig",
    "PullConfig",
    "StorageConfig",
    "load_config",
    "misspelt_variables",
]

_MISSPELT_LIKENESS: Final = 0.85
_PER_STREAM: Final = re.compile("all|off|top [1-9][0-9]{0,5}")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig:
    """Where consumers reach the node.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        advertise_host: Address that clients are told, where it differs from `host`.
        tls_cert: Certificate; with `tls_key` the pull server speaks TLS.
        tls_key: Key of the certificate.
        tls_client_ca: Authorities of client certificates; with it clients must show one.
        connections_max: Clients beyond it are refused; fewer where the process may open fewer files.
        hello_timeout_s: Time for a peer to show the token that admits it, seconds.
        idle_timeout_s: Time without any request after which a connection is closed, seconds.
        send_timeout_s: Time for a peer to take anything of a response, seconds.
    """

    host: str = "127.0.0.1"
    port: int = 4270
    advertise_host: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    connections_max: int = 10_000
    hello_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0
    send_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _check_port("pull.port", self.port)
        _check_ranges(
            "pull",
            self,
            connections_max=(1, 1_000_000),
            hello_timeout_s=(0.1, 3_600),
            idle_timeout_s=(1, 86_400),
            send_timeout_s=(0.1, 3_600),
        )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("pull.tls_cert", "and pull.tls_key belong together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("pull.tls_client_ca", "needs pull.tls_cert and pull.tls_key")
        if self.host in {"0.0.0.0", "::"} and self.advertise_host is None:  # noqa: S104 - refused, not bound
            raise ConfigError(
                "pull.advertise_host", f"clients can not connect to {self.host}: name a reachable address"
            )

    @property
    def reachable_host(self) -> str:
        """The address that clients are told."""
        return self.advertise_host or self.host

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS side of the pull server; None without a certificate.

        Raises:
            ConfigError: the files can not be used.
        """
        if self.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            raise ConfigError(
                "pull.tls_cert", f"{self.tls_cert} with {self.tls_key} can not be used: {error}"
            ) from error
        if self.tls_client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(self.tls_client_ca)
            except OSError as error:
                raise ConfigError("pull.tls_client_ca", f"{self.tls_client_ca} can not be used: {error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Health and metrics over HTTP.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; None turns it off, 0 takes a free one.
    """

    host: str = "127.0.0.1"
    port: int | None = None

    def __post_init__(self) -> None:
        if self.port is not None:
            _check_port("http.port", self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """How much `/metrics` tells.

    Attributes:
        per_stream: Streams that it tells of one by one: `all`, `off`, or `top N`, those with most messages.
    """

    per_stream: str = "top 100"

    def __post_init__(self) -> None:
        if _PER_STREAM.fullmatch(self.per_stream) is None:
            raise ConfigError("metrics.per_stream", f"must be all, off or top N, not {self.per_stream!r:.50}")

    @property
    def streams_max(self) -> int | None:
        """How many streams it tells of; None for all."""
        if self.per_stream == "all":
            return None
        return 0 if self.per_stream == "off" else int(self.per_stream.removeprefix("top "))


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """How the node treats its disk.

    Attributes:
        sync_interval_s: Longest time a record of a stream with `sync = interval` is not on disk.
        disk_reserve_bytes: Messages are refused while less than this is free; at most a tenth of the disk counts.
        open_files_max: Segment files that are held open.
        retention_interval_s: How often retention looks at the streams.
        dedupe_memory_bytes: Memory for the message ids of all streams; with it used up windows are shortened.
    """

    sync_interval_s: float = 1.0
    disk_reserve_bytes: int = 64 * 1024 * 1024
    open_files_max: int = 4_096
    retention_interval_s: float = 10.0
    dedupe_memory_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        _check_ranges(
            "storage",
            self,
            sync_interval_s=(0.01, 60),
            disk_reserve_bytes=(0, 2**50),
            open_files_max=(8, 1_000_000),
            retention_interval_s=(0.1, 86_400),
            dedupe_memory_bytes=(1024 * 1024, 2**50),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything a node can be told.

    Attributes:
        node_id: Name of the node; belongs to the data directory for ever.
        data_dir: Where the node keeps everything.
        rack: Where the node stands; replicas are spread over racks.
        log_level: Debug, info, warning or error.
        allow_reserved_subjects: Subjects of NATS, its clients and liftpy that streams may store all the same.
        nats: How to reach NATS.
        pull: Where consumers reach the node.
        http: Health and metrics.
        metrics: How much these tell.
        storage: How the node treats its disk.
        groups: Consumer groups.
        events: What happens to the cluster.
        cluster: The other nodes.
        tier: The bucket.
        canary: Messages that are published and read back.
    """

    node_id: str = "liftpy-1"
    data_dir: str = "liftpy-data"
    rack: str | None = None
    log_level: str = "info"
    allow_reserved_subjects: tuple[str, ...] = ()
    nats: NatsOptions = field(default_factory=NatsOptions)
    pull: PullConfig = field(default_factory=PullConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tier: TierConfig = field(default_factory=TierConfig)
    canary: CanaryConfig = field(default_factory=CanaryConfig)

    def __post_init__(self) -> None:
        try:
            check_name(self.node_id, "node")
        except NameInvalidError as error:
            raise ConfigError("node_id", str(error)) from None
        if self.log_level not in _LOG_LEVELS:
            raise ConfigError("log_level", f"{self.log_level!r} is not one of {', '.join(_LOG_LEVELS)}")
        for subject in self.allow_reserved_subjects:
            try:
                check_pattern(subject)
            except SubjectInvalidError as error:
                raise ConfigError("allow_reserved_subjects", str(error)) from None
        peers = [peer.node_id for peer in self.cluster.parsed_peers]
        if peers and self.node_id not in peers:
            raise ConfigError(
                "cluster.peers", f"this node, {self.node_id!r}, is not among them: they name {', '.join(peers)}"
            )

    @property
    def data_path(self) -> Path:
        """The data directory."""
        return Path(self.data_dir).expanduser()

    def check_files(self) -> None:
        """Look whether the keys and certificates can be used, before the data directory gets this node's name.

        Raises:
            ConfigError: one of them can not.
        """
        self.cluster.read_key()
        self.cluster.check_certificates()
        self.pull.tls_context()
        self.tier.check_files()


def _check_port(name: str, port: int) -> None:
    if not 0 <= port <= 65_535:
        raise ConfigError(name, f"must be a port between 0 and 65535, not {port}")


def _check_ranges(table: str, settings: object, **ranges: tuple[float, float]) -> None:
    for name, (low, high) in ranges.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            raise ConfigError(f"{table}.{name}", f"must be between {low} and {high}, not {value}")


def load_config(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any], *, context: str | None = None
) -> NodeConfig:
    """Put a node's configuration together.

    Args:
        path: A TOML file.
        environment: `LIFTPY_DATA_DIR`, `LIFTPY_PULL_PORT`, ..., and for NATS also the nats CLI's variables.
        flags: Settings by dotted name; None means not given.
        context: A context of the nats CLI.

    Raises:
        ConfigError: the message names the field, and the file or the variable that set it.
    """
    given = _read_file(path) if path is not None else {}
    in_file = set(_dotted_names(given))
    variables = _variables(environment)
    _overlay(given, {name: _read_variable(name, variable, environment) for name, variable in variables.items()})
    flags = {name: value for name, value in flags.items() if value is not None}
    _overlay(given, flags)
    try:
        options = _nats_options(given.pop("nats", {}), environment, context)
        return parse_settings(NodeConfig, given | {"nats": options})
    except ConfigError as error:
        if error.field in flags:
            raise
        if error.field in variables:
            raise _renamed(error, variables[error.field]) from None
        if in_file & {error.field, error.field.partition(".")[0]}:
            raise _renamed(error, f"{path}: {error.field}") from None
        raise


def _renamed(error: ConfigError, field_name: str) -> ConfigError:
    return ConfigError(field_name, str(error).removeprefix(f"{error.field}: "))


def _dotted_names(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value)


# The fields alone: what must hold between them is checked when file, environment and context are put together.
_NatsTable: Final = make_dataclass(
    "_NatsTable", [(each.name, each.type, field(default=each.default)) for each in fields(NatsOptions)]
)


def _nats_options(given: object, environment: Mapping[str, str], context: str | None) -> NatsOptions:
    table: Any = parse_settings(_NatsTable, given, "nats")
    assert isinstance(given, dict)
    values = {name: getattr(table, name) for name in given}
    try:
        return NatsOptions.resolve(context=context, environment=environment, **values)
    except ConfigError as error:
        is_setting = error.field in {setting.name for setting in fields(NatsOptions)}
        raise _renamed(error, f"nats.{error.field}" if is_setting else error.field) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(str(path), f"can not be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error


def misspelt_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The `LIFTPY_*` variables that set nothing and resemble one that does, with that one."""
    known = list(_all_variables().values())
    found = {}
    for name in environment:
        if name.startswith("LIFTPY_") and name not in known:
            near = get_close_matches(name, known, 1, _MISSPELT_LIKENESS)
            if near:
                found[name] = near[0]
    return found


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set, by the dotted name of what they set."""
    return {name: variable for name, variable in _all_variables().items() if variable in environment}


def _all_variables() -> dict[str, str]:
    variables: dict[str, str] = {}
    for setting in fields(NodeConfig):
        default = setting.default_factory() if callable(setting.default_factory) else None
        inner = [f"{setting.name}.{each.name}" for each in fields(default)] if is_dataclass(default) else [setting.name]
        variables |= {name: f"LIFTPY_{name.replace('.', '_').upper()}" for name in inner}
    return variables


def _read_variable(name: str, variable: str, environment: Mapping[str, str]) -> Any:
    table, _, leaf = name.rpartition(".")
    kind = type(getattr(NodeConfig(), table)) if table else NodeConfig
    try:
        return from_text(kind, leaf, environment[variable])
    except ConfigError as error:
        raise _renamed(error, variable) from None


def _overlay(given: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        table, _, leaf = name.rpartition(".")
        target = given.setdefault(table, {}) if table else given
        if not isinstance(target, dict):
            raise ConfigError(table, "must be a table of settings")
        target[leaf] = value
