"""Admin requests that no client of ours would send: each gets an answer that says what is wrong, and harms nobody."""

from __future__ import annotations

import asyncio
import json

import pytest

from liftpy_envelope.errors import ErrorCode

ENDPOINTS = (
    "CLUSTER.INFO",
    "METADATA",
    "NODE.DRAIN",
    "NODE.INFO",
    "NODE.JOIN",
    "NODE.LIST",
    "NODE.QUARANTINE",
    "NODE.REMOVE",
    "STREAM.CREATE",
    "STREAM.DELETE",
    "STREAM.FIND",
    "STREAM.INFO",
    "STREAM.LIST",
    "STREAM.PAUSE",
    "STREAM.PURGE",
    "STREAM.READONLY",
    "STREAM.REASSIGN",
    "STREAM.RECOVER",
    "STREAM.RESUME",
    "STREAM.UPDATE",
)
NAMED = ("DELETE", "INFO", "PAUSE", "PURGE", "READONLY", "RESUME")
WRONG = {int(ErrorCode.INVALID_REQUEST), int(ErrorCode.INVALID_CONFIG), int(ErrorCode.UNKNOWN_STREAM)}


@pytest.fixture
def lift(shared_lift):
    return shared_lift


async def ask(lift, endpoint, body, timeout_s=5.0):
    """The answer to a request, given as JSON value or as bytes."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = await lift.nats.request(f"LIFT.API.{endpoint}", payload, timeout=timeout_s)
    return json.loads(message.data)


async def error_of(lift, endpoint, body):
    """The error that answers a request; it is one line, and has both codes."""
    answer = await ask(lift, endpoint, body)
    assert set(answer) == {"error"}, answer
    error = answer["error"]
    assert 400 <= error["code"] < 600
    assert error["description"]
    assert "Traceback" not in error["description"]
    return error


async def assert_well(lift, name):
    """Streams can be created, used and deleted."""
    async with asyncio.timeout(40):
        await lift.create_stream(name, subject=name)
        await lift.publish(name, b"x")
        await lift.delete_stream(name)


NOT_OBJECTS = {
    "half": b"{",
    "not-text": b"\xff\xfe\x00",
    "list": b"[]",
    "string": b'"orders"',
    "number": b"17",
    "null": b"null",
    "two": b"{} {}",
    "deep-list": b"[" * 100_000,
    "deep-object": b'{"a":' * 50_000,
}


@pytest.mark.parametrize("body", NOT_OBJECTS.values(), ids=NOT_OBJECTS)
async def test_what_is_no_object_is_refused(lift, body):
    for endpoint in ENDPOINTS:
        assert (await error_of(lift, endpoint, body))["err_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_unknown_fields_are_refused(lift, endpoint):
    error = await error_of(lift, endpoint, {"naem": "x"})
    assert error["err_code"] == ErrorCode.INVALID_CONFIG
    assert "naem" in error["description"]


@pytest.mark.parametrize("endpoint", ["CLUSTER.INFO", "NODE.INFO", "NODE.LIST", "STREAM.LIST", "METADATA"])
async def test_an_empty_body_is_an_empty_object(lift, endpoint):
    assert "error" not in await ask(lift, endpoint, b"")
    assert "error" not in await ask(lift, endpoint, b" \n ")


@pytest.mark.parametrize("endpoint", [f"STREAM.{verb}" for verb in (*NAMED, "CREATE", "FIND", "UPDATE")])
async def test_missing_fields_are_named(lift, endpoint):
    error = await error_of(lift, endpoint, {})
    assert error["err_code"] == ErrorCode.INVALID_CONFIG
    assert "is missing" in error["description"]


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], {}, ["x"]], ids=repr)
async def test_names_are_strings(lift, value):
    for verb in NAMED:
        error = await error_of(lift, f"STREAM.{verb}", {"name": value})
        assert error["err_code"] == ErrorCode.INVALID_CONFIG
        assert error["description"].startswith("name:")


@pytest.mark.parametrize("value", ["", "no such", "a" * 5_000, "ü", "\x00", "\r\nX: y", "../../etc"])
async def test_names_that_no_stream_has(lift, value):
    for verb in NAMED:
        error = await error_of(lift, f"STREAM.{verb}", {"name": value})
        assert error["err_code"] in WRONG


BAD_SETTINGS = [
    ({"name": "a b"}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a" * 129}, "name"),
    ({"name": "a.b"}, "name"),
    ({"name": "../x"}, "name"),
    ({"name": 7}, "name"),
    ({"subject": ""}, "subject"),
    ({"subject": "a..b"}, "subject"),
    ({"subject": "a.>.b"}, "subject"),
    ({"subject": "a b"}, "subject"),
    ({"subject": "a\r\nPUB x 0"}, "subject"),
    ({"subject": ".".join(["t"] * 10_000)}, "subject"),
    ({"subject": "x" * 4_097}, "subject"),
    ({"subject": ["a", "b"]}, "subject"),
    ({"subject": ">"}, "acks"),
    ({"subject": "_INBOX.>"}, "acks"),
    ({"subject": "LIFT.API.>"}, "acks"),
    ({"subject": "$SYS.>"}, "acks"),
    ({"subject": "*.API"}, "acks"),
    ({"subject": ">", "acks": "off"}, "subject: '>' overlaps"),
    ({"subject": "LIFT.API.*", "acks": "envelope"}, "subject: 'LIFT.API.*' overlaps"),
    ({"group": "q"}, "group: 'q' is the queue group of NATS services"),
    ({"partitions": 0}, "partitions"),
    ({"partitions": 1_025}, "partitions"),
    ({"partitions": -1}, "partitions"),
    ({"partitions": 1.5}, "partitions"),
    ({"partitions": True}, "partitions"),
    ({"partitions": "2"}, "partitions"),
    ({"partitions": 10**40}, "partitions"),
    ({"spread": "hsah"}, "did you mean hash"),
    ({"partition_prefix": "a.b"}, "partition_prefix"),
    ({"group": "a b"}, "group"),
    ({"group": "*"}, "group"),
    ({"replicas": 2}, "replicas"),
    ({"replicas": 8}, "replicas"),
    ({"min_isr": 2}, "min_isr"),
    ({"min_isr": 0}, "min_isr"),
    ({"acks": "maybe"}, "acks"),
    ({"ack_policy": "everyone"}, "ack_policy"),
    ({"sync": "alway"}, "did you mean always"),
    ({"sync": None}, "sync"),
    ({"retention_age_s": -1}, "retention_age_s"),
    ({"retention_age_s": float("nan")}, "retention_age_s"),
    ({"retention_age_s": float("inf")}, "retention_age_s"),
    ({"retention_bytes": -5}, "retention_bytes"),
    ({"retention_bytes": 2**63 + 1}, "retention_bytes"),
    ({"retention_messages": 10**400}, "retention_messages"),
    ({"segment_bytes": 1}, "segment_bytes"),
    ({"segment_age_s": 0}, "segment_age_s"),
    ({"dedupe_window_s": 1e9}, "dedupe_window_s"),
    ({"dedupe_ids_max": -1}, "dedupe_ids_max"),
    ({"message_bytes_max": 0}, "message_bytes_max"),
    ({"compression": "gzip"}, "compression"),
    ({"keep_replies": 1}, "keep_replies"),
    ({"retention_mesages": 5}, "did you mean retention_messages"),
]


@pytest.mark.parametrize(("settings", "told"), BAD_SETTINGS, ids=lambda value: str(value)[:40])
async def test_bad_settings_create_nothing(lift, settings, told):
    before = (await ask(lift, "STREAM.LIST", {}))["total"]
    error = await error_of(lift, "STREAM.CREATE", {"name": "bad", "subject": "bad.settings"} | settings)
    assert error["err_code"] == ErrorCode.INVALID_CONFIG
    assert told in error["description"]
    assert len(error["description"]) < 500
    assert (await ask(lift, "STREAM.LIST", {}))["total"] == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "changes"),
        (None, "changes"),
        ([], "changes"),
        ("sync", "changes"),
        ({"sync": "often"}, "sync"),
        ({"nonsense": 1}, "nonsense"),
        ({"subject": "a b"}, "subject"),
        ({"subject": ">"}, "acks"),
        ({"subject": ">", "acks": "off"}, "allow_reserved_subjects"),
        ({"group": "q"}, "allow_reserved_subjects"),
        ({"replicas": 2}, "replicas"),
        ({"message_bytes_max": "1MB"}, "message_bytes_max"),
        ({"group": 5}, "group"),
    ],
    ids=repr,
)
async def test_bad_updates_change_nothing(lift, name, changes, told):
    created = await lift.create_stream(name, subject=name)
    error = await error_of(lift, "STREAM.UPDATE", {"name": name, "changes": changes})
    assert error["err_code"] == ErrorCode.INVALID_CONFIG
    assert told in error["description"]
    assert (await lift.stream_info(name)).raw == created.raw


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("STREAM.LIST", {"limit": 0}),
        ("STREAM.LIST", {"limit": 257}),
        ("STREAM.LIST", {"offset": -1}),
        ("STREAM.LIST", {"offset": "0"}),
        ("STREAM.PURGE", {"name": "x", "offset": -1}),
        ("STREAM.PURGE", {"name": "x", "offset": 2**63}),
        ("STREAM.PURGE", {"name": "x", "partition": -1}),
        ("STREAM.PURGE", {"name": "x", "partition": "0"}),
        ("STREAM.READONLY", {"name": "x", "read_only": "yes"}),
        ("STREAM.UPDATE", {"name": "x", "changes": {"sync": "never"}, "expected_version": "1"}),
        ("METADATA", {"streams": "x"}),
        ("METADATA", {"streams": [1]}),
        ("STREAM.FIND", {"subject": 5}),
        ("CLUSTER.INFO", {"limit": 0}),
        ("NODE.INFO", {"node_id": 5}),
        ("NODE.DRAIN", {"node_id": "n2", "cancel": "yes"}),
        ("STREAM.REASSIGN", {"name": "x", "partitions": {"0": "n1"}}),
    ],
    ids=str,
)
async def test_wrong_types_and_ranges(lift, endpoint, body):
    assert (await error_of(lift, endpoint, body))["err_code"] == ErrorCode.INVALID_CONFIG


async def test_a_node_alone_has_nowhere_to_move_anything(lift, name):
    await lift.create_stream(name, subject=name)
    assert "drain it first" in (await error_of(lift, "NODE.REMOVE", {"node_id": "liftpy-1"}))["description"]
    error = await error_of(lift, "STREAM.REASSIGN", {"name": name, "replicas": 2})
    assert "2 replicas need 2 nodes; the cluster has 1" in error["description"]
    error = await error_of(lift, "NODE.JOIN", {})
    assert "cluster.port" in error["description"]
    await lift.delete_stream(name)


@pytest.mark.parametrize("subject", ["a.>.b", "", "a..b", "a b", "x" * 4_097])
async def test_find_needs_a_subject(lift, subject):
    assert (await error_of(lift, "STREAM.FIND", {"subject": subject}))["err_code"] == ErrorCode.INVALID_REQUEST


HUGE = {
    "field": {"x" * 600_000: 1},
    "name": {"name": "x" * 900_000},
    "number": b'{"name": ' + b"9" * 900_000 + b"}",
    "nested": {"name": {"a": ["b" * 400_000, "c" * 400_000]}},
    "many-fields": {f"field{number}": number for number in range(50_000)},
}


@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE)
@pytest.mark.parametrize("endpoint", ["STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE", "NODE.INFO"])
async def test_a_huge_body_gets_a_short_answer(lift, endpoint, body):
    error = await error_of(lift, endpoint, body)
    assert error["err_code"] in WRONG
    assert len(error["description"]) < 2_000


SURROGATE = '"\\ud800"'
HOSTILE = {
    "delete": ("STREAM.DELETE", f'{{"name": {SURROGATE}}}'),
    "pause": ("STREAM.PAUSE", f'{{"name": {SURROGATE}}}'),
    "readonly": ("STREAM.READONLY", f'{{"name": {SURROGATE}}}'),
    "info": ("STREAM.INFO", f'{{"name": {SURROGATE}}}'),
    "purge": ("STREAM.PURGE", f'{{"name": {SURROGATE}}}'),
    "create-group": ("STREAM.CREATE", f'{{"name": "x", "subject": "x", "group": {SURROGATE}}}'),
    "create-subject": ("STREAM.CREATE", f'{{"name": "x", "subject": {SURROGATE}}}'),
    "find": ("STREAM.FIND", f'{{"subject": {SURROGATE}}}'),
    "metadata": ("METADATA", f'{{"streams": [{SURROGATE}]}}'),
    "update-text": ("STREAM.UPDATE", f'{{"name": "there", "changes": {{"group": {SURROGATE}}}}}'),
    "update-key": ("STREAM.UPDATE", f'{{"name": "there", "changes": {{{SURROGATE}: 1}}}}'),
    "update-number": ("STREAM.UPDATE", '{"name": "there", "changes": {"retention_bytes": 1%s}}' % ("0" * 40)),
    "update-version": (
        "STREAM.UPDATE",
        '{"name": "there", "changes": {"retention_bytes": 1}, "expected_version": 1%s}' % ("0" * 40),
    ),
    "update-deep": (
        "STREAM.UPDATE",
        '{"name": "there", "changes": {"group": ' + "[" * 900 + "]" * 900 + "}}",
    ),
}


@pytest.mark.parametrize(("endpoint", "body"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_json_is_refused_and_the_node_stays_well(lift, name, endpoint, body):
    await lift.create_stream("there", subject="there")
    answer = await ask(lift, endpoint, body.encode())
    assert "error" in answer
    assert answer["error"]["err_code"] in WRONG
    await assert_well(lift, name)
    assert (await lift.stream_info("there")).config.subject == "there"
