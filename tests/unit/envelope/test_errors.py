"""Proves that the numbers of errors are the persisted ones, and that every error has the one root."""

import json

import pytest

from liftpy_envelope import ack, errors
from liftpy_envelope.errors import AckErrorCode, ConfigError, ErrorCode, HeaderError, LiftError

CODES = {
    "NONE": 0,
    "INVALID_REQUEST": 1,
    "UNSUPPORTED_VERSION": 2,
    "UNAUTHENTICATED": 3,
    "UNKNOWN_STREAM": 4,
    "STREAM_RECREATED": 5,
    "NOT_LEADER": 6,
    "STALE_EPOCH": 7,
    "OFFSET_OUT_OF_RANGE": 8,
    "BATCH_CORRUPT": 9,
    "PARTITION_OFFLINE": 10,
    "NOT_AVAILABLE": 11,
    "TOO_MANY_REQUESTS": 12,
    "FRAME_TOO_LARGE": 13,
    "INTERNAL": 14,
    "STREAM_EXISTS": 15,
    "INVALID_CONFIG": 16,
    "SUBSCRIPTION_REFUSED": 17,
    "OUTCOME_UNKNOWN": 18,
    "CONFLICT": 19,
    "UNKNOWN_GROUP": 26,  # those between stand in results of groups, as `GroupError`
}
# number, status, retriable
ACK_CODES = {
    "STORAGE_FULL": (10047, 503, True),
    "TOO_LARGE": (10054, 400, False),
    "WRONG_STREAM": (10060, 400, False),
    "WRONG_EXPECTED_OFFSET": (10071, 400, False),
    "NOT_ENOUGH_REPLICAS": (20001, 503, True),
    "READ_ONLY": (20002, 400, False),
    "PAUSED": (20003, 503, True),
    "MALFORMED": (20004, 400, False),
    "UNSUPPORTED": (20005, 400, False),
    "OUTCOME_UNKNOWN": (20006, 503, True),
    "PARTITION_OFFLINE": (20007, 503, True),
    "TOO_MANY_PRODUCERS": (20008, 400, False),
    "STAGED_UNREADABLE": (20009, 503, True),
}
RETRIABLE = {"NOT_LEADER", "NOT_AVAILABLE", "TOO_MANY_REQUESTS"}


def test_numbers_of_error_codes_are_the_persisted_ones():
    assert {code.name: code.value for code in ErrorCode} == CODES


def test_which_error_codes_are_retriable():
    assert {name: name in RETRIABLE for name in CODES} == {code.name: code.retriable for code in ErrorCode}


def test_numbers_of_ack_error_codes_are_the_persisted_ones():
    assert {code.name: (code.value, code.http_status, code.retriable) for code in AckErrorCode} == ACK_CODES


def test_codes_are_plain_numbers_on_the_wire():
    assert json.dumps([ErrorCode.NOT_LEADER, AckErrorCode.MALFORMED]) == "[6, 20004]"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_every_error_has_the_one_root_and_says_whether_to_try_again(name):
    kind = getattr(errors, name)
    assert issubclass(kind, LiftError)
    assert type(kind.retriable) is bool


def test_errors_of_acks_have_the_one_root():
    assert issubclass(ack.AckUnreadableError, LiftError)
    assert issubclass(ack.PublishRefusedError, LiftError)


def test_a_frame_that_is_too_large_is_a_frame_error():
    assert issubclass(errors.FrameTooLargeError, errors.FrameError)


def test_a_config_error_carries_the_field():
    error = ConfigError("storage.sync", "must be true or false")
    assert (error.field, str(error)) == ("storage.sync", "storage.sync: must be true or false")


def test_a_header_error_carries_the_code_of_its_ack():
    assert AckErrorCode.MALFORMED is HeaderError("wrong").code
    assert AckErrorCode.UNSUPPORTED is HeaderError("unsupported", AckErrorCode.UNSUPPORTED).code
