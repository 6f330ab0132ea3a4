"""Settings of a bucket are checked at once, and no secret in them is shown."""

from __future__ import annotations

import pytest

from liftpy_bucket.errors import (
    ObjectMissingError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreBusyError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnfitError,
)
from liftpy_bucket.store.s3_errors import StoreRefusal, error_of
from liftpy_bucket.store.s3_settings import AddressingStyle, Checksums, S3Settings
from liftpy_envelope.errors import ConfigError

SECRET = "wJalrXUtnFEMI"


def test_what_a_url_means():
    plain = S3Settings(url="s3://bucket")
    assert (plain.bucket, plain.prefix, plain.shown) == ("bucket", "", "s3://bucket")
    deep = S3Settings(url="s3://my.bucket-1/a/b/", endpoint="http://127.0.0.1:9000")
    assert (deep.bucket, deep.prefix) == ("my.bucket-1", "a/b/")
    assert deep.shown == "s3://my.bucket-1/a/b/ at http://127.0.0.1:9000"


def test_what_fits_where():
    aws, other = S3Settings(url="s3://bucket"), S3Settings(url="s3://bucket", endpoint="https://store:443")
    assert aws.effective_addressing_style is AddressingStyle.AUTO
    assert other.effective_addressing_style is AddressingStyle.PATH
    assert aws.effective_checksums is Checksums.WHEN_SUPPORTED
    assert other.effective_checksums is Checksums.WHEN_REQUIRED
    said = S3Settings(url="s3://bucket", addressing_style=AddressingStyle.VIRTUAL, checksums=Checksums.WHEN_REQUIRED)
    assert (said.effective_addressing_style, said.effective_checksums) == ("virtual", "when_required")


@pytest.mark.parametrize(
    ("endpoint", "fits"),
    [
        (None, None),
        ("https://store:443", None),
        ("https://127.0.0.1:443", None),
        ("http://store:80", None),
        ("http://10.0.0.1:80", None),
        ("http://127.0.0.1:80", False),
        ("http://localhost:80", False),
        ("http://[::1]:80", False),
    ],
)
def test_bodies_need_no_signature_only_where_they_do_not_leave_the_machine(endpoint, fits):
    assert S3Settings(url="s3://bucket", endpoint=endpoint).effective_sign_payload is fits
    for said in (True, False):
        assert S3Settings(url="s3://bucket", endpoint=endpoint, sign_payload=said).effective_sign_payload is said


def test_plain_and_back():
    settings = S3Settings(url="s3://bucket/p", region="eu-west-1", addressing_style=AddressingStyle.PATH, verify=False)
    assert S3Settings.from_plain(settings.to_plain()) == settings
    with pytest.raises(ConfigError, match=r"endpont.*endpoint"):
        S3Settings.from_plain({"url": "s3://bucket", "endpont": "http://x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "bucket"}, "not of the form s3://bucket/prefix"),
        ({"url": "https://bucket/x"}, "not of the form s3://bucket/prefix"),
        ({"url": "s3:///x"}, "not of the form s3://bucket/prefix"),
        ({"url": "s3://B_cket"}, "not the name of a bucket"),
        ({"url": "s3://bucket/a b"}, "the prefix 'a b/'"),
        ({"url": "s3://bucket/a//b"}, "the prefix 'a//b/'"),
        ({"url": "s3://bucket/" + "a" * 600}, "too long"),
        ({"url": "s3://bucket/?versions"}, "a query"),
        ({"endpoint": "127.0.0.1:9000"}, "not of the form https://host:port"),
        ({"endpoint": "ftp://host"}, "not of the form https://host:port"),
        ({"endpoint": "http://host:99999"}, "is not a URL"),
        ({"endpoint": "http://host/path"}, "not of the form https://host:port"),
        ({"connections_max": 0}, "connections_max: must be between 1 and 1000, not 0"),
        ({"read_timeout_s": float("nan")}, "read_timeout_s: must be between"),
    ],
)
def test_mistakes(changes, said):
    with pytest.raises(ConfigError, match=said):
        S3Settings(**{"url": "s3://bucket"} | changes)


@pytest.mark.parametrize("field", ["url", "endpoint"])
def test_credentials_in_a_url_are_refused_and_not_shown(field):
    scheme = "s3" if field == "url" else "https"
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as caught:
        S3Settings(**{"url": "s3://bucket", field: f"{scheme}://AKIA:{SECRET}@bucket/x"})
    assert SECRET not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize(
    ("refusal", "reading", "writing"),
    [
        (StoreRefusal("NoSuchKey", 404), ObjectMissingError, PreconditionFailedError),
        (StoreRefusal("404", 404), ObjectMissingError, PreconditionFailedError),
        (StoreRefusal("PreconditionFailed", 412), PreconditionFailedError, PreconditionFailedError),
        (StoreRefusal("ConditionalRequestConflict", 409), StoreUnavailableError, OutcomeUnknownError),
        (StoreRefusal("InternalError", 500), StoreUnavailableError, OutcomeUnknownError),
        (StoreRefusal("SlowDown", 503), StoreBusyError, StoreBusyError),
        (StoreRefusal("502", 502), StoreUnavailableError, OutcomeUnknownError),
        (StoreRefusal("TooManyRequests", 429), StoreBusyError, StoreBusyError),
        (StoreRefusal("RequestTimeout", 400), StoreUnavailableError, OutcomeUnknownError),
        (StoreRefusal("NotImplemented", 501), StoreUnfitError, StoreUnfitError),
        (StoreRefusal("InsufficientStorage", 507), StoreFullError, StoreFullError),
        (StoreRefusal("QuotaExceeded", 403), StoreFullError, StoreFullError),
        (StoreRefusal("NoSuchBucket", 404), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("AccessDenied", 403), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("InvalidAccessKeyId", 403), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("RequestTimeTooSkewed", 403), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("AuthorizationHeaderMalformed", 400), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("PermanentRedirect", 301), StoreDeniedError, StoreDeniedError),
        (StoreRefusal("InvalidArgument", 400), StoreError, StoreError),
    ],
)
def test_what_a_refusal_means(refusal, reading, writing):
    for is_conditional, kind in ((False, reading), (True, writing)):
        assert type(error_of(refusal, "key", "s3://bucket", is_conditional=is_conditional)) is kind


def test_words_for_people():
    def said(*refusal):
        return str(error_of(StoreRefusal(*refusal), "key", "s3://bucket at http://x", is_conditional=False))

    assert "clock of this machine is wrong" in said("RequestTimeTooSkewed", 403)
    assert "has no such bucket; create it, or correct the url" in said("NoSuchBucket", 404)
    assert "set region to that of the bucket (it says: eu-north-1)" in said(
        "AuthorizationHeaderMalformed", 400, "", "eu-north-1"
    )
    assert "s3:ListBucket" in said("403", 403)
    assert said("MethodNotAllowed", 405, "not today").endswith("[MethodNotAllowed, status 405]: not today")
    assert len(said("Strange", 400, "x" * 10_000)) < 400
