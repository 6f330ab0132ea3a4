"""Settings come from a file, the environment and flags, each over the one before; what is wrong is named."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ConfigError
from liftpy_server.settings.config import (
    HttpConfig,
    NodeConfig,
    PullConfig,
    StorageConfig,
    load_config,
    misspelt_variables,
)


@pytest.fixture
def write(tmp_path):
    """Writes the file of settings."""

    def write_file(text):
        path = tmp_path / "liftpy.toml"
        path.write_text(text)
        return path

    return write_file


def load(path=None, environment=None, flags=None, **options):
    environment = {"XDG_CONFIG_HOME": "/nowhere"} | (environment or {})
    return load_config(path, environment, flags or {}, **options)


def refusal(path=None, environment=None, flags=None):
    with pytest.raises(ConfigError) as refused:
        load(path, environment, flags)
    return refused.value


def test_nothing_said():
    config = load()
    assert NodeConfig() == config
    assert (
        config.node_id,
        config.nats.url,
        config.pull.port,
        config.http.port,
    ) == ("liftpy-1", "nats://127.0.0.1:4222", 4270, None)


def test_file(write):
    path = write(
        """
        node_id = "n7"
        rack = "a"
        [nats]
        url = "nats://nats.example:4222"
        timeout_s = 2
        [pull]
        host = "10.0.0.1"
        port = 9
        [http]
        port = 8080
        [storage]
        sync_interval_s = 0.5
        open_files_max = 100
        """
    )
    config = load(path)
    assert (
        config.node_id,
        config.rack,
        config.nats.url,
        config.nats.timeout_s,
    ) == ("n7", "a", "nats://nats.example:4222", 2.0)
    assert PullConfig(host="10.0.0.1", port=9) == config.pull
    assert (HttpConfig(port=8080), StorageConfig(sync_interval_s=0.5, open_files_max=100)) == (
        config.http,
        config.storage,
    )


def test_environment():
    config = load(
        environment={
            "LIFTPY_NODE_ID": "n2",
            "LIFTPY_RACK": "none",
            "LIFTPY_PULL_PORT": "0",
            "LIFTPY_HTTP_PORT": "8080",
            "LIFTPY_NATS_URL": "nats://a,nats://b",
            "LIFTPY_NATS_TLS_FIRST": "true",
            "LIFTPY_STORAGE_SYNC_INTERVAL_S": "2.5",
            "LIFTPY_UNKNOWN": "x",
        }
    )
    assert (config.node_id, config.rack, config.pull.port, config.http.port) == ("n2", None, 0, 8080)
    assert (config.nats.url, config.nats.tls_first, config.storage.sync_interval_s) == ("nats://a,nats://b", True, 2.5)


def test_each_over_the_one_before(write):
    path = write('node_id = "file"\nrack = "file"\nlog_level = "error"\n[pull]\nport = 1\nhost = "127.0.0.2"')
    environment = {"LIFTPY_NODE_ID": "environment", "LIFTPY_RACK": "environment", "LIFTPY_PULL_PORT": "2"}
    config = load(path, environment, {"node_id": "flag", "pull.port": 3, "rack": None})
    assert (config.node_id, config.rack, config.log_level) == ("flag", "environment", "error")
    assert (config.pull.port, config.pull.host) == (3, "127.0.0.2")


def test_nats_is_found_as_the_nats_command_finds_it(write):
    environment = {"NATS_URL": "nats://cli", "NATS_USER": "u", "NATS_PASSWORD": "p"}
    assert (load(environment=environment).nats.url, load(environment=environment).nats.user) == ("nats://cli", "u")
    assert load(write('[nats]\nurl = "nats://file"'), environment).nats.url == "nats://file"
    assert load(environment=environment | {"LIFTPY_NATS_URL": "nats://ours"}).nats.url == "nats://ours"


def test_nats_context(tmp_path):
    directory = tmp_path / "nats" / "context"
    directory.mkdir(parents=True)
    (directory / "prod.json").write_text('{"url": "nats://prod"}')
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert load(environment=environment, context="prod").nats.url == "nats://prod"
    assert load(environment=environment).nats.url == "nats://127.0.0.1:4222"


def test_parts_of_nats_may_come_from_different_places(write, tmp_path):
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch()
    path = write(f'[nats]\ntls_key = "{tmp_path}/key.pem"')
    config = load(path, {"NATS_CERT": f"{tmp_path}/cert.pem"})
    assert (f"{tmp_path}/cert.pem", f"{tmp_path}/key.pem") == (config.nats.tls_cert, config.nats.tls_key)


BAD_FILES = [
    ("colour = 1", "colour"),
    ('pull = "x"', "pull"),
    ('nats = "x"', "nats"),
    ("node_id = 5", "node_id"),
    ('node_id = "a.b"', "node_id"),
    ('node_id = ""', "node_id"),
    ("data_dir = false", "data_dir"),
    ('log_level = "loud"', "log_level"),
    ("[pull]\ncolour = 1", "pull.colour"),
    ('[pull]\nport = "9"', "pull.port"),
    ("[pull]\nport = true", "pull.port"),
    ("[pull]\nport = 1.5", "pull.port"),
    ("[pull]\nport = 65536", "pull.port"),
    ("[pull]\nport = -1", "pull.port"),
    ('[pull]\nhost = "0.0.0.0"', "pull.advertise_host"),
    ('[pull]\nhost = "::"', "pull.advertise_host"),
    ('[pull]\ntls_cert = "a"', "pull.tls_cert"),
    ('[pull]\ntls_key = "a"', "pull.tls_cert"),
    ('[pull]\ntls_client_ca = "a"', "pull.tls_client_ca"),
    ("[http]\nport = 70000", "http.port"),
    ("[storage]\nsync_interval_s = 0", "storage.sync_interval_s"),
    ("[storage]\nsync_interval_s = nan", "storage.sync_interval_s"),
    ("[storage]\nsync_interval_s = inf", "storage.sync_interval_s"),
    ("[storage]\ndisk_reserve_bytes = -1", "storage.disk_reserve_bytes"),
    ("[storage]\nopen_files_max = 7", "storage.open_files_max"),
    ("[storage]\nretention_interval_s = 1e9", "storage.retention_interval_s"),
    ("[nats]\ncolour = 1", "nats.colour"),
    ("[nats]\ncontext = 'x'", "nats.context"),
]
BAD_NATS = [
    ("url = 4222", "nats.url"),
    ("url = ['nats://a']", "nats.url"),
    ("url = ''", "nats.url"),
    ("url = 'http://a'", "nats.url"),
    ("timeout_s = '5s'", "nats.timeout_s"),
    ("timeout_s = 0", "nats.timeout_s"),
    ("creds = 5", "nats.creds"),
    ("creds = '/nowhere/at.all'", "nats.creds"),
    ("user = 5", "nats.user"),
    ("tls_first = 'yes'", "nats.tls_first"),
    ("tls_key = '/nowhere/at.all'", "nats.tls_key"),
]


@pytest.mark.parametrize(("text", "field"), BAD_FILES)
def test_bad_setting_names_file_and_field(write, text, field):
    path = write(text)
    error = refusal(path)
    assert f"{path}: {field}" == error.field
    assert str(error).startswith(f"{path}: {field}: ")


@pytest.mark.parametrize(("text", "field"), BAD_NATS)
def test_bad_setting_of_nats_names_file_and_field(write, text, field):
    path = write(f"[nats]\n{text}")
    error = refusal(path)
    assert str(error).startswith(f"{path}: {field}: ")


def test_unknown_setting_names_the_nearest(write):
    assert "did you mean port?" in str(refusal(write("[pull]\nprot = 1")))


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LIFTPY_PULL_PORT", "nine"),
        ("LIFTPY_PULL_PORT", "1e3"),
        ("LIFTPY_PULL_PORT", "99999"),
        ("LIFTPY_HTTP_PORT", "x"),
        ("LIFTPY_STORAGE_SYNC_INTERVAL_S", "soon"),
        ("LIFTPY_NATS_TLS_FIRST", "yes"),
        ("LIFTPY_NATS_TIMEOUT_S", "5s"),
        ("LIFTPY_LOG_LEVEL", "loud"),
        ("LIFTPY_NODE_ID", "a b"),
    ],
)
def test_bad_variable_is_named(variable, text):
    error = refusal(environment={variable: text})
    dotted = variable.removeprefix("LIFTPY_").lower()
    for table in ("pull", "http", "storage", "nats"):
        dotted = dotted.replace(f"{table}_", f"{table}.", 1) if dotted.startswith(f"{table}_") else dotted
    assert error.field in {variable, dotted}


def test_whatever_set_a_bad_value_is_named(write):
    path = write("[pull]\nport = 9\n[nats]\ntimeout_s = 1")
    assert refusal(path, {"LIFTPY_PULL_PORT": "99999"}).field == "LIFTPY_PULL_PORT"
    assert refusal(path, {"LIFTPY_NATS_TIMEOUT_S": "0"}).field == "LIFTPY_NATS_TIMEOUT_S"
    assert refusal(path, {"LIFTPY_PULL_PORT": "99999"}, {"pull.port": 99_998}).field == "pull.port"
    assert refusal(write("node_id = 'a'"), {"NATS_TIMEOUT": "soon"}).field == "NATS_TIMEOUT"


@pytest.mark.parametrize(
    "flags", [{"pull.port": 70_000}, {"pull.port": "x"}, {"pull.host": "0.0.0.0"}, {"node_id": "a b"}]
)
def test_bad_flag_is_named(flags):
    error = refusal(flags=flags)
    assert error.field in {"pull.port", "pull.advertise_host", "node_id"}


def test_table_that_is_none_and_a_variable_for_it(write):
    assert "pull" in refusal(write("pull = 5"), {"LIFTPY_PULL_PORT": "9"}).field


def test_file_that_is_not_there(tmp_path):
    path = tmp_path / "nothing.toml"
    error = refusal(path)
    assert (str(path), True) == (error.field, "can not be read" in str(error))


@pytest.mark.parametrize("content", [b"node_id = ", b"\xff\xfe", b"[pull\n", b"a = 1\na = 2\n"])
def test_file_that_is_no_toml(tmp_path, content):
    path = tmp_path / "liftpy.toml"
    path.write_bytes(content)
    error = refusal(path)
    assert (str(path), True) == (error.field, "is not TOML" in str(error))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_listening_everywhere_needs_an_address_to_tell(host):
    with pytest.raises(ConfigError, match=r"pull\.advertise_host"):
        PullConfig(host=host)
    assert PullConfig(host=host, advertise_host="node.example").reachable_host == "node.example"


def test_address_that_clients_are_told():
    assert (PullConfig(host="h").reachable_host, PullConfig(host="h", advertise_host="a").reachable_host) == ("h", "a")


def test_no_certificate_no_tls():
    assert PullConfig().tls_context() is None


def test_certificate_that_can_not_be_used(tmp_path):
    (tmp_path / "c.pem").write_text("nonsense")
    for cert in (tmp_path / "c.pem", tmp_path / "nothing.pem"):
        with pytest.raises(ConfigError, match=r"pull\.tls_cert"):
            PullConfig(tls_cert=str(cert), tls_key=str(cert)).tls_context()


def test_secrets_do_not_show(write):
    path = write('[nats]\nurl = "nats://user:hunter2@host"\npassword = "hunter3"\nuser = "u"\ntoken = "hunter4"')
    assert "hunter" not in repr(load(path))


def test_secret_in_a_bad_address_does_not_show(write):
    assert "hunter2" not in str(refusal(write('[nats]\nurl = "http://user:hunter2@host"')))


def test_home_directory_in_data_dir(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(NodeConfig(data_dir="~/data").data_path) == "/home/someone/data"


PEERS = ["n1@10.0.0.1:4280", "n2@10.0.0.2:4280"]


def test_a_node_is_one_of_its_peers(write):
    """Before its data directory gets a name that is wrong."""
    path = write(f'node_id = "n3"\n[cluster]\nport = 4280\nkey_file = "key"\npeers = {PEERS}\n')
    assert str(refusal(path)) == f"{path}: cluster.peers: this node, 'n3', is not among them: they name n1, n2"
    assert load(path, flags={"node_id": "n2"}).cluster.peers == tuple(PEERS)


def test_peers_that_stand_there_twice():
    flags = {"node_id": "n1", "cluster.port": 1, "cluster.key_file": "key"}
    assert "'n1' stands there more than once" in str(refusal(flags=flags | {"cluster.peers": ["n1@a:1", "n1@b:2"]}))
    many = [f"n{number}@a:1" for number in range(6)]
    assert "at most 5 nodes, not 6" in str(refusal(flags=flags | {"cluster.peers": many}))


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"cluster.key_file": "none"}, "cluster.key_file"),
        ({"cluster.key_file": "short"}, "cluster.key_file"),
        ({"cluster.tls_cert": "none", "cluster.tls_key": "short", "cluster.tls_ca": "short"}, "cluster.tls_cert"),
        ({"pull.tls_cert": "short", "pull.tls_key": "none"}, "pull.tls_cert"),
    ],
)
def test_files_that_can_not_be_used(tmp_path, flags, field):
    (tmp_path / "short").write_text("hush\n")
    named = {name: str(tmp_path / file) for name, file in flags.items()}
    with pytest.raises(ConfigError) as refused:
        load(flags=named).check_files()
    assert refused.value.field == field
    assert named[field] in str(refused.value)
    assert "hush" not in str(refused.value)


def test_certificates_do_not_stand_for_the_secret(tmp_path):
    """What nodes ask each other over NATS is proven by the secret, which certificates are not."""
    names = ("cert", "key", "ca")
    flags = {"cluster.port": 1} | {f"cluster.tls_{name}": str(tmp_path / name) for name in names}
    with pytest.raises(ConfigError, match=r"also where they have certificates.*openssl rand -hex 32") as refused:
        load(flags=flags)
    assert refused.value.field == "cluster.key_file"
    load(flags=flags | {"cluster.key_file": str(tmp_path / "secret")})


def test_a_key_without_the_end_of_its_line(tmp_path):
    path = tmp_path / "key"
    path.write_text("k" * 32 + "\n")
    config = load(flags={"cluster.port": 1, "cluster.key_file": str(path)})
    config.check_files()
    assert config.cluster.read_key() == b"k" * 32


def test_a_misspelt_variable_is_named_with_the_one_that_was_meant():
    environment = {"LIFTPY_PUL_PORT": "1", "LIFTPY_PULL_PORT": "1", "LIFTPY_SERVICE_HOST": "x", "PULL_PORT": "1"}
    assert misspelt_variables(environment) == {"LIFTPY_PUL_PORT": "LIFTPY_PULL_PORT"}
