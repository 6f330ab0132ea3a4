"""No secret passes, wherever it stands, and what is no secret stays readable."""

from __future__ import annotations

import json
from types import SimpleNamespace

import nkeys
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.cli.cluster.redacting import HIDDEN, Redactor, secrets_in_environment, secrets_in_file
from liftpy.cli.cluster.support_bundle import _known_secrets
from liftpy_client.connection.nats_options import NatsOptions

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("connected to nats://ann:pa55@10.0.0.1:4222,tls://b@c", ["pa55", "ann", "b@"]),
        ("nats://ann:p@ss@10.0.0.1:4222", ["ann", "p@ss", "ss@"]),
        (f"seed {SEED}.", [SEED]),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", ["wJalr", "K7MDENG"]),
        ('{"password": "a b c", "token":"xyz"}', ["a b c", "xyz"]),
        ("id AKIAIOSFODNN7EXAMPLE", ["AKIAIOSFODNN7EXAMPLE"]),
        ("jwt eyJ0eXAi.eyJqdGki.c2ln", ["eyJ", "c2ln"]),
        ("Authorization: Bearer abc-def_0123", ["abc-def"]),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', ["dXNl"]),
        ("authorization: Basic dXNlcjpwYXNz", ["dXNl"]),
        ("sent Bearer abcdefgh0123", ["abcdefgh"]),
        ('{"password": "gh\\"55 xyz", "a": 1}', ["gh", "55", "xyz"]),
        ('{"log": "{\\"password\\": \\"hunter22\\"}"}', ["hunter"]),
        ("passphrase=abcdef pwd: ghi", ["abcdef", "ghi"]),
        ("https://s3/b?X-Amz-Signature=0123456789abcdef", ["0123"]),
        ("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----", ["MIIB"]),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text, hidden):
    redacted = Redactor([]).text(text)
    assert HIDDEN in redacted
    assert not [each for each in hidden if each in redacted]


@pytest.mark.parametrize("form", ["p@ss/word", "p%40ss%2Fword"])
@pytest.mark.parametrize("known", ["p@ss/word", "p%40ss%2Fword"])
def test_a_known_secret_is_hidden_also_in_the_form_that_urls_have(form, known):
    assert Redactor([known]).text(f"it is {form}, really") == f"it is {HIDDEN}, really"


def test_a_known_secret_is_hidden_also_in_the_form_that_json_has():
    secret = 'p"ss\\wörd'
    for text in (json.dumps({"message": secret}), json.dumps({"message": secret}, ensure_ascii=False)):
        assert json.loads(Redactor([secret]).text(text)) == {"message": HIDDEN}


def test_the_name_of_a_user_beside_a_password_is_known_to_be_no_secret():
    nats = NatsOptions(url="nats://liftpy:from-url@a,nats://lone-token@b", user="liftpy", password="from-field")
    settings = SimpleNamespace(
        nats=SimpleNamespace(
            servers=nats.servers, password=nats.password, token=None, user=nats.user, creds=None, nkey=None
        ),
        tier=SimpleNamespace(endpoint=None),
        cluster=SimpleNamespace(key_file=None),
    )
    known = set(_known_secrets(settings))
    assert known >= {"from-url", "lone-token", "from-field"}
    assert "liftpy" not in known


def test_what_is_no_secret_stays():
    text = "stream orders: 3 partitions at http://10.0.0.1:8270/metrics, secrets of none; segment SALES-2024"
    assert Redactor(["", "a", "3"]).text(text) == text
    settings = {"key_file": "/etc/liftpy/cluster.key", "password": None, "pull": {"port": 4270}, "tls_key": "a.pem"}
    assert Redactor([]).plain(settings) == settings


def test_settings_with_the_name_of_a_secret_are_hidden_at_any_depth():
    plain = Redactor([]).plain([{"nats": {"password": "abc", "user": "ann"}, "nodes": [{"pull_token": "t"}]}])
    assert plain == [{"nats": {"password": HIDDEN, "user": HIDDEN}, "nodes": [{"pull_token": HIDDEN}]}]


@given(JSON)
def test_json_stays_json(value):
    plain = Redactor(["secret word"]).plain(value)
    assert json.loads(json.dumps(plain)) == plain


def test_secrets_of_variables_and_files():
    secret = {"MY_PASSWORD": "long enough", "AWS_SECRET_ACCESS_KEY": "/K7MDENGbPxRfiCY"}
    others = {"A_KEY_FILE": "/run/secrets/key", "NATS_NKEY": "/etc/ann.nk", "B_TOKEN": "short", "HOME": "/home/ann"}
    assert secrets_in_environment(secret | others) == [*secret.values()]
    profiles = "[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key=wJalrXUtnFEMIK7MDENG\n"
    assert secrets_in_file(profiles) == ["AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMIK7MDENG"]
