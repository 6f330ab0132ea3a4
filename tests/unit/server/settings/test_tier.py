"""The [tier] table says what is wrong in words for people."""

from __future__ import annotations

import pytest

from liftpy_bucket.store.s3_settings import AddressingStyle, Checksums
from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings, to_plain
from liftpy_server.settings.config import load_config
from liftpy_server.settings.tier import TierConfig, store_settings


def test_it_is_off_until_it_has_a_url():
    assert not TierConfig().is_on
    assert TierConfig(url="s3://bucket").is_on


def test_variables_and_flags_reach_it():
    environment = {"LIFTPY_TIER_URL": "s3://bucket/a", "LIFTPY_TIER_UPLOAD_AGE_S": "5"}
    tier = load_config(None, environment, {"tier.endpoint": "http://127.0.0.1:9000"}).tier
    assert (tier.url, tier.endpoint, tier.upload_age_s) == ("s3://bucket/a", "http://127.0.0.1:9000", 5.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "https://s3.example.com/bucket"}, "tier.url: .* that is tier.endpoint"),
        ({"url": "gs://bucket/prefix"}, "tier.url: .*s3://bucket/prefix"),
        ({"url": "s3://"}, "tier.url: "),
        ({"url": "s3://ab"}, "tier.url: .*bucket"),
        ({"url": "s3://key:secret@bucket/prefix"}, "tier.url: .*credentials"),
        ({"url": "s3://bucket/prefix?x=1"}, "tier.url: "),
        ({"endpoint": "http://127.0.0.1:9000"}, "tier.endpoint: needs tier.url"),
        ({"region": "eu-central-1"}, "tier.region: needs tier.url"),
        ({"url": "s3://bucket", "endpoint": "127.0.0.1:9000"}, "tier.endpoint: .*https?://"),
        ({"staging_directory": "/srv/staging"}, "tier.staging_directory: needs tier.url"),
        (
            {"url": "s3://bucket", "staging_directory": "staging"},
            "tier.staging_directory: 'staging' is no absolute path",
        ),
        ({"url": "s3://bucket", "staging_directory": "/a/../b"}, "tier.staging_directory: .* no plain path"),
        ({"url": "s3://bucket", "staging_directory": "/a/b/"}, "tier.staging_directory: say /a/b, "),
        ({"url": "s3://bucket", "upload_bytes": 1}, "tier.upload_bytes: must be between"),
        ({"upload_age_s": float("nan")}, "tier.upload_age_s: must be between"),
        ({"ca_file": "ca.pem"}, "tier.ca_file: needs tier.url"),
        ({"url": "s3://bucket", "verify": False}, "tier.verify: .*AWS.*tier.trust_any_certificate"),
        ({"url": "s3://bucket", "endpoint": "https://10.0.0.1", "verify": False}, "tier.verify: .*10.0.0.1"),
        ({"url": "s3://bucket", "ca_file": "ca.pem", "verify": False}, "tier.verify: .*tier.ca_file"),
        ({"upload_bytes": 2**30}, "tier.upload_memory_bytes: must hold one upload"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given, words):
    with pytest.raises(ConfigError, match=words) as caught:
        TierConfig(**given)
    assert "secret" not in str(caught.value)


def test_what_the_store_needs_reaches_the_worker():
    given = {
        "url": "s3://bucket/a",
        "endpoint": "https://store:443",
        "region": "eu-1",
        "ca_file": "ca.pem",
        "addressing_style": "virtual",
        "checksums": "when_supported",
        "quoted_etags": False,
        "sign_payload": False,
    }
    store = store_settings(to_plain(parse_settings(TierConfig, given, "tier")))
    assert (store.url, store.endpoint, store.region, store.ca_file) == tuple(given.values())[:4]
    assert store.effective_addressing_style is AddressingStyle.VIRTUAL
    assert store.effective_checksums is Checksums.WHEN_SUPPORTED
    assert store.verify
    assert not store.quoted_etags
    assert store.effective_sign_payload is False


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "https://127.0.0.1:8333"},
        {"endpoint": "https://localhost:8333"},
        {"endpoint": "https://[::1]:8333"},
        {"endpoint": "https://store:443", "trust_any_certificate": True},
    ],
)
def test_certificates_need_not_be_checked_on_this_machine_or_when_it_is_said_twice(given):
    config = TierConfig(url="s3://bucket", verify=False, **given)
    assert not store_settings(to_plain(config)).verify


def test_certificates_that_can_not_be_read_are_told_before_anything_is_done(tmp_path):
    path = tmp_path / "ca.pem"
    config = TierConfig(url="s3://bucket", ca_file=str(path))
    with pytest.raises(ConfigError, match=r"tier.ca_file: .*ca.pem can not be used"):
        config.check_files()
    path.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"tier.ca_file: .*ca.pem can not be used"):
        config.check_files()
    TierConfig(url="s3://bucket").check_files()
