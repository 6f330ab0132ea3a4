"""What may cross the wire between voters is exactly the messages of Raft."""

from __future__ import annotations

import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy_envelope.errors import FrameError
from liftpy_server.consensus.messages import ENTRY_BYTES_MAX, decode_message, encode_message

MESSAGES = [
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 1,
        "prevLogIdx": 4,
        "prevLogTerm": 2,
        "entries": [(b"\0x", 5, 3), (b"\1", 6, 3)],
    },
    {"type": "append_entries", "term": 3, "commit_index": 1, "serialized": [b"piece", True, False]},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 7, "reset": False, "success": True},
    {"type": "request_vote", "term": 3, "last_log_index": 4, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {"type": "pre_vote", "term": 3, "last_log_index": 4, "last_log_term": 2},
    {"type": "pre_vote_response", "term": 3},
    {"type": "apply_command", "command": b"\0x", "request_id": 9},
    {"type": "apply_command_response", "request_id": 9, "log_idx": 5, "log_term": 3},
    {"type": "apply_command_response", "request_id": 9, "error": 6},
    {"type": "timeout_now", "term": 3},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["type"])
def test_round_trip(message):
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["type"])
def test_every_field_is_needed_and_checked(message):
    for name in message:
        with pytest.raises(FrameError):
            decode_message(encode_message({key: value for key, value in message.items() if key != name}))
        for wrong in (-1, 1 << 63, None, "x", b"", [], {}, [b"", 1, 1], [[b"x", 1, -1]], True):
            if type(wrong) is type(message[name]):
                continue
            with pytest.raises(FrameError):
                decode_message(encode_message(message | {name: wrong}))
    with pytest.raises(FrameError):
        decode_message(encode_message(message | {"more": 1}))


def test_entries_follow_each_other_and_are_bounded():
    message = MESSAGES[0]
    for entries in ([(b"x", 6, 3)], [(b"x", 5, 3), (b"x", 7, 3)], [(b"", 5, 3)], [(bytes(ENTRY_BYTES_MAX + 1), 5, 3)]):
        with pytest.raises(FrameError):
            decode_message(encode_message(message | {"entries": entries}))


def test_a_pickle_is_not_looked_at():
    with pytest.raises(FrameError):
        decode_message(pickle.dumps(MESSAGES[0]))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(FrameError):
        decode_message(data)


@given(
    st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=5), lambda e: st.lists(e) | st.dictionaries(st.text(), e)
    )
)
def test_values_of_other_shapes_are_refused(value):
    with pytest.raises(FrameError):
        decode_message(msgpack.packb(value))
