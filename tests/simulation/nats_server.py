"""A model of nats-server, at the level of its bytes: the client protocol, what is pending for each client, and routes.

It says what nats-server 2.15 says, in the same order (`tests/integration/test_nats_model.py` holds both against each
other); what is slow in the one is slow in the other:

- What is sent to a client is pending until the kernel takes it, so a PONG stands behind the messages before it. Who
  does not read in time is a slow consumer: its connection is closed, and what was pending is dropped without a word.
- Interest travels over routes, and so do messages; both need time. When a route is cut, either end notices after a
  while; what was on its way is lost, and clients are told that the addresses behind it are gone.
- One member of a queue group gets a message, one that is near before one that is far.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.scheduler import MS, S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from simulation.nats_wire import Socket, Wires
    from simulation.scheduler import Scheduler

__all__ = ["NatsServer", "NatsServers", "NatsSettings", "go_quoted", "matches"]

_SUB = re.compile(rb"SUB[ \t]+(\S+)[ \t]+(?:(\S+)[ \t]+)?(\S+)[ \t]*", re.IGNORECASE)
_UNSUB = re.compile(rb"UNSUB[ \t]+(\S+)(?:[ \t]+(\d+))?[ \t]*", re.IGNORECASE)
_PUB = re.compile(rb"PUB[ \t]+(\S+)[ \t]+(?:(\S+)[ \t]+)?(\d+)[ \t]*", re.IGNORECASE)
_HPUB = re.compile(rb"HPUB[ \t]+(\S+)[ \t]+(?:(\S+)[ \t]+)?(\d+)[ \t]+(\d+)[ \t]*", re.IGNORECASE)
_FLUSH_US = 30 * MS  # more than what is on its way to another server takes
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def go_quoted(text: bytes) -> str:
    """As Go's `%q` writes it."""
    parts = []
    for char in text.decode(errors="surrogateescape"):
        code = ord(char)
        if char in '"\\':
            parts.append("\\" + char)
        elif 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")  # a byte that is no UTF-8
        elif char.isprintable():
            parts.append(char)
        elif char in _ESCAPES:
            parts.append(_ESCAPES[char])
        elif code < 0x20 or code == 0x7F:
            parts.append(f"\\x{code:02x}")
        else:
            parts.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(parts) + '"'


def matches(pattern: bytes, subject: bytes) -> bool:
    """Whether a subscription gets a subject."""
    wanted, found = pattern.split(b"."), subject.split(b".")
    for place, token in enumerate(wanted):
        if token == b">":
            return len(found) > place
        if place >= len(found) or token not in {b"*", found[place]}:
            return False
    return len(wanted) == len(found)


def _is_subject(subject: bytes) -> bool:
    tokens = subject.split(b".")
    return all(tokens) and b">" not in tokens[:-1]


class NatsSettings(NamedTuple):
    """Of a server."""

    version: str = "2.15.1"
    max_pending: int = 64 * 1024 * 1024
    write_deadline_us: int = 10 * S
    ping_interval_us: int = 120 * S
    pings_max: int = 2
    max_payload: int = 1024 * 1024
    lame_duck_us: int = 10 * S
    route_stale_us: int = 3 * S  # at most, until an end of a route that was cut notices
    denied: tuple[bytes, ...] = ()  # subjects that nobody may subscribe to


class Message(NamedTuple):
    """As it was published."""

    subject: bytes
    reply: bytes
    headers: bytes  # with their end, empty when there are none
    payload: bytes


