"""An object store that fails as object stores do: answers get lost, requests arrive twice or late, lists are stale.

    store = FaultStore(MemoryStore(), plan_at({3: Fault.LOST}))           # the third request
    store = FaultStore(MemoryStore(), plan_random(random.Random(7), 0.2))  # every fifth, more or less
    store = FaultStore(MemoryStore(), before=crash_at(5))                  # the process dies before the fifth

Requests are numbered from 1. A listing is one request, made when the iterator is asked for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from liftpy_bucket.errors import OutcomeUnknownError, PreconditionFailedError, StoreError, StoreUnavailableError
from liftpy_bucket.store.object_store import Entry, Head, ObjectStore, Stored

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Crash", "Fault", "FaultStore", "Hook", "Plan", "Request", "crash_at", "plan_at", "plan_random"]


class Fault(Enum):
    """What happens to a request. What makes no sense for a kind of request is UNAVAILABLE for it."""

    LOST = "lost"  # done, and the answer is lost
    NOT_DONE = "not done"  # a conditional write that did not happen, and nobody knows
    LATE = "late"  # a conditional write without an answer, which happens before the next request but one
    HELD = "held"  # a conditional write without an answer, which happens when `deliver_late` is called
    TWICE = "twice"  # arrives twice, and the second answer is the one that comes back
    REFUSED_AFTER = "refused after"  # done, but the answer says 412
    UNAVAILABLE = "unavailable"  # surely not done
    SLOW = "slow"  # the hook `slow` is called before it
    STALE = "stale"  # a listing without what was written last


class Request(NamedTuple):
    """A request to a store."""

    number: int
    kind: str  # as in CountingStore.counts
    key: str


class Crash(BaseException):
    """The process is gone: nothing under test may catch this."""


Plan = Callable[[Request], Fault | None]
Hook = Callable[[Request], None]

_WRITES = ("create", "replace")
_ONLY_WRITES = (Fault.NOT_DONE, Fault.LATE, Fault.HELD, Fault.REFUSED_AFTER)


def plan_at(faults: Mapping[int, Fault]) -> Plan:
    """Faults by the number of the request."""
    return lambda request: faults.get(request.number)


def plan_random(rng: random.Random, rate: float, faults: Sequence[Fault] | None = None) -> Plan:
    """A share of the requests fail, each in one of these ways; SLOW and HELD only where they are asked for."""
    choices = list(faults or [fault for fault in Fault if fault not in (Fault.SLOW, Fault.HELD)])
    return lambda _request: rng.choice(choices) if rng.random() < rate else None


def crash_at(number: int) -> Hook:
    """For `before`: a crash before a request of this number; for `after`: when it has been done."""

    def crash(request: Request) -> None:
        if request.number == number:
            raise Crash(f"before or after {request}")

    return crash


class FaultStore(ObjectStore):
    """See the module.

    Args:
        store: what is behind it.
        plan: says what happens to a request.
        before: called before every request; may raise Crash, or do what another process does in between.
        after: called when a request has been done, before its answer; likewise.
        slow: called where the plan says SLOW.

    Attributes:
        requests: all that were made, in order.
        faults: which request was met by which fault.
    """

    def __init__(
        self,
        store: ObjectStore,
        plan: Plan | None = None,
        *,
        before: Hook | None = None,
        after: Hook | None = None,
        slow: Hook | None = None,
    ) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._written: list[str] = []
        self.plan = plan
        self.before = before
        self.after = after
        self.slow = slow
        self.requests: list[Request] = []
        self.faults: list[tuple[Request, Fault]] = []

    def get(self, key: str) -> Stored:
        return self._do("get", key, lambda: self._store.get(key))

    def get_newer(self, key: str, etag: str) -> Stored | None:
        return self._do("get", key, lambda: self._store.get_newer(key, etag))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", key, lambda: self._store.get_range(key, start, length))

    def head(self, key: str) -> Head:
        return self._do("head", key, lambda: self._store.head(key))

    def create(self, key: str, body: bytes | memoryview, nonce: str) -> str:
        sent = bytes(body)  # now: it may arrive when what it was written from is gone
        return self._do("create", key, lambda: self._store.create(key, sent, nonce))

    def replace(self, key: str, body: bytes, etag: str, nonce: str) -> str:
        return self._do("replace", key, lambda: self._store.replace(key, body, etag, nonce))

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        return iter(self._do("list", prefix, lambda: list(self._store.list(prefix, start_after))))

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", keys[0] if keys else "", lambda: self._store.delete(keys))

    def deliver_late(self) -> None:
        """What is still on its way arrives now."""
        late, self._late = self._late, []
        for _, call in late:
            _ignore_refusal(call)

    def _do(self, kind: str, key: str, call: Callable[[], object]):
        with self._lock:
            request = Request(len(self.requests) + 1, kind, key)
            self.requests.append(request)
            due = [late for number, late in self._late if number < request.number]
            self._late = [(number, late) for number, late in self._late if number >= request.number]
        for late in due:
            _ignore_refusal(late)
        if self.before is not None:
            self.before(request)
        fault = self.plan(request) if self.plan is not None else None
        if fault is not None:
            self.faults.append((request, fault))
        answer = self._meet(request, fault, call)
        if self.after is not None:
            self.after(request)
        return answer

    def _meet(self, request: Request, fault: Fault | None, call: Callable[[], object]):
        if fault is Fault.SLOW and self.slow is not None:
            self.slow(request)
        is_write = request.kind in _WRITES
        if fault is Fault.UNAVAILABLE or (fault in _ONLY_WRITES and not is_write):
            raise StoreUnavailableError(f"told to fail: {request}")
        unknown = OutcomeUnknownError if is_write else StoreUnavailableError
        if fault is Fault.LATE:
            self._late.append((request.number + 1, call))
        if fault is Fault.HELD:
            self._late.append((sys.maxsize, call))
        if fault in (Fault.LATE, Fault.HELD, Fault.NOT_DONE):
            raise unknown(f"told to fail, not done yet: {request}")
        answer = self._call(request, call)
        if fault is Fault.TWICE:
            return self._call(request, call)
        if fault is Fault.REFUSED_AFTER:
            raise PreconditionFailedError(f"told to refuse what was done: {request}")
        if fault is Fault.LOST:
            if self.after is not None:
                self.after(request)
            raise unknown(f"told to fail after it was done: {request}")
        if fault is Fault.STALE and request.kind == "list":
            return [entry for entry in answer if entry.key not in self._written[-1:]]
        return answer

    def _call(self, request: Request, call: Callable[[], object]):
        answer = call()
        if request.kind == "create":
            with self._lock:
                self._written.append(request.key)
        return answer


def _ignore_refusal(call: Callable[[], object]) -> None:
    try:
        call()
    except StoreError:
        return  # it came too late to be of any effect
