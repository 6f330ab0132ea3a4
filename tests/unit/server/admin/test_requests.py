"""The bodies of admin requests are checked before anything is done."""

from __future__ import annotations

import pytest

from liftpy_envelope.errors import ConfigError
from liftpy_envelope.settings import parse_settings
from liftpy_server.admin.requests import ListRequest, MetadataRequest, NameRequest, NoRequest, PurgeRequest, read_update


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (NoRequest, {"x": 1}, "x"),
        (NameRequest, {}, "name"),
        (NameRequest, {"name": 5}, "name"),
        (ListRequest, {"limit": 0}, "limit"),
        (ListRequest, {"limit": 257}, "limit"),
        (ListRequest, {"offset": -1}, "limit"),
        (PurgeRequest, {"name": "a", "partition": -1}, "partition"),
        (PurgeRequest, {"name": "a", "offset": 2**63}, "offset"),
        (PurgeRequest, {"name": "a", "offset": "5"}, "offset"),
        (MetadataRequest, {"streams": "orders"}, "streams"),
        (MetadataRequest, {"streams": [5]}, "streams"),
    ],
)
def test_field_that_is_wrong_is_named(kind, body, field):
    with pytest.raises(ConfigError) as refused:
        parse_settings(kind, body)
    assert field == refused.value.field


def test_what_is_left_out():
    assert (parse_settings(ListRequest, {}).offset, parse_settings(ListRequest, {}).limit) == (0, 256)
    assert parse_settings(MetadataRequest, {}).streams is None
    assert (parse_settings(PurgeRequest, {"name": "a"}).partition, PurgeRequest(name="a").offset) == (None, None)


def test_update():
    request = read_update({"name": "a", "changes": {"subject": "b"}, "expected_version": 3})
    assert (request.name, request.changes, request.expected_version) == ("a", {"subject": "b"}, 3)


@pytest.mark.parametrize(
    "body", [{"name": "a"}, {"name": "a", "changes": {}}, {"name": "a", "changes": [1]}, {"name": "a", "changes": None}]
)
def test_update_of_nothing(body):
    with pytest.raises(ConfigError, match="changes"):
        read_update(body)


@pytest.mark.parametrize(
    "body",
    [
        {"changes": {"a": 1}},
        {"name": "a", "changes": {"a": 1}, "more": 1},
        {"name": "a", "changes": {"a": 1}, "expected_version": "3"},
    ],
)
def test_update_that_is_malformed(body):
    with pytest.raises(ConfigError):
        read_update(body)
