"""The [tier] table says what is wrong in words for people."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ConfigError
from liftpy_server.config import load_config
from liftpy_server.tiering.settings import TierConfig


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
        ({"url": "s3://bucket", "upload_bytes": 1}, "tier.upload_bytes: must be between"),
        ({"upload_age_s": float("nan")}, "tier.upload_age_s: must be between"),
        ({"upload_bytes": 2**30}, "tier.upload_memory_bytes: must hold one upload"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given, words):
    with pytest.raises(ConfigError, match=words) as caught:
        TierConfig(**given)
    assert "secret" not in str(caught.value)
