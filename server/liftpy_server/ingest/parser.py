r"""The NATS client protocol, as far as messages are concerned; everything else is handed back.

    MSG <subject> <sid> [reply] <size>\r\n<payload>\r\n
    HMSG <subject> <sid> [reply] <header size> <total size>\r\n<headers><payload>\r\n

A pure state machine: bytes in, runs of messages by subscription out, at whatever positions the stream is split. Lines
that are no messages (INFO, PING, PONG, -ERR, +OK, and whatever else) come back in order, for the connection to act on;
so does anything that can not be understood, which ends the connection. It never raises.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from liftpy_server.ingest.uniform import parse_uniform
from liftpy_server.ingest.vector import VectorResult, parse_block
from liftpy_server.messages.runs import ListRun, Row, Run

__all__ = ["MessageParser", "Parsed"]

_CONTROL_LINE_BYTES_MAX: Final = 1024 * 1024
_SID_DIGITS_MAX: Final = 18
_MESSAGE_BYTES_MAX: Final = 128 * 1024 * 1024  # nats-server itself takes 64 MiB at most
_VECTOR_BYTES_MIN: Final = 4_096
_VECTOR_FRAMES_MIN: Final = 64  # below this the fixed cost of some fifty array operations is more than a loop's
_VECTOR_FRAME_BYTES_MAX: Final = 640  # above this looking at every byte costs more than skipping the payload


class Parsed(NamedTuple):
    """What a chunk held: runs of messages by subscription id, in order for each, and the other lines."""

    runs: list[tuple[int, Run]]
    control: bytes


class MessageParser:
    """Finds the messages of each subscription in a chunk."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the half of a message that a lost connection left behind."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._needed = 0

    @property
    def unfinished_bytes(self) -> int:
        """Size of the message of which a part has come; 0 when there is none, or it is not known yet."""
        return self._needed if self._pending else 0

    def feed(self, data: bytes) -> Parsed:
        """Take the next chunk from the server."""
        if self._pending:
            self._pending.append(data)
            self._pending_bytes += len(data)
            if self._pending_bytes < self._needed:
                return Parsed([], b"")
            data = b"".join(self._pending)
            self._pending = []
        single = _parse_single(data)
        if single is not None:
            return single
        runs: list[tuple[int, Run]] = []
        control: list[bytes] = []
        self._needed = 0
        position = self._parse(data, runs, control)
        if position < len(data):
            self._pending = [data[position:]]
            self._pending_bytes = len(data) - position
        return Parsed(runs, b"".join(control) if control else b"")

    def _parse(self, data: bytes, runs: list[tuple[int, Run]], control: list[bytes]) -> int:  # noqa: C901, PLR0915
        """Parse whole frames; returns the position after the last of them. One loop, no call per message."""
        find = data.find
        end = len(data)
        position = 0
        header_bytes = 0
        rows_of: dict[bytes, list[Row]] = {}
        try_blocks = end >= _VECTOR_BYTES_MIN
        while position < end:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                if end - position > _CONTROL_LINE_BYTES_MAX:
                    control.append(data[position:])
                    position = end
                break
            body = line_end + 2
            fields = data[position:line_end].split(b" ")
            verb = fields[0]
            has_headers = verb == b"HMSG"
            reply_at = len(fields) - (5 if has_headers else 4)
            try:
                is_message = 0 <= reply_at <= 1 and (has_headers or verb == b"MSG")
                size = int(fields[-1]) if is_message else -1
                header_bytes = int(fields[-2]) if is_message and has_headers else 0
            except ValueError:
                size = -1
            if not 0 <= header_bytes <= size <= _MESSAGE_BYTES_MAX:
                control.append(data[position:body])
                position = body
                continue
            frame_end = body + size + 2
            if frame_end > end:
                self._needed = frame_end - position
                break
            if try_blocks and not has_headers and _is_sid(fields[2]):
                result = parse_uniform(data, position, fields, size) or _parse_block(data, position, frame_end)
                try_blocks = result is not None and result.frames >= _VECTOR_FRAMES_MIN
                if result is not None:
                    _close(rows_of, runs)
                    runs += result.runs
                    position = result.end
                    continue
            value_at = body + header_bytes
            headers = data[body:value_at] if has_headers else None
            row = (fields[1], fields[3] if reply_at else b"", headers, data[value_at : frame_end - 2])
            rows = rows_of.get(fields[2])
            if rows is not None:
                rows.append(row)
            elif _is_sid(fields[2]):
                rows_of[fields[2]] = [row]
            else:
                control.append(data[position:frame_end])
            position = frame_end
        _close(rows_of, runs)
        return position


def _parse_single(data: bytes) -> Parsed | None:
    """The one `MSG` frame that a chunk consists of; None when it is something else. Latency is made of this case."""
    line_end = data.find(b"\r\n")
    fields = data[:line_end].split(b" ")
    count = len(fields)
    if line_end < 0 or fields[0] != b"MSG" or not 4 <= count <= 5 or not _is_sid(fields[2]):
        return None
    try:
        size = int(fields[-1])
    except ValueError:
        return None
    if size < 0 or line_end + size + 4 != len(data):
        return None
    reply = fields[3] if count == 5 else b""
    return Parsed([(int(fields[2]), ListRun([(fields[1], reply, None, data[line_end + 2 : -2])]))], b"")


def _parse_block(data: bytes, position: int, frame_end: int) -> VectorResult | None:
    frame_bytes = frame_end - position
    small = frame_bytes <= _VECTOR_FRAME_BYTES_MAX and len(data) - position >= frame_bytes * _VECTOR_FRAMES_MIN
    return parse_block(data, position) if small and data.startswith(b"MSG ", position) else None


def _close(rows_of: dict[bytes, list[Row]], runs: list[tuple[int, Run]]) -> None:
    runs += [(int(sid), ListRun(rows)) for sid, rows in rows_of.items()]
    rows_of.clear()


def _is_sid(field: bytes) -> bool:
    return field.isdigit() and len(field) <= _SID_DIGITS_MAX
