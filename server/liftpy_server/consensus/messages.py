"""The messages of Raft on the wire: msgpack maps, each checked field by field before the core sees it.

A peer is authenticated, and still may be broken, or of another version. A message that is not exactly one of these
ends its connection and never reaches the core.

    append_entries      term, commit_index, prevLogIdx, prevLogTerm, entries [[command, index, term]...]
    append_entries      term, commit_index, serialized [data, is first, is last]     a chunk of a snapshot
    next_node_idx       term, next_node_idx, reset, success                          the answer to both
    request_vote        term, last_log_index, last_log_term;   response_vote  term
    pre_vote            term, last_log_index, last_log_term;   pre_vote_response  term
    apply_command       command, request_id                                          a follower forwards a command
    apply_command_response   request_id, and log_idx, log_term or error
    timeout_now         term                                                         stand for election at once
    refused             why                                                          the last word on a connection
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgpack

from liftpy_envelope.errors import FrameError
from liftpy_envelope.unpacking import Bounds, UnpackError, unpack
from liftpy_server.consensus.settings import COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ENTRY_BYTES_MAX", "Message", "decode_message", "encode_message"]

Message = dict[str, Any]
_Form = dict[str, "Callable[[object], bool]"]

ENTRY_BYTES_MAX: Final = COMMAND_BYTES_MAX + 64
"""A command in its entry."""

_NUMBER_MAX: Final = 1 << 62
_BOUNDS: Final = Bounds(items=1_000_000, length=200_000, text_bytes=64 * 1024, binary_bytes=1 << 30, depth=None)
"""The session bounds the bytes of a frame; every field is checked."""
_TEXT_CHARACTERS_MAX: Final = 1_000


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _NUMBER_MAX


def _is_text(value: object) -> bool:
    return type(value) is str and len(value) <= _TEXT_CHARACTERS_MAX


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_command(value: object) -> bool:
    return type(value) is bytes and 0 < len(value) <= ENTRY_BYTES_MAX


def _is_chunk(value: object) -> bool:
    return type(value) is list and len(value) == 3 and type(value[0]) is bytes and all(map(_is_bool, value[1:]))


def _is_entry(value: object) -> bool:
    return type(value) is list and len(value) == 3 and _is_command(value[0]) and all(map(_is_number, value[1:]))


def _are_entries(value: object) -> bool:
    if type(value) is not list or not all(map(_is_entry, value)):
        return False
    return all(later[1] == earlier[1] + 1 for earlier, later in pairwise(value))


_VOTE: Final[_Form] = {"term": _is_number, "last_log_index": _is_number, "last_log_term": _is_number}
_APPEND: Final[_Form] = {"term": _is_number, "commit_index": _is_number}
_FORMS: Final[dict[str, list[_Form]]] = {
    "append_entries": [
        _APPEND | {"prevLogIdx": _is_number, "prevLogTerm": _is_number, "entries": _are_entries},
        _APPEND | {"serialized": _is_chunk},
    ],
    "next_node_idx": [{"term": _is_number, "next_node_idx": _is_number, "reset": _is_bool, "success": _is_bool}],
    "request_vote": [_VOTE],
    "response_vote": [{"term": _is_number}],
    "pre_vote": [_VOTE],
    "pre_vote_response": [{"term": _is_number}],
    "apply_command": [{"command": _is_command, "request_id": _is_number}],
    "apply_command_response": [
        {"request_id": _is_number, "log_idx": _is_number, "log_term": _is_number},
        {"request_id": _is_number, "error": _is_number},
    ],
    "timeout_now": [{"term": _is_number}],
    "refused": [{"why": _is_text}],
}


def encode_message(message: Message) -> bytes:
    """Encode a message for a frame."""
    return bytes(msgpack.packb(message))


def decode_message(data: bytes) -> Message:
    """Decode a message that `encode_message` wrote.

    Raises:
        FrameError: it is no message of ours.
    """
    try:
        message = unpack(data, _BOUNDS)
    except UnpackError as error:
        raise FrameError(f"not a message: {error}") from error
    if type(message) is not dict:
        raise FrameError("not a message")
    kind = message.pop("type", None)
    forms = _FORMS.get(kind) if type(kind) is str else None
    if forms is None or not any(_fits(message, form) for form in forms):
        raise FrameError(f"not a message of kind {kind!r:.100}")
    entries = message.get("entries")
    if entries is not None:
        first = message["prevLogIdx"] + 1
        if entries and entries[0][1] != first:
            raise FrameError(f"entries begin at {entries[0][1]} and follow {first - 1}")
        message["entries"] = [tuple(entry) for entry in entries]
    message["type"] = kind
    return message


def _fits(message: Message, form: _Form) -> bool:
    return message.keys() == form.keys() and all(check(message[name]) for name, check in form.items())