class Sub:
    """A subscription of a client."""

    def __init__(self, client: Client, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.client = client
        self.subject, self.queue, self.sid = subject, queue, sid
        self.delivered = 0
        self.most = 0


class Client:
    """A connection, as its server has it.

    Attributes:
        pending_bytes: of what the kernel did not take yet.
    """

    def __init__(self, server: NatsServer, number: int, socket: Socket) -> None:
        self.server, self.number, self.socket = server, number, socket
        self.options: dict[str, Any] = {}
        self.subs: dict[bytes, Sub] = {}
        self.is_connected = False
        self.is_closed = False
        self.pending_bytes = 0
        self.pings_out = 0
        self._has_ponged = False
        self._heard_us = 0
        self._buffer = b""
        self._pending: list[bytes] = []
        self._writing = 0  # bytes of the write that the kernel has not taken whole
        self._writes = 0
        socket.on_data, socket.on_end, socket.on_room = self._feed, self.close, self.flush

    # -- what it sends

    def _feed(self, data: bytes) -> None:
        self._buffer += data
        self._heard_us = self.server.now_us
        while not self.is_closed:
            line, found, rest = self._buffer.partition(b"\r\n")
            if not found:
                break
            size = self._size_of(line)
            if self._is_too_large(size - 2) or len(rest) < size:
                break
            self._buffer = rest[size:]
            self._take(line, rest[: max(0, size - 2)])
        self.server.flush()

    @staticmethod
    def _size_of(line: bytes) -> int:
        """Of what belongs to a line, with its end."""
        found = _PUB.fullmatch(line) or _HPUB.fullmatch(line)
        return 0 if found is None else int(found[found.re.groups]) + 2

    def _is_too_large(self, size: int) -> bool:
        if size <= self.server.settings.max_payload:
            return False
        self.error("Maximum Payload Violation")
        self.close()
        return True

    def _take(self, line: bytes, body: bytes) -> None:
        verb = line.split(None, 1)[0].upper() if line.strip() else b""
        if verb == b"CONNECT":
            self.options = json.loads(line.split(None, 1)[1])
            self.is_connected = True
            self._ok()
        elif verb == b"PING":
            self._ping()
        elif verb == b"PONG":
            self.pings_out = 0
        elif found := _PUB.fullmatch(line):
            self._ok()
            self._publish(Message(found[1], found[2] or b"", b"", body))
        elif found := _HPUB.fullmatch(line):
            self._ok()
            head = int(found[3])
            self._publish(Message(found[1], found[2] or b"", body[:head], body[head:]))
        elif found := _SUB.fullmatch(line):
            self._subscribe(found[1], found[2] or b"", found[3])
        elif found := _UNSUB.fullmatch(line):
            self._unsubscribe(found[1], int(found[2] or 0))
        else:
            self.error("Unknown Protocol Operation")
            self.close()

    def _ok(self) -> None:
        if self.options.get("verbose", True):
            self.enqueue(b"+OK\r\n")

    def _ping(self) -> None:
        self.enqueue(b"PONG\r\n")
        if self.is_connected and not self._has_ponged:
            self._has_ponged = True
            if self.knows_infos and self.server.is_of_2_12:
                self.enqueue(self.server.info(self, is_answer=True))

    def _publish(self, message: Message) -> None:
        if not self.server.publish(message, self) and message.reply and self.options.get("no_responders"):
            named = b"Nats-Subject: %b\r\n" % message.subject if self.server.is_of_2_12 else b""
            block = b"NATS/1.0 503\r\n%b\r\n" % named
            self.server.publish(Message(message.reply, b"", block, b""), None)

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        text = "Permissions Violation for Subscription to " + go_quoted(subject)
        if subject in self.server.settings.denied:
            self.error(text + (f" using queue {go_quoted(queue)}" if queue else ""))
            return
        if not _is_subject(subject):
            self.error("Invalid Subject")
            return
        self._ok()
        if sid not in self.subs:
            self.subs[sid] = Sub(self, subject, queue, sid)
            self.server.interest_changed(subject, queue, 1)

    def _unsubscribe(self, sid: bytes, most: int) -> None:
        self._ok()
        sub = self.subs.get(sid)
        if sub is None:
            return
        if most > sub.delivered:
            sub.most = most
        else:
            self.drop(sub)

    def drop(self, sub: Sub) -> None:
        """A subscription is over."""
        if self.subs.pop(sub.sid, None) is not None:
            self.server.interest_changed(sub.subject, sub.queue, -1)

    @property
    def knows_infos(self) -> bool:
        """Whether it is told of changes."""
        return int(self.options.get("protocol", 0)) >= 1

    @property
    def wants_infos(self) -> bool:
        return self.knows_infos and self._has_ponged

    # -- what it is sent

    def deliver(self, sub: Sub, message: Message) -> None:
        reply = message.reply + b" " if message.reply else b""
        headers = message.headers if self.options.get("headers") else b""
        if headers:
            sizes = len(headers), len(headers) + len(message.payload)
            head = b"HMSG %b %b %b%d %d\r\n" % (message.subject, sub.sid, reply, *sizes)
        else:
            head = b"MSG %b %b %b%d\r\n" % (message.subject, sub.sid, reply, len(message.payload))
        sub.delivered += 1
        self.enqueue(b"%b%b%b\r\n" % (head, headers, message.payload))
        if sub.most and sub.delivered >= sub.most:
            self.drop(sub)

    def error(self, text: str) -> None:
        self.enqueue(b"-ERR '%b'\r\n" % text.encode())

    def enqueue(self, data: bytes) -> None:
        if self.is_closed:
            return
        self.pending_bytes += len(data)
        if self.pending_bytes > self.server.settings.max_pending:
            self.slow("max_pending")
            return
        self._pending.append(data)
        self.server.to_flush[self] = None

    def slow(self, why: str) -> None:
        """What was pending is dropped; there is no word of it."""
        self.server.servers.slow_consumers.append(why)
        self._pending.clear()
        self.close()

    def flush(self) -> None:
        """Give the kernel what is pending."""
        if self.is_closed or not self._pending:
            return
        data = b"".join(self._pending)
        taken = self.socket.send(data)
        self.pending_bytes = len(data) - taken
        self._pending = [data[taken:]] if taken < len(data) else []
        self._writing -= taken
        if self._writing <= 0:  # what came while that one was under way is the next
            self._writing = self.pending_bytes
            self._writes += 1
            if self._pending:
                self.server.later(self.server.settings.write_deadline_us, self._deadline, self._writes)

    def _deadline(self, write: int) -> None:
        if write == self._writes and not self.is_closed:
            self.slow("write_deadline")

    def look(self) -> None:
        """From time to time: whether it is still there."""
        if self.is_closed:
            return
        settings = self.server.settings
        if self.server.now_us - self._heard_us >= settings.ping_interval_us:
            if self.pings_out >= settings.pings_max:
                self.error("Stale Connection")
                self.close()
                return
            self.pings_out += 1
            self.enqueue(b"PING\r\n")
            self.flush()
        self.server.later(settings.ping_interval_us, self.look)

    def close(self) -> None:
        """Send what the kernel takes, and end."""
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        self.socket.close()
        for sub in list(self.subs.values()):
            self.drop(sub)
        self.server.clients.pop(self.number, None)


class Route:
    """Between two servers: two ways, each in order. Each end closes it when it knows that the other is gone."""

    def __init__(self, servers: NatsServers, one: NatsServer, other: NatsServer) -> None:
        self.names = frozenset((one.name, other.name))
        self._servers = servers
        self._runs = {one.name: one.run, other.name: other.run}
        self._ends = {one.name: other, other.name: one}
        self._due_us: dict[str, int] = {}
        self._held: list[tuple[NatsServer, str, tuple[Any, ...]]] = []

    @property
    def is_dead(self) -> bool:
        """Whether one of the processes is not there any more."""
        return any(end.run != self._runs[end.name] for end in self._ends.values())

    def far(self, near: NatsServer) -> NatsServer:
        return self._ends[near.name]

    def send(self, near: NatsServer, what: str, *args: Any) -> None:
        """`Route.what` is called at the other end."""
        scheduler, far = self._servers.scheduler, self.far(near)
        needs_us = self._servers.wires.latency_us() + self._servers.lag_us
        due_us = max(self._due_us.get(far.name, 0), scheduler.now_us + needs_us)
        self._due_us[far.name] = due_us
        scheduler.after(due_us - scheduler.now_us, self._arrive, far, what, args)

    def _arrive(self, far: NatsServer, what: str, args: tuple[Any, ...]) -> None:
        if self.names in self._servers.cut or self._held:
            self._held.append((far, what, args))
        else:
            far.enter(self._runs[far.name], far.routed, self, what, *args)

    def heal(self) -> None:
        """What was on its way arrives after all, where nobody gave up."""
        held, self._held = self._held, []
        for each in held:
            self._arrive(*each)

    def gone(self, dead: NatsServer) -> None:
        """The process at one end is dead; its kernel says so."""
        self.send(dead, "closed")


class NatsServer:
    """See the module; one process of it.

    Attributes:
        run: how often it was started.
        woke_us: when it went on last, after it had stood still.
    """

    def __init__(self, servers: NatsServers, name: str, settings: NatsSettings) -> None:
        self.servers, self.name, self.settings = servers, name, settings
        self.is_up = self.is_paused = self.is_lame = False
        self.run = 0
        self.woke_us = -1 * S
        self.clients: dict[int, Client] = {}
        self.backlog: list[Socket] = []  # that the kernel has taken, and the process has not
        self.to_flush: dict[Client, None] = {}
        self.routes: dict[str, Route] = {}
        self._local: dict[tuple[bytes, bytes], int] = {}
        self._remote: dict[str, dict[tuple[bytes, bytes], int]] = {}
        self._unnamed: set[str] = set()  # servers that are about to end
        self._numbers = 0
        self._inbox: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def url(self) -> str:
        return f"{self.name}:4222"

    @property
    def now_us(self) -> int:
        return self.servers.scheduler.now_us

    # -- the process

    def start(self) -> None:
        assert not self.is_up
        self.is_up, self.is_paused, self.is_lame = True, False, False
        self.run += 1

    def kill(self) -> None:
        """Its kernel closes what it had open; what was not sent yet is lost."""
        self.is_up = self.is_paused = False
        self.run += 1
        self._inbox.clear()
        for client in self.clients.values():
            client.is_closed = True
            client.socket.close(is_reset=self.servers.rng.random() < 0.5)
        for socket in self.backlog:
            socket.close(is_reset=True)
        for route in self.routes.values():
            route.gone(self)
        for part in (self.clients, self.backlog, self.routes, self._local, self._remote, self._unnamed, self.to_flush):
            part.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.woke_us = self.now_us
        inbox, self._inbox = self._inbox, []
        for run, act, args in inbox:
            self.enter(run, act, *args)

    def deny(self, subjects: tuple[bytes, ...]) -> None:
        """Its configuration changed: nobody may subscribe to these, nor stay subscribed."""
        self.settings = self.settings._replace(denied=subjects)
        for client in list(self.clients.values()):
            for sub in [sub for sub in client.subs.values() if sub.subject in subjects]:
                sid = go_quoted(sub.sid)
                client.error(f"Permissions Violation for Subscription to {go_quoted(sub.subject)} (sid {sid})")
                client.drop(sub)
        self.flush()

    def lame_duck(self) -> None:
        """It tells its clients to go elsewhere, and ends after a while; the other servers do not name it any more."""
        self.is_lame = True
        for route in self.routes.values():
            route.send(self, "lame")
        self.tell_clients(is_lame=True)
        self.later(self.settings.lame_duck_us, self.retire)

    def retire(self) -> None:
        """It closes its clients, has what they sent on its way to the other servers, and ends."""
        for client in self.clients.values():
            client.is_closed = True
            client.socket.close(is_reset=False)
        self.clients.clear()
        self.later(_FLUSH_US + self.servers.lag_us, self.servers.kill, self.name)

    def enter(self, run: int, act: Callable[..., None], *args: Any) -> None:
        if run != self.run or not self.is_up:
            return
        if self.is_paused:
            self._inbox.append((run, act, args))
        else:
            act(*args)

    def later(self, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        self.servers.scheduler.after(delay_us, self.enter, self.run, act, *args)

    # -- clients

    def accept(self, socket: Socket) -> None:
        """Somebody connected."""
        self.backlog.remove(socket)
        self._numbers += 1
        client = self.clients[self._numbers] = Client(self, self._numbers, socket)
        client.enqueue(self.info(client))
        client.flush()
        self.later(min(2 * S, self.settings.ping_interval_us), client.look)

    @property
    def _urls(self) -> list[str]:
        own = [] if self.is_lame else [self.url]
        return own + [self.servers.all[name].url for name in self.routes if name not in self._unnamed]

    @property
    def is_of_2_12(self) -> bool:
        """Since then servers say how they are once more to those who connect, and name subjects that nobody answers."""
        return tuple(map(int, self.settings.version.split(".")[:2])) >= (2, 12)

    def info(self, client: Client, *, is_answer: bool = False, is_lame: bool = False) -> bytes:
        """How it is, for a client."""
        urls = self._urls
        info: dict[str, Any] = {
            "server_id": f"N{self.name.upper()}{self.run}",
            "server_name": self.name,
            "version": self.settings.version,
            "proto": 1,
            "host": self.name,
            "port": 4222,
            "headers": True,
            "max_payload": self.settings.max_payload,
            "client_id": client.number,
            "client_ip": client.socket.far,
        }
        if len(self.servers.all) > 1:
            info |= {"cluster": "C"} | ({"connect_urls": urls} if urls else {})
        if is_lame:
            info["ldm"] = True
        if is_answer:
            info |= {"remote_account": "$G", "connect_info": True}
        return b"INFO %b\r\n" % json.dumps(info, separators=(",", ":")).encode()

    def tell_clients(self, *, is_lame: bool = False) -> None:
        """Those that want to be told of changes."""
        for client in list(self.clients.values()):
            if client.wants_infos:
                client.enqueue(self.info(client, is_lame=is_lame))
        self.flush()

    def flush(self) -> None:
        while self.to_flush:
            clients, self.to_flush = list(self.to_flush), {}
            for client in clients:
                client.flush()

    # -- messages

    def _subs(self) -> Iterator[Sub]:
        for client in self.clients.values():
            yield from client.subs.values()

    def publish(self, message: Message, origin: Client | None) -> bool:
        """Returns whether anybody is known to want it."""
        if origin is not None:
            self.servers.on_published(self, message)
        far: dict[str, set[bytes]] = {}
        groups: dict[bytes, list[str]] = {}
        for name, interest in self._remote.items():
            for subject, queue in interest:
                if not matches(subject, message.subject):
                    continue
                if queue:
                    groups.setdefault(queue, []).append(name)
                else:
                    far.setdefault(name, set())
        near = self._deliver(message, origin, None)
        for queue, names in sorted(groups.items()):
            if queue not in near:
                far.setdefault(self.servers.rng.choice(sorted(set(names))), set()).add(queue)
        for name, queues in far.items():
            if name in self.routes:
                self.routes[name].send(self, "message", message, queues)
        return bool(near or far)

    def _deliver(self, message: Message, origin: Client | None, queues: set[bytes] | None) -> set[bytes]:
        """To clients here; to one of each queue group, if it is one of these. Returns the groups, b"" for none."""
        found: set[bytes] = set()
        groups: dict[bytes, list[Sub]] = {}
        for sub in list(self._subs()):
            is_echo = sub.client is origin and not origin.options.get("echo", True)
            if is_echo or not matches(sub.subject, message.subject):
                continue
            if not sub.queue:
                found.add(b"")
                sub.client.deliver(sub, message)
            elif queues is None or sub.queue in queues:
                groups.setdefault(sub.queue, []).append(sub)
        for queue, subs in sorted(groups.items()):
            found.add(queue)
            sub = self.servers.rng.choice(subs)
            sub.client.deliver(sub, message)
        return found

    def is_heard_by(self, name: str, subject: bytes) -> bool:
        """Whether a client of that name is subscribed to a subject here."""
        return any(sub.client.socket.far == name and matches(sub.subject, subject) for sub in self._subs())

    def sends_to(self, name: str, subject: bytes) -> bool:
        """Whether this server knows that there is interest at another."""
        return any(matches(pattern, subject) for pattern, _ in self._remote.get(name, ()))

    # -- routes

    def interest_changed(self, subject: bytes, queue: bytes, by: int) -> None:
        """Of a client here."""
        key = subject, queue
        count = self._local.get(key, 0) + by
        if count:
            self._local[key] = count
        else:
            self._local.pop(key, None)
        if count == max(by, 0):  # the first, or the last
            for route in self.routes.values():
                route.send(self, "interest", key, count)

    def route_up(self, route: Route) -> None:
        """There is a route."""
        urls = self._urls
        far = route.far(self)
        self.routes[far.name], self._remote[far.name] = route, {}
        if far.is_lame:
            self._unnamed.add(far.name)
        for key in self._local:
            route.send(self, "interest", key, 1)
        if self._urls != urls:
            self.tell_clients()

    def leave_dead(self) -> None:
        """Routes to processes that have been replaced since give way to new ones."""
        for route in list(self.routes.values()):
            if route.is_dead:
                self.route_down(route)

    def routed(self, route: Route, what: str, *args: Any) -> None:
        """Something came over a route."""
        far = route.far(self).name
        if self.routes.get(far) is not route:
            return
        if what == "closed":
            self.route_down(route)
        elif what == "lame":
            self._unnamed.add(far)
            self.tell_clients()
        elif what == "interest":
            key, count = args
            if count:
                self._remote[far][key] = count
            else:
                self._remote[far].pop(key, None)
        else:
            message, queues = args
            self._deliver(message, None, queues)
            self.flush()

    def route_down(self, route: Route) -> None:
        """This end gives it up."""
        far = route.far(self).name
        if self.routes.get(far) is route:
            urls = self._urls
            del self.routes[far], self._remote[far]
            self._unnamed.discard(far)
            route.gone(self)
            if self._urls != urls:
                self.tell_clients()


class NatsServers:
    """A cluster of servers.

    Args:
        scheduler: of everything.
        rng: of everything.
        wires: of the clients' connections.
        names: of the servers.
        settings: of each.

    Attributes:
        cut: pairs of servers between whom nothing passes.
        lag_us: how much longer than usual everything takes from server to server.
        on_published: told of each message as a server takes it.
        slow_consumers: why connections were closed.
    """

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, wires: Wires, names: list[str], settings: NatsSettings
    ) -> None:
        self.scheduler, self.rng, self.wires = scheduler, rng, wires
        self.cut: set[frozenset[str]] = set()
        self.lag_us = 0
        self.on_published: Callable[[NatsServer, Message], None] = lambda _server, _message: None
        self.slow_consumers: list[str] = []
        self.all = {name: NatsServer(self, name, settings) for name in names}
        self._dialling: set[frozenset[str]] = set()

    def start(self, name: str) -> None:
        """A server dials the others before it takes clients; it has routes to those that answer as soon as may be."""
        self.all[name].start()
        for other in self.all:
            if other != name:
                needs_us = self.wires.latency_us() + 2 * self.lag_us
                self.scheduler.after(needs_us, self._dialled, frozenset((name, other)))

    def kill(self, name: str) -> None:
        if self.all[name].is_up:
            self.all[name].kill()

    def connect(self, near: str, name: str, enter: Callable[..., None]) -> Socket | None:
        """Dial a server; None where nobody listens."""
        server = self.all.get(name)
        if server is None or not server.is_up or server.is_lame:
            return None
        run = server.run
        socket = self.wires.pair(near, name, enter, lambda act, *args: server.enter(run, act, *args))
        server.backlog.append(socket.peer)
        server.later(0, server.accept, socket.peer)
        return socket

    def reaches(self, near: NatsServer, far: NatsServer, subject: bytes) -> bool:
        """Whether what is published at one server now comes to another, for those who listen there."""
        return frozenset((near.name, far.name)) not in self.cut and near.sends_to(far.name, subject)

    def cut_route(self, pair: frozenset[str]) -> None:
        """Nothing passes between two servers; each notices when it has waited for long enough."""
        self.cut.add(pair)
        for name in sorted(pair):
            server, other = self.all[name], next(iter(pair - {name}))
            route = server.routes.get(other)
            if route is not None:
                wait_us = int(self.rng.random() * server.settings.route_stale_us)
                server.later(wait_us, self._notice, server, route)

    def _notice(self, server: NatsServer, route: Route) -> None:
        if route.names in self.cut:
            server.route_down(route)
            self._dial(route.names, self.rng.randrange(S))

    def heal_route(self, pair: frozenset[str]) -> None:
        self.cut.discard(pair)
        for name in sorted(pair):
            for route in list(self.all[name].routes.values()):
                if route.names == pair:
                    route.heal()
        self._dial(pair, self.rng.randrange(S))

    def _dial(self, pair: frozenset[str], delay_us: int) -> None:
        if pair not in self._dialling:
            self._dialling.add(pair)
            self.scheduler.after(delay_us + self.wires.latency_us(), self._dialled, pair)

    def _dialled(self, pair: frozenset[str]) -> None:
        self._dialling.discard(pair)
        one, other = (self.all[name] for name in sorted(pair))
        if other.name in one.routes and one.routes[other.name] is other.routes.get(one.name):
            return
        if not all(end.is_up for end in (one, other)):
            return  # a server that starts dials
        for end in (one, other):
            end.leave_dead()
        is_blocked = pair in self.cut or any(end.is_paused for end in (one, other))
        if is_blocked or other.name in one.routes or one.name in other.routes:
            self._dial(pair, S + self.rng.randrange(100 * MS))  # an end still has the one before
            return
        route = Route(self, one, other)
        for end in (one, other):
            end.enter(end.run, end.route_up, route)
