"""How nodes prove to each other over NATS that they know the cluster's secret. Pure.

Whoever may publish on a NATS account can send to `LIFT.NODE.`, and whoever may subscribe there can read along. So every
request and every answer carries a proof: an HMAC under a key that is derived from the secret, over everything that is
said. A proof is worth nothing for another subject, reply subject or body, at another node, or at another start of the
same node, whose token it covers; and a node takes each request once. No clock is involved.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

import msgpack

from liftpy_envelope.errors import LiftError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROOF_HEADER", "SENDER_HEADER", "NodeKey", "NotProvenError", "Replays"]

SENDER_HEADER: Final = "Liftpy-Node"
"""Who asks, in which run of its process, for the how manieth time: three words."""
PROOF_HEADER: Final = "Liftpy-Proof"

_SALT: Final = b"liftpy"
_LABEL: Final = b"requests between nodes over NATS, 1"
_WINDOW: Final = 1_024
_RUNS_MAX: Final = 1_024
_COUNT_DIGITS_MAX: Final = 19


class NotProvenError(LiftError):
    """What claims to come from a node of the cluster does not prove it.

    Attributes:
        kind: One of few kinds, for the log.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class NodeKey:
    """The key of the proofs, by HKDF (RFC 5869) from the cluster's secret.

    Args:
        secret: Secret of the cluster, as in `cluster.key_file`.
    """

    def __init__(self, secret: bytes) -> None:
        extracted = hmac.digest(_SALT, secret, hashlib.sha256)
        self._key = hmac.digest(extracted, _LABEL + b"\x01", hashlib.sha256)

    def proof(self, *said: str | bytes) -> str:
        """The proof of what is said, in this order; the first says what it is."""
        return hmac.digest(self._key, msgpack.packb(said), hashlib.sha256).hex()

    @staticmethod
    def is_same(given: str, expected: str) -> bool:
        """Whether two proofs are the same, in a time that does not tell where they differ."""
        return hmac.compare_digest(given.encode(errors="replace"), expected.encode())

    def proof_of_request(self, sender: str, to: str, token: str, endpoint: str, reply: str, body: bytes) -> str:
        """The proof of a request.

        Args:
            sender: Sender, as in `SENDER_HEADER`.
            to: The node that is asked.
            token: Token of its run, which the metadata tell.
            endpoint: What is asked for.
            reply: Subject for the answer.
            body: Body of the request.
        """
        return self.proof("request", sender, to, token, endpoint, reply, body)

    def check_answer(self, request_proof: str, headers: Mapping[str, str] | None, body: bytes) -> None:
        """Check that an answer is from the node that was asked.

        Raises:
            NotProvenError: it is somebody else's.
        """
        expected = self.proof("answer", request_proof, body)
        if not self.is_same((headers or {}).get(PROOF_HEADER, ""), expected):
            raise NotProvenError("answer", "an answer that does not prove the cluster's key")

    def headers_of_answer(self, request_proof: str, body: bytes) -> dict[str, str]:
        """What makes an answer one of this node."""
        return {PROOF_HEADER: self.proof("answer", request_proof, body)}


class Replays:
    """Takes each request of a run once. Only what was proven is noted, so strangers can not fill it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # by sender and run: the greatest count, and a bit for each below

    def check(self, sender: str) -> None:
        """Check that a request is new, and note it.

        Args:
            sender: Sender, as in `SENDER_HEADER`.

        Raises:
            NotProvenError: it was taken before, or is so old that nobody knows.
        """
        run, _, text = sender.rpartition(" ")
        if not run or not text.isdecimal() or len(text) > _COUNT_DIGITS_MAX:
            raise NotProvenError("sender", f"{SENDER_HEADER} is not of the form: node run count")
        count = int(text)
        greatest, bits = self._seen.get(run, (-1, 0))
        age = greatest - count
        if age >= _WINDOW or (age >= 0 and bits >> age & 1):
            raise NotProvenError("replay", "a request that was taken before: somebody repeats what a node has said")
        if age < 0:
            bits = (bits << -age | 1) & ((1 << _WINDOW) - 1) if -age < _WINDOW else 1
            greatest = count
        else:
            bits |= 1 << age
        self._seen.pop(run, None)  # those that asked last are the last to be forgotten
        self._seen[run] = greatest, bits
        if len(self._seen) > _RUNS_MAX:
            del self._seen[next(iter(self._seen))]
