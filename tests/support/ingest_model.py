"""What a partition must do with any messages, said as simply as possible, to compare the real one with.

Offsets are places in a list, ids are keys of a dictionary, and nothing is quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from liftpy_envelope.errors import AckErrorCode
from support.envelopes import CHANCE, MALFORMED, PRODUCER, batch, envelope
from support.nats_frames import Frame, header_block, msg

MESSAGE_BYTES_MAX = 200


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A message, and everything that its publisher wishes."""

    form: str
    values: tuple[bytes | None, ...]
    reply: bytes = b""
    key: bytes | None = None
    message_id: bytes | None = None
    sequence: int | None = None
    expected: int | None = None
    policy: str | None = None
    inbox: str | None = None
    correlation: str | None = None
    unsupported: bool = False
    malformed: bool = False

    def frame(self) -> Frame:
        """As the server sends it."""
        if self.form == "headers":
            return msg(b"orders.a", self.values[0] or b"", reply=self.reply, headers=self._headers())
        options = {
            "ack_inbox": self.inbox,
            "ack_policy": self.policy and _Policy(self.policy),
            "correlation_id": self.correlation,
            "expected_offset": self.expected,
        }
        if self.form == "envelope":
            value = envelope(self.values[0], key=self.key, msg_id=self.message_id, **options)
        elif self.form == "batch":
            if self.sequence is not None:
                options |= {"producer_id": PRODUCER, "producer_sequence": self.sequence}
            value = batch(list(self.values), **options)
        else:
            value = self.values[0] or b""
        return msg(b"orders.a", value, reply=self.reply)

    def _headers(self) -> bytes:
        lines = {
            "Nats-Msg-Id": self.message_id and self.message_id.decode(),
            "Lift-Key": self.key and self.key.decode(),
            "Lift-Expected-Offset": None if self.expected is None else str(self.expected),
            "Lift-Ack": "perhaps" if self.malformed else self.policy,
            "Lift-Correlation-Id": self.correlation,
            "Nats-Rollup": "all" if self.unsupported else None,
        }
        return header_block(**{name: text for name, text in lines.items() if text is not None})


class _Policy(str):
    """A policy as `encode_batch` takes it."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


class Answer(NamedTuple):
    """One ack or refusal."""

    destination: bytes
    offset: int | None
    count: int
    duplicate: bool
    correlation: str | None
    error: int | None


@dataclass
class Model:
    """See the module."""

    acks: str
    policy: str
    log: list[tuple[bytes | None, bytes | None, bytes | None]] = field(default_factory=list)
    ids: dict[Any, tuple[int, int]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    stored: int = 0
    gaps: int = 0
    lookalikes: int = 0

    def take(self, spec: Spec) -> None:
        """One message after the others."""
        destination = self._destination(spec)
        code = self._refusal(spec, destination)
        identity = (PRODUCER, spec.sequence) if spec.sequence is not None else spec.message_id
        if code is None and identity in self.ids:
            self._answer(destination, spec, *self.ids[identity], duplicate=True)
            return
        if code is None and spec.expected not in {None, len(self.log)}:
            code = AckErrorCode.WRONG_EXPECTED_OFFSET
        if code is not None:
            self._refuse(destination, spec, code)
            return
        self.log += [(spec.key, value, spec.message_id) for value in spec.values]
        self.stored += 1
        self.lookalikes += spec.form == "chance"
        if identity is not None:
            self.ids[identity] = len(self.log) - 1, len(spec.values)
        self._answer(destination, spec, len(self.log) - 1, len(spec.values), duplicate=False)

    def _destination(self, spec: Spec) -> bytes:
        if self.acks == "off" or (not spec.malformed and (spec.policy or self.policy) == "none"):
            return b""
        if spec.inbox is not None and not spec.malformed:
            return spec.inbox.encode()
        return spec.reply if self.acks == "reply" else b""

    def _refusal(self, spec: Spec, destination: bytes) -> AckErrorCode | None:
        if spec.malformed:
            return AckErrorCode.MALFORMED
        headers = spec._headers() if spec.form == "headers" else b""
        if sum(len(value or b"") for value in spec.values) + len(headers) > MESSAGE_BYTES_MAX:
            return AckErrorCode.TOO_LARGE
        if spec.unsupported and (destination or spec.reply):
            return AckErrorCode.UNSUPPORTED
        return None

    def _answer(self, destination: bytes, spec: Spec, offset: int, count: int, *, duplicate: bool) -> None:
        if destination:
            self.answers.append(Answer(destination, offset, count, duplicate, spec.correlation, None))

    def _refuse(self, destination: bytes, spec: Spec, code: AckErrorCode) -> None:
        correlation = None if spec.malformed else spec.correlation
        if destination:
            self.answers.append(Answer(destination, None, 0, False, correlation, int(code)))
        else:
            self.gaps += 1


def answer_of(destination: bytes, ack: dict[str, Any]) -> Answer:
    """An ack as it was sent."""
    error = ack.get("error")
    code = None if error is None else error["err_code"]
    return Answer(
        destination,
        ack.get("offset"),
        ack.get("count", 0),
        ack.get("duplicate", False),
        ack.get("correlation_id"),
        code,
    )


_short = st.sampled_from([b"", b"v", b"value", bytes(MESSAGE_BYTES_MAX)])
_values = st.one_of(_short, _short, _short, st.just(bytes(MESSAGE_BYTES_MAX + 1)))
_replies = st.sampled_from([b"", b"r1", b"r2"])
_maybe = lambda *choices: st.sampled_from([None, None, *choices])
_wishes = {
    "expected": _maybe(0, 1, 2, 3, 4, 5),
    "policy": _maybe("leader", "all", "none"),
    "correlation": _maybe("c1", "c2"),
    "reply": _replies,
}
_ids = {"message_id": _maybe(b"m1", b"m2", b"m3"), "key": _maybe(b"k")}

plain = st.builds(Spec, form=st.just("plain"), values=st.tuples(_values), reply=_replies)
with_id = st.builds(
    Spec,
    form=st.just("headers"),
    values=st.tuples(_values),
    reply=_replies,
    message_id=st.sampled_from([b"m1", b"m4", b"m5"]),
)
with_headers = st.builds(
    Spec,
    form=st.just("headers"),
    values=st.tuples(_values),
    unsupported=st.booleans(),
    malformed=st.booleans(),
    **_wishes,
    **_ids,
)
in_envelope = st.builds(
    Spec,
    form=st.just("envelope"),
    values=st.tuples(st.one_of(st.none(), _values)),
    inbox=_maybe("i1"),
    **_wishes,
    **_ids,
)
in_batch = st.builds(
    Spec,
    form=st.just("batch"),
    values=st.lists(st.sampled_from([None, b"", b"v", b"w", bytes(MESSAGE_BYTES_MAX + 1)]), min_size=1, max_size=4).map(
        tuple
    ),
    inbox=_maybe("i1"),
    sequence=_maybe(0, 1, 2),
    **_wishes,
)
by_chance = st.builds(
    Spec, form=st.just("chance"), values=st.tuples(st.sampled_from(list(CHANCE.values()))), reply=_replies
)
malformed = st.builds(
    Spec,
    form=st.just("raw"),
    values=st.tuples(st.sampled_from(list(MALFORMED.values()))),
    reply=_replies,
    malformed=st.just(True),
)
specs = st.one_of(plain, with_id, with_headers, in_envelope, in_batch, by_chance, malformed)
passes = st.lists(st.lists(specs, min_size=1, max_size=8), min_size=1, max_size=5)
