"""How to reach NATS: arguments before the environment before a context of the nats CLI."""

from __future__ import annotations

import json

import pytest

from liftpy_client.connection.nats_options import DEFAULT_URL, NatsOptions
from liftpy_envelope.errors import ConfigError

CREDS = """-----BEGIN NATS USER JWT-----
e30
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY
------END USER NKEY SEED------
"""


@pytest.fixture
def home(tmp_path):
    """A configuration home; `save` writes a context there, `choose` makes one the chosen one."""
    (tmp_path / "nats" / "context").mkdir(parents=True)
    return tmp_path


def save(home, name, **content):
    (home / "nats" / "context" / f"{name}.json").write_text(json.dumps(content))


def resolve(home, environment=None, **given):
    return NatsOptions.resolve(environment=environment or {}, config_home=home, **given)


def test_the_default(home):
    options = resolve(home)
    assert (options.url, options.timeout_s) == (DEFAULT_URL, 5.0)
    assert options.connect_arguments()["servers"] == [DEFAULT_URL]


def test_what_wins(home):
    save(home, "work", url="nats://context:1", user="context", password="context", token="context")
    environment = {"NATS_USER": "environment", "NATS_PASSWORD": "environment", "NATS_URL": ""}
    options = resolve(home, environment, context="work", password="given")
    assert options.url == "nats://context:1"
    assert (options.user, options.password, options.token) == ("environment", "given", "context")


def test_the_context_is_chosen_by_argument_then_environment_then_file(home):
    for name in ("a", "b", "c"):
        save(home, name, url=f"nats://{name}")
    (home / "nats" / "context.txt").write_text("c\n")
    assert resolve(home).url == "nats://c"
    assert resolve(home, {"NATS_CONTEXT": "b"}).url == "nats://b"
    assert resolve(home, {"NATS_CONTEXT": "b"}, context="a").url == "nats://a"


def test_contexts_of_the_nats_cli_are_read_as_they_are(home, tmp_path):
    creds = tmp_path / "user.creds"
    creds.write_text(CREDS)
    save(home, "w", description="x", url="nats://a:1,nats://b:2", creds=str(creds), nsc="", tls_first=True, user="")
    options = resolve(home, context="w")
    assert options.servers == ["nats://a:1", "nats://b:2"]
    assert (options.creds, options.tls_first, options.user) == (str(creds), True, None)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[]", "is not a NATS context"),
        ("{", "cannot be read"),
        ('{"url": 5}', "url is of the wrong type"),
        ('{"tls_first": "yes"}', "tls_first is of the wrong type"),
        ('{"nsc": "nsc://operator/account/user"}', "sets nsc, which liftpy cannot use"),
        ('{"socks_proxy": "socks5://x"}', "sets socks_proxy"),
    ],
)
def test_contexts_that_can_not_be_used(home, content, what):
    path = home / "nats" / "context" / "bad.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=what) as error:
        resolve(home, context="bad")
    assert str(path) in str(error.value)


def test_a_context_that_is_missing(home):
    with pytest.raises(ConfigError, match="there is no NATS context 'gone'"):
        resolve(home, context="gone")
    (home / "nats" / "context.txt").write_text("gone")
    with pytest.raises(ConfigError, match="gone"):
        resolve(home)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("2.5", 2.5), ("5s", 5), ("250ms", 0.25), ("1m", 60), ("1m30s", 90), ("1h", 3600)]
)
def test_timeouts(home, text, seconds):
    assert resolve(home, {"NATS_TIMEOUT": text}).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "5 s", "s", "-1s", "0", "nan", "inf", "2h", "1e9"])
def test_senseless_timeouts(home, text):
    with pytest.raises(ConfigError):
        resolve(home, {"NATS_TIMEOUT": text})


@pytest.mark.parametrize("url", ["localhost", "localhost:4222", "nats://u:p@h", "tls://[::1]:4222", "nats://a, b:1"])
def test_sound_addresses(url):
    assert NatsOptions(url=url).servers


@pytest.mark.parametrize(
    "url",
    ["", " , ", "http://x", "ws://x:80", "nats://", "nats://:4222", "nats://h:port", "nats://h:99999", "h:0", "h:-1"],
)
def test_senseless_addresses(url):
    with pytest.raises(ConfigError, match="url"):
        NatsOptions(url=url)


def test_secrets_are_not_shown():
    options = NatsOptions(url="nats://user:secret@host:4222,tls://token@other", password="hidden")
    assert options.shown_url == "nats://host:4222,tls://other"
    assert "secret" not in repr(options)
    assert "hidden" not in repr(options)
    with pytest.raises(ConfigError) as error:
        NatsOptions(url="nats://user:secret@h:port")
    assert "secret" not in str(error.value)


def test_files_are_looked_into_before_anyone_waits_for_them(tmp_path):
    path = tmp_path / "file"
    for field in ("creds", "nkey", "tls_ca", "tls_cert"):
        with pytest.raises(ConfigError, match="there is no file"):
            NatsOptions(**{field: str(path)})
    path.write_text("these are not the secrets that were looked for\n")
    with pytest.raises(ConfigError, match="is not a NATS credentials file"):
        NatsOptions(creds=str(path))
    with pytest.raises(ConfigError, match="does not hold an nkey seed"):
        NatsOptions(nkey=str(path))
    with pytest.raises(ConfigError, match="certificates cannot be used"):
        NatsOptions(tls_ca=str(path)).connect_arguments()
    with pytest.raises(ConfigError, match="needs tls_cert"):
        NatsOptions(tls_key=str(path))
    path.write_text("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n")
    assert NatsOptions(nkey=str(path)).connect_arguments()["nkeys_seed"] == str(path)
    path.write_text(CREDS)
    assert NatsOptions(creds=str(path)).connect_arguments()["user_credentials"] == str(path)
